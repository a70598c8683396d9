"""Plots, read from the files in plots/: the cast and things of each, its paragraphs, and questions about it.

=== name
themes: what a request may call it; another
titles: ...
cast: friend; third           others than the hero, who is always there
things: thing                 of words.THINGS
places: place                 of words.PLACES
kinds friend: fox; owl        if not every kind fits
spot: SPOTS                   values of {spot}: a table of words.py, or a list of its own
noise:                        with a second value {noise.cause}
    a tapping sound / cause: a branch
---
Sentences, a template a line (grammar.py); `~` before one that may be left out.
--- between paragraphs; the last part has the questions and the lesson:
? question // answer // the answer in a few words
! lesson
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from demo_llm import words
from demo_llm.cast import Word

FOLDER = Path(__file__).parent / "plots"
_LISTS = ("themes", "titles", "cast", "things", "places", "skip")


class PlotError(ValueError):
    """An invalid line of a plot's file."""


@dataclass(frozen=True, slots=True)
class Question:
    """Templates: the question, the answer as a sentence, the answer in a few words."""

    asked: str
    answer: str
    brief: str


@dataclass(frozen=True, slots=True)
class Plot:
    """The plot of a story; all texts are templates."""

    name: str
    themes: tuple[str, ...]
    titles: tuple[str, ...]
    cast: tuple[str, ...]
    things: tuple[str, ...]
    places: tuple[str, ...]
    skip: tuple[str, ...]  # what the beginning must not mention of the hero: home
    kinds: Mapping[str, tuple[str, ...]]
    words: Mapping[str, tuple[Word, ...]]
    paragraphs: tuple[tuple[str, ...], ...]
    questions: tuple[Question, ...]
    lessons: tuple[str, ...]


@cache
def all_plots() -> tuple[Plot, ...]:
    """The plots of all files, in the order of their names. Raises: PlotError."""
    return tuple(plot for path in sorted(FOLDER.glob("*.txt")) for plot in read(path.read_text("utf-8")))


def read(text: str) -> Iterator[Plot]:
    """The plots of one file. Raises: PlotError."""
    for entry in text.split("\n=== ")[1:]:
        name, _, rest = entry.partition("\n")
        head, *parts = rest.split("\n---\n")
        if len(parts) < 2:
            raise PlotError(f"{name}: needs a paragraph and a last part with questions, each after a line ---")
        lists, kinds, own_words = _head(name, head)
        questions, lessons = _last_part(name, parts[-1])
        paragraphs = tuple(tuple(part.splitlines()) for part in parts[:-1])
        yield Plot(name, *(lists.get(key, ()) for key in _LISTS), kinds, own_words, paragraphs, questions, lessons)


def _head(
    name: str, head: str
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]], dict[str, tuple[Word, ...]]]:
    lists: dict[str, tuple[str, ...]] = {}
    kinds: dict[str, tuple[str, ...]] = {}
    own_words: dict[str, tuple[Word, ...]] = {}
    key = ""
    for line in head.splitlines():
        if line.startswith("    "):
            own_words[key] += (_word(line.strip()),)
            continue
        key, colon, value = (part.strip() for part in line.partition(":"))
        values = tuple(value.split("; ")) if value else ()
        if not colon:
            raise PlotError(f"{name}: {line!r} has no colon")
        if key in _LISTS:
            lists[key] = values
        elif key.startswith("kinds "):
            kinds[key.removeprefix("kinds ")] = values
        else:
            own_words[key] = tuple(map(Word, getattr(words, value) if value.isupper() else values))
    return lists, kinds, own_words


def _word(line: str) -> Word:
    text, *further = line.split(" / ")
    return Word(text, **{key.strip(): value.strip() for key, _, value in (one.partition(":") for one in further)})


def _last_part(name: str, part: str) -> tuple[tuple[Question, ...], tuple[str, ...]]:
    questions, lessons = [], []
    for line in part.strip().splitlines():
        if line.startswith("! "):
            lessons.append(line[2:])
        elif line.startswith("? ") and line.count(" // ") == 2:
            questions.append(Question(*line[2:].split(" // ")))
        else:
            raise PlotError(f"{name}: {line!r} is neither a question with two answers nor a lesson")
    return tuple(questions), tuple(lessons)

"""Templates, which vary the wording of a text.

    [sat down|stood|]   one of these; each may hold more of them, and an empty one adds no text
    {hero.his}          an attribute of the scene's hero; {hero} is its own name

A sentence begins with a capital and `a` becomes `an` automatically, so that templates do not depend on their place.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

_MARKS = re.compile(r"[\[\]|]|\{[a-z_0-9.]+\}")
_VOWEL = re.compile(r"\b(a) (?=[aeiou])(?!one|uni|use|eu)", re.IGNORECASE)
# At the start of a text or a paragraph, after what ends a sentence, and where speech follows speech. Speech that a
# sentence leads to (he said, "...") is written as it should be: it may go on in the middle of one.
_OPENING = re.compile(r'(?:\A"?|(?<=[.!?] )"?|(?<=\." )"?|(?<=[.!?]" )"|(?<=\n)"?)([a-z])')
# An alternative may end in a mark of its own, which counts then: [It is here|Is it here?].
_MARK_AFTER_MARK = re.compile(r"([.!?,])[.!?,]+")
_SPACES = re.compile(r"[ ]+(?=[.,!?;:])|(?<= )[ ]+|[ ]+$", re.MULTILINE)


class TemplateError(ValueError):
    """An invalid template: its brackets do not match, or it has a name that the scene lacks."""


@dataclass(frozen=True, slots=True)
class _Slot:
    name: str
    attribute: str


@dataclass(frozen=True, slots=True)
class _Choice:
    ways: tuple[tuple[object, ...], ...]


def tell(template: str, scene: Mapping[str, object], chance: random.Random) -> str:
    """One variant of the template, polished.

    Raises: TemplateError.
    """
    return polish(expand(template, scene, chance))


def expand(template: str, scene: Mapping[str, object], chance: random.Random) -> str:
    """One variant of the template, not polished. Raises: TemplateError."""
    told: list[str] = []
    _tell(_parsed(template), scene, chance, told)
    return "".join(told)


def polish(text: str) -> str:
    """One space between words, one mark after a sentence, `an` before vowels, capitals where sentences begin."""
    text = _MARK_AFTER_MARK.sub(r"\1", _SPACES.sub("", text))
    text = _VOWEL.sub(lambda found: found[1] + "n ", text)
    return _OPENING.sub(lambda found: found[0][:-1] + found[1].upper(), text)


def _tell(parts: tuple[object, ...], scene: Mapping[str, object], chance: random.Random, told: list[str]) -> None:
    for part in parts:
        if isinstance(part, str):
            told.append(part)
        elif isinstance(part, _Choice):
            _tell(chance.choice(part.ways), scene, chance, told)
        elif isinstance(part, _Slot):
            told.append(_value(part, scene))


def _value(slot: _Slot, scene: Mapping[str, object]) -> str:
    try:
        found = scene[slot.name]
        return str(getattr(found, slot.attribute) if slot.attribute else found)
    except (KeyError, AttributeError) as error:
        raise TemplateError(f"{{{slot.name}.{slot.attribute}}} is not in the scene, which has {list(scene)}") from error


@cache
def _parsed(template: str) -> tuple[object, ...]:
    """Text, slots and choices. A stack holds, for each open bracket, the ways so far and the one being read."""
    open_choices: list[tuple[list[tuple[object, ...]], list[object]]] = []
    parts: list[object] = []
    end = 0
    for mark in _MARKS.finditer(template):
        if mark.start() > end:
            parts.append(template[end : mark.start()])
        end = mark.end()
        sign = mark[0]
        if sign == "[":
            open_choices.append(([], parts))
            parts = []
        elif sign[0] == "{":
            name, _, attribute = sign[1:-1].partition(".")
            parts.append(_Slot(name, attribute))
        elif not open_choices:
            raise TemplateError(f"{sign!r} at {mark.start()} stands outside of brackets: {template!r}")
        else:
            ways, outside = open_choices[-1]
            ways.append(tuple(parts))
            parts = []
            if sign == "]":
                open_choices.pop()
                outside.append(_Choice(tuple(ways)))
                parts = outside
    if open_choices:
        raise TemplateError(f"a bracket is not closed: {template!r}")
    return (*parts, template[end:])

"""Characters, things and places of a story, in the forms that sentences need."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from demo_llm import words

_T = TypeVar("_T")


class Word(str):
    """A word of a story with related ones: `Word("a rope", use="pulled")` has `.use`."""

    def __new__(cls, text: str, **further: str) -> Word:
        made = super().__new__(cls, text)
        made.__dict__.update(further)
        return made


@dataclass(frozen=True, slots=True)
class Character:
    """A person or an animal with a name. `is_her` chooses the pronouns."""

    name: str
    kind: str
    adjective: str
    is_her: bool
    home: str
    food: str

    def __str__(self) -> str:
        return self.name

    @property
    def he(self) -> str:
        return "she" if self.is_her else "he"

    @property
    def him(self) -> str:
        return "her" if self.is_her else "him"

    @property
    def his(self) -> str:
        return "her" if self.is_her else "his"

    @property
    def himself(self) -> str:
        return "herself" if self.is_her else "himself"

    @property
    def the(self) -> str:
        return f"the {self.kind}"

    @property
    def a(self) -> str:
        return f"a {self.adjective} {self.kind}"

    @property
    def one(self) -> str:
        """Without the adjective: `a fox`."""
        return f"a {self.kind}"

    @property
    def who(self) -> str:
        """`Mia the fox`."""
        return f"{self.name} the {self.kind}"


@dataclass(frozen=True, slots=True)
class Thing:
    """A thing that can be carried."""

    noun: str
    look: str

    def __str__(self) -> str:
        return f"{self.look} {self.noun}"


@dataclass(frozen=True, slots=True)
class Place:
    """A place: `the forest`, and `in` for `in the forest`."""

    name: str
    preposition: str

    def __str__(self) -> str:
        return self.name

    @property
    def at(self) -> str:
        return f"{self.preposition} {self.name}"


@cache
def _kinds() -> dict[str, tuple[str, str, str]]:
    return {kind: (home, food, gender) for kind, home, food, gender in words.table(words.KINDS)}


@cache
def _things() -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((noun, tuple(looks.split())) for noun, looks in words.table(words.THINGS))


@cache
def _places() -> tuple[Place, ...]:
    return tuple(Place(name, preposition) for name, preposition in words.table(words.PLACES))


def all_kinds() -> tuple[str, ...]:
    """Every kind that a story may be about."""
    return (*_kinds(), *words.RARE_KINDS)


def draw_character(
    chance: random.Random, taken: Collection[Character] = (), *, kind: str = "", name: str = ""
) -> Character:
    """A character whose name and kind none in `taken` has; with this kind and this name if they are given."""
    if not kind:
        common = chance.random() < 0.93
        pool = tuple(_kinds()) if common else words.RARE_KINDS
        kind = _other(chance, pool, {one.kind for one in taken})
    if kind in _kinds():
        home, food, gender = _kinds()[kind]
    else:
        home, food = chance.choice(words.RARE_HOMES), chance.choice(words.RARE_FOODS)
        gender = "his" if kind in words.ONLY_HIS else "her" if kind in words.ONLY_HER else "any"
    if name in words.HER_NAMES and gender != "his":
        gender = "her"
    elif name in words.HIS_NAMES and gender != "her":
        gender = "his"
    is_her = gender == "her" or (gender == "any" and chance.random() < 0.5)
    if not name:
        names = words.HER_NAMES if is_her else words.HIS_NAMES
        name = _other(chance, names, {one.name for one in taken})
    adjectives = words.GROWN_ADJECTIVES if kind in words.GROWN else words.ADJECTIVES
    return Character(name, kind, chance.choice(adjectives), is_her, home, food)


def draw_thing(chance: random.Random, taken: Collection[Thing] = (), *, noun: str = "") -> Thing:
    """A thing whose noun none in `taken` has; this one if it is given."""
    known = dict(_things())
    noun = noun or _other(chance, tuple(known), {one.noun for one in taken})
    return Thing(noun, chance.choice(known.get(noun, tuple(words.COLORS))))


def draw_place(chance: random.Random, taken: Collection[Place] = ()) -> Place:
    return _other(chance, _places(), set(taken))


def invent_name(chance: random.Random) -> str:
    """A made-up name that is not in the corpus otherwise, so that a model has to read it from the request."""
    syllables = [chance.choice("bdfgklmnprstvwz") + chance.choice("aeiou") for _ in range(chance.choice((2, 2, 3)))]
    return "".join(syllables).capitalize() + chance.choice(("", "", "n", "r", "l", "x"))


def _other(chance: random.Random, pool: Sequence[_T], taken: Collection[_T]) -> _T:
    """One of the pool that is not taken."""
    return chance.choice([one for one in pool if one not in taken])

"""Globs as rules write them: `*` any text, `?` one character, `[...]` one of a set; compared with case."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Generic, TypeVar

T = TypeVar("T")

# Of characters; a text without wildcards may be longer.
MAX_GLOB = 256

_TOKEN = re.compile(r"\*+|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
_WILDCARD = re.compile(r"[*?[\]]")


def is_exact(pattern: str) -> bool:
    """Whether the pattern has no wildcard, so that it matches one text alone."""
    return not any(wildcard in pattern for wildcard in "*?[")


def all_covered(narrow: tuple[str, ...], wide: tuple[str, ...]) -> bool:
    """Whether every pattern of `narrow` is covered by some pattern of `wide`."""
    return all(any(covers(outer, inner) for outer in wide) for inner in narrow)


def covers(wide: str, narrow: str) -> bool:
    """Whether all that `narrow` matches surely matches `wide`.

    The tokens of `narrow` are run through `wide` as through a state machine. Sound and not complete: a set `[...]` is
    one opaque token, so `[ab]` is not seen to cover `a`.
    """
    if is_exact(wide):
        return wide == narrow
    tokens = _tokens(wide)
    states = _skip_stars(tokens, {0})
    for inner in _tokens(narrow):
        taking = [state for state in states if state < len(tokens) and _takes(tokens[state], inner)]
        states = _skip_stars(tokens, {state if _is_star(tokens[state]) else state + 1 for state in taking})
        if not states:
            return False
    return len(tokens) in states


class PatternIndex(Generic[T]):
    """Items filed under patterns: an exact one under its text, a glob under the longer of its literal beginning and
    ending. `of` returns those whose pattern may match a text, or cover it where it is a glob itself."""

    def __init__(self) -> None:
        self.exact: dict[str, list[T]] = {}
        self._beginnings: dict[int, dict[str, list[T]]] = {}  # by length
        self._endings: dict[int, dict[str, list[T]]] = {}

    def add(self, pattern: str, item: T) -> None:
        filed, key = self._place(pattern)
        filed.setdefault(key, []).append(item)

    def of(self, text: str) -> list[list[T]]:
        """Lists of items, each in the order in which they were added; one may be in several."""
        found = [self.exact.get(text)]
        found += [items.get(text[:length]) for length, items in self._beginnings.items()]
        found += [items.get(text[-length:]) for length, items in self._endings.items()]
        return [items for items in found if items]

    def size(self, patterns: Iterable[str]) -> int:
        """The number of items beside which one of these patterns would be filed, at the most."""
        return max(len(filed.get(key, ())) for filed, key in map(self._place, patterns))

    @property
    def largest(self) -> int:
        """The number of items that are filed together, at the most."""
        filed = [self.exact, *self._beginnings.values(), *self._endings.values()]
        return max((len(items) for each in filed for items in each.values()), default=0)

    def _place(self, pattern: str) -> tuple[dict[str, list[T]], str]:
        if is_exact(pattern):
            return self.exact, pattern
        parts = _WILDCARD.split(pattern)
        beginning, ending = parts[0], parts[-1]
        if len(ending) > len(beginning):
            return self._endings.setdefault(len(ending), {}), ending
        return self._beginnings.setdefault(len(beginning), {}), beginning


@lru_cache(maxsize=1 << 14)
def _tokens(pattern: str) -> tuple[str, ...]:
    return tuple(_TOKEN.findall(pattern))


def _skip_stars(tokens: tuple[str, ...], states: set[int]) -> set[int]:
    """Add the states reached when a star takes nothing more."""
    for state, token in enumerate(tokens):
        if state in states and _is_star(token):
            states.add(state + 1)
    return states


def _takes(outer: str, inner: str) -> bool:
    return _is_star(outer) or (outer in ("?", inner) and not _is_star(inner))


def _is_star(token: str) -> bool:
    return token.startswith("*")

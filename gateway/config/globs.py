"""Globs as rules write them: `*` any text, `?` one character, `[...]` one of a set; compared with case."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\*+|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)


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
    tokens = _TOKEN.findall(wide)
    states = _skip_stars(tokens, {0})
    for inner in _TOKEN.findall(narrow):
        taking = [state for state in states if state < len(tokens) and _takes(tokens[state], inner)]
        states = _skip_stars(tokens, {state if _is_star(tokens[state]) else state + 1 for state in taking})
    return len(tokens) in states


def _skip_stars(tokens: list[str], states: set[int]) -> set[int]:
    """Add the states reached when a star takes nothing more."""
    for state, token in enumerate(tokens):
        if state in states and _is_star(token):
            states.add(state + 1)
    return states


def _takes(outer: str, inner: str) -> bool:
    return _is_star(outer) or (outer in ("?", inner) and not _is_star(inner))


def _is_star(token: str) -> bool:
    return token.startswith("*")

"""Globs, and which glob covers which."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.globs import PatternIndex, all_covered, covers, is_exact

COVERED = [
    ("*", "llama"),
    ("*", "*"),
    ("*", ""),
    ("llama-*", "llama-3"),
    ("llama-*", "llama-*-instruct"),
    ("l*a", "l?a"),
    ("a?", "ab"),
    ("a?", "a[bc]"),
    ("[ab]x", "[ab]x"),
    ("*a*", "*a*b*"),
]
NOT_COVERED = [
    ("llama", "llama-*"),
    ("llama-?", "llama-*"),
    ("llama-*", "llama"),
    ("LLAMA", "llama"),
    ("a", ""),
    ("*a", "*"),
    ("*a*", "*"),
]


@pytest.mark.parametrize("wide, narrow", COVERED)
def test_a_wide_glob_covers_a_narrow_one(wide: str, narrow: str) -> None:
    """The wide glob matches every text that the narrow one matches."""
    assert covers(wide, narrow)


@pytest.mark.parametrize("wide, narrow", NOT_COVERED)
def test_globs_that_do_not_cover(wide: str, narrow: str) -> None:
    """Some text matches the narrow glob only."""
    assert not covers(wide, narrow)


@given(st.text("ab*?", max_size=6), st.text("ab*?", max_size=6))
def test_cover_never_claims_too_much(wide: str, narrow: str) -> None:
    """Where one glob is said to cover another, it matches every short text that the other matches."""
    if covers(wide, narrow):
        texts = ("".join(letters) for length in range(5) for letters in product("abc", repeat=length))
        assert all(fnmatchcase(text, wide) for text in texts if fnmatchcase(text, narrow))


def test_lists_cover_pattern_by_pattern() -> None:
    """A list is covered when each of its patterns is covered by one of the other list's."""
    assert all_covered(("a1", "b1"), ("a*", "b*"))
    assert not all_covered(("a1", "c1"), ("a*", "b*"))


@pytest.mark.parametrize("pattern, expected", [("chat", True), ("ch*t", False), ("ch?t", False), ("ch[a]t", False)])
def test_exact_names_have_no_wildcard(pattern: str, expected: bool) -> None:
    """A name is exact if it contains none of *, ? and [."""
    assert is_exact(pattern) is expected


PATTERNS = st.text("ab*?[]!", max_size=5)


@given(st.lists(PATTERNS, max_size=8), PATTERNS)
def test_an_index_finds_every_pattern_that_matches_or_covers(patterns: list[str], text: str) -> None:
    """No pattern is missed that matches a text, or covers it where it is a glob."""
    index: PatternIndex[str] = PatternIndex()
    for pattern in patterns:
        index.add(pattern, pattern)
    found = {pattern for items in index.of(text) for pattern in items}
    assert {pattern for pattern in patterns if fnmatchcase(text, pattern) or covers(pattern, text)} <= found


def test_an_index_finds_few_of_many() -> None:
    """A text finds the exact pattern and the globs with its own beginning and ending, and no others."""
    index: PatternIndex[str] = PatternIndex()
    for at in range(1000, 2000):
        for pattern in (f"model-{at}", f"model-{at}-*", f"*-{at}-long-ending", f"[ab]*{at}"):
            index.add(pattern, pattern)
    assert index.of("model-1003") == [["model-1003"], ["[ab]*1003"]]
    assert index.of("model-1003-x-1007-long-ending") == [["model-1003-*"], ["*-1007-long-ending"]]
    assert index.of("other") == []

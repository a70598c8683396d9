"""Globs, and which glob covers which."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.globs import all_covered, covers, is_exact

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

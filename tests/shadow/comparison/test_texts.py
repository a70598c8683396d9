"""Where two texts start to differ."""

from __future__ import annotations

import pytest

from gateway.shadow.comparison.outputs import GeneratedText
from gateway.shadow.comparison.texts import TextDifference, compare

# primary, candidate, first character, first token, prefix share
PARTING = [
    ("one two three", "one two three", None, None, 1.0),
    ("", "", None, None, 1.0),
    ("one two three", "one two four", 8, 2, 8 / 13),
    ("one two", "one two three", 7, 2, 7 / 13),
    ("one two", "one  two", 4, None, 4 / 8),
    ("it is 1.", "it is 1!", 7, 3, 7 / 8),
    ("über alle", "über alles", 9, 1, 9 / 10),
    ("", "one", 0, 0, 0.0),
]


@pytest.mark.parametrize("primary, candidate, character, token, share", PARTING)
def test_where_texts_part(primary: str, candidate: str, character: int | None, token: int | None, share: float) -> None:
    """The difference is located by characters and by tokens (words and signs); white space alone changes no token."""
    found = compare("text", GeneratedText(primary), GeneratedText(candidate), 0)
    assert (found.first_character, found.first_token, found.prefix_share) == (character, token, share)
    assert found.agrees is (primary == candidate)
    assert found.around == ("", "")


def test_how_it_ended_counts() -> None:
    """The same text with another finish reason or other tool calls does not agree."""
    one = GeneratedText("one", "stop", ('f {"a":1}',))
    assert compare("text", one, GeneratedText("one", "stop", ('f {"a":1}',)), 0).agrees
    assert not compare("text", one, GeneratedText("one", "length", ('f {"a":1}',)), 0).agrees
    assert not compare("text", one, GeneratedText("one", "stop", ('f {"a":2}',)), 0).agrees


def test_excerpts_are_told_where_they_are_allowed() -> None:
    """An excerpt has this many characters of both texts, a third of them before the difference."""
    found = compare("text", GeneratedText("a" * 50 + "b" * 50), GeneratedText("a" * 50 + "c" * 50), 12)
    assert found.around == ("aaaabbbbbbbb", "aaaacccccccc")


def test_a_text_that_one_side_has_not() -> None:
    """A text that only one side has agrees with nothing."""
    assert compare("x", GeneratedText("a"), None, 0) == TextDifference(
        "x", "only the primary has it", first_character=0, first_token=0, prefix_share=0.0
    )

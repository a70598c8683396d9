"""Parsers of values that occur in rules only."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.config import value_parsers

GOOD = [
    (value_parsers.share, "20%", 0.2),
    (value_parsers.share, "0.2", 0.2),
    (value_parsers.weight, "90", 90.0),
    (value_parsers.weight, "0.5%", 0.5),
    (value_parsers.header_name, "X-Tier", "x-tier"),
]


@pytest.mark.parametrize("parse, text, expected", GOOD)
def test_values_are_read(parse: Callable[[str], object], text: str, expected: object) -> None:
    """A share is a fraction of 1, a weight is relative, and a header's name is in lower case."""
    assert parse(text) == pytest.approx(expected)


BAD = [
    (value_parsers.weight, "-1", "weight -1 is negative: 0 sends no traffic to an arm"),
    (value_parsers.header_name, "a b", "'a b' is not a header name"),
    (value_parsers.text, "secret\nx: c", "the text has control characters (a line break at its end?)"),
    (value_parsers.text, "key\u20ac", "the text has a character that no header can carry, at place 4"),
    (value_parsers.text, "", "an empty text stands here"),
    (value_parsers.path, "health", "'health' is not a path: it begins with '/' and has no spaces"),
]


@pytest.mark.parametrize("parse, text, message", BAD)
def test_a_wrong_value_is_told_what_is_expected(parse: Callable[[str], object], text: str, message: str) -> None:
    """The error for an invalid value names the value and the expected form."""
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert str(caught.value) == message

"""Values that rules alone have."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.config import rule_values

GOOD = [
    (rule_values.share, "20%", 0.2),
    (rule_values.share, "0.2", 0.2),
    (rule_values.weight, "90", 90.0),
    (rule_values.weight, "0.5%", 0.5),
    (rule_values.header_name, "X-Tier", "x-tier"),
]


@pytest.mark.parametrize("parse, text, expected", GOOD)
def test_values_are_read(parse: Callable[[str], object], text: str, expected: object) -> None:
    """A share is part of 1, a weight is relative, and a header's name is in lower case."""
    assert parse(text) == pytest.approx(expected)


BAD = [
    (rule_values.weight, "-1", "weight -1 is negative: 0 sends no traffic to an arm"),
    (rule_values.header_name, "a b", "'a b' is not a header name"),
    (rule_values.text, "secret\nx: c", "the text has control characters (a line break at its end?)"),
    (rule_values.text, "key\u20ac", "the text has a character that no header can carry, at place 4"),
    (rule_values.text, "", "an empty text stands here"),
    (rule_values.path, "health", "'health' is not a path: it begins with '/' and has no spaces"),
]


@pytest.mark.parametrize("parse, text, message", BAD)
def test_a_wrong_value_is_told_what_is_expected(parse: Callable[[str], object], text: str, message: str) -> None:
    """A value that cannot be read names itself and the right form."""
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert str(caught.value) == message

"""Parsers of values with units."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.yaml import values

GOOD = [
    (values.duration, "30s", 30.0),
    (values.duration, "500ms", 0.5),
    (values.duration, "1.5m", 90.0),
    (values.duration, "1h", 3600.0),
    (values.duration, "0", 0.0),
    (values.duration, "2", 2.0),
    (values.size, "64MiB", 67108864),
    (values.size, "1MB", 1000000),
    (values.size, "1 KiB", 1024),
    (values.size, "10", 10),
    (values.between(1, 64, values.integer), "1", 1),
    (values.between(1, 64, values.integer), "64", 64),
    (values.boolean, "True", True),
    (values.boolean, "false", False),
    (values.name, "triton-cuda_2.1", "triton-cuda_2.1"),
]


@pytest.mark.parametrize("parse, text, expected", GOOD)
def test_values_have_units(parse: Callable[[str], object], text: str, expected: object) -> None:
    """A duration is seconds, a size is bytes."""
    assert parse(text) == pytest.approx(expected)


BAD = [
    (values.duration, "30 parsecs", "'30 parsecs' is not a duration: write 30s, 500ms, 2m, 1h or a number of seconds"),
    (values.duration, "-1s", "'-1s' is not a duration: write 30s, 500ms, 2m, 1h or a number of seconds"),
    (values.duration, "٣s", "'٣s' is not a duration: write 30s, 500ms, 2m, 1h or a number of seconds"),
    (values.size, "64Mb", "'64Mb' is not a size: write 64MiB, 1MB or a number of bytes"),
    (values.number, "nan", "'nan' is not a number"),
    (values.integer, "1.5", "'1.5' is not a whole number"),
    (values.integer, "9" * 5000, f"'{'9' * 5000}' is not a whole number"),
    (values.at_least(1, values.integer), "0", "0 is too small: at least 1"),
    (values.between(1, 64, values.integer), "0", "0 is out of range: 1 to 64"),
    (values.between(1, 64, values.integer), "65", "65 is out of range: 1 to 64"),
    (values.between(1, 64, values.integer), "x", "'x' is not a whole number"),
    (values.above_zero(values.duration), "0s", "0s is too small: more than 0"),
    (values.boolean, "yes", "'yes' is neither true nor false"),
    (values.one_of(["safe", "infer"]), "save", "unknown value 'save': did you mean 'safe'?"),
    (values.one_of(["safe", "infer"]), "x", "unknown value 'x'; known: safe, infer"),
    (
        values.name,
        "a/b",
        "'a/b' is not a name: letters, digits, '.', '_', '-', up to 100, a letter or digit first",
    ),
]


@pytest.mark.parametrize("parse, text, message", BAD)
def test_a_wrong_value_is_told_what_is_expected(parse: Callable[[str], object], text: str, message: str) -> None:
    """The error for an invalid value names the value and the expected form."""
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["0", "5ms", "1500ms", "15s", "90s", "1m", "2h"])
def test_a_duration_is_written_as_it_is_read(text: str) -> None:
    """Help shows durations as people write them."""
    assert values.duration_text(values.duration(text)) == text


@pytest.mark.parametrize("text", ["0", "240", "64KiB", "1536KiB", "64MiB", "2GiB"])
def test_a_size_is_written_as_it_is_read(text: str) -> None:
    """The same for sizes."""
    assert values.size_text(values.size(text)) == text

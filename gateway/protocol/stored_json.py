"""Reads JSON from where others can write, such as Redis: whatever is there, all that readers raise is ValueError."""

from __future__ import annotations

from typing import Any

import orjson

# The end of the year 9999, up to which Python's dates go.
_LAST_SECOND = 253_402_300_799
# What all readers of JSON hold exactly.
_MAX_COUNT = 2**53


def read_json_object(text: bytes | str) -> dict[str, Any]:
    """The members of an object.

    orjson bounds the depth, and refuses numbers that are infinite.
    Raises: ValueError.
    """
    found = orjson.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    return found


def read_json_texts(text: bytes | str) -> tuple[str, ...]:
    """A list of texts.

    Raises: ValueError.
    """
    found = orjson.loads(text)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError("it is no list of texts")
    return tuple(found)


def time_of(value: object) -> float:
    """Seconds since 1970.

    Raises: ValueError.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LAST_SECOND:
        raise ValueError("it is no time")
    return float(value)


def count_of(value: object) -> int:
    """A number from 0 on.

    Raises: ValueError.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_COUNT:
        raise ValueError("it is no count")
    return value

"""Values that fleet files alone have: text in, a value out, or a ValueError whose message says what is expected."""

from __future__ import annotations

import re

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RANGE = re.compile(r"([0-9]{1,5}) ?- ?([0-9]{1,5})")


def variable(text: str) -> str:
    """The name of an environment variable."""
    if not _VARIABLE.fullmatch(text):
        raise ValueError(f"{text!r} is not the name of an environment variable")
    return text


def argument(text: str) -> str:
    """Any text that a process may get as an argument."""
    if "\x00" in text:
        raise ValueError("the text has a NUL, which no argument can carry")
    return text


def port_range(text: str) -> tuple[int, int]:
    """Two ports, the first not above the last: `20000-20999`."""
    found = _RANGE.fullmatch(text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]) <= 65535:
        raise ValueError(f"{text!r} is not a range of ports: write 20000-20999")
    return int(found[1]), int(found[2])

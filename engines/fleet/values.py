"""Values as fleet files write them: text in, a value out, or a ValueError whose message says what is expected."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from engines.fleet.yaml_reading import suggest

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?|\.[0-9]{1,9}) ?(ms|s|m|h|)")
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([A-Za-z]*)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RANGE = re.compile(r"([0-9]{1,5}) ?- ?([0-9]{1,5})")

_SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {"": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_BYTES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def duration(text: str) -> float:
    """Seconds: `30s`, `500ms`, `2m`, `1h`; a bare number is seconds."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a duration: write 30s, 500ms, 2m, 1h or a number of seconds")
    return float(found[1]) * _SECONDS[found[2]]


def size(text: str) -> int:
    """Bytes: `8GiB` (2^30), `1.5GB` (10^9); a bare number is bytes."""
    found = _SIZE.fullmatch(text)
    if found is None or found[2] not in _BYTES:
        raise ValueError(f"{text!r} is not a size: write 8GiB, 500MB or a number of bytes")
    return int(float(found[1]) * _BYTES[found[2]])


def integer(minimum: int, maximum: int) -> Callable[[str], int]:
    """A whole number within bounds."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise ValueError(f"{text!r} is not a whole number from {minimum} to {maximum}")
        if not minimum <= int(text) <= maximum:
            raise ValueError(f"{text} is out of range: {minimum} to {maximum}")
        return int(text)

    return parse


def above_zero(parse: Callable[[str], float]) -> Callable[[str], float]:
    """Let a number pass that is more than zero."""

    def checked(text: str) -> float:
        value = parse(text)
        if value <= 0:
            raise ValueError(f"{text} is too small: more than 0")
        return value

    return checked


def boolean(text: str) -> bool:
    """Exactly true or false."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def one_of(known: Iterable[str]) -> Callable[[str], str]:
    """Let exactly the known words pass."""
    words = tuple(known)

    def checked(text: str) -> str:
        if text not in words:
            raise ValueError(f"unknown value {text!r}{suggest(text, words)}")
        return text

    return checked


def name(text: str) -> str:
    """What rules and logs call a thing."""
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a name: letters, digits, '.', '_', '-', up to 100, a letter or digit first")
    return text


def variable(text: str) -> str:
    """The name of an environment variable."""
    if not _VARIABLE.fullmatch(text):
        raise ValueError(f"{text!r} is not the name of an environment variable")
    return text


def text(text: str) -> str:
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

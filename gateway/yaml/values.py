"""Parsers of scalar values: text in, a value out, or a ValueError that describes what is expected."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple, TypeVar

from gateway.yaml.problems import suggest

T = TypeVar("T")
Number = TypeVar("Number", int, float)
Member = TypeVar("Member", bound=Enum)

_DURATION = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?|\.[0-9]{1,18}) ?(ms|s|m|h|)")
_SIZE = re.compile(r"([0-9]{1,18}) ?([A-Za-z]*)")

_SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {"": 1, "B": 1}
_BYTES |= {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def matching(pattern: str, convert: Callable[[str], T], message: str) -> Callable[[str], T]:
    """Convert a text that matches as a whole; otherwise the message, with `{text}`, is the error."""
    expression = re.compile(pattern)

    def read(text: str) -> T:
        if not expression.fullmatch(text):
            raise ValueError(message.format(text=text))
        return convert(text)

    return read


integer = matching(r"-?[0-9]{1,18}", int, "{text!r} is not a whole number")
number = matching(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?|-?\.[0-9]{1,18}", float, "{text!r} is not a number")
# Names go into headers, metrics and URLs, so their letters are few.
name = matching(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}",
    str,
    "{text!r} is not a name: letters, digits, '.', '_', '-', up to 100, a letter or digit first",
)


def duration(text: str) -> float:
    """Seconds: `30s`, `500ms`, `2m`, `1h`; a bare number is seconds."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration: write 30s, 500ms, 2m, 1h or a number of seconds")
    return float(match[1]) * _SECONDS[match[2]]


def duration_text(seconds: float) -> str:
    """A duration as people write it: the inverse of `duration`."""
    for unit in ("h", "m", "s", "ms"):
        number = round(seconds / _SECONDS[unit], 3)
        if number >= 1 and number.is_integer():
            return f"{number:.0f}{unit}"
    return f"{seconds:g}"


def size(text: str) -> int:
    """Bytes: `64MiB` (2^20), `1MB` (10^6); a bare number is bytes."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2] not in _BYTES:
        raise ValueError(f"{text!r} is not a size: write 64MiB, 1MB or a number of bytes")
    return int(match[1]) * _BYTES[match[2]]


def size_text(number: int) -> str:
    """A size as people write it: the inverse of `size`."""
    for unit in ("GiB", "MiB", "KiB"):
        if number and number % _BYTES[unit] == 0:
            return f"{number // _BYTES[unit]}{unit}"
    return str(number)


def boolean(text: str) -> bool:
    """Exactly true or false."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def checked(parse: Callable[[str], T], is_right: Callable[[T], bool], message: str) -> Callable[[str], T]:
    """Let a value pass that is right; otherwise the message, with `{text}`, is the error."""

    def read(text: str) -> T:
        value = parse(text)
        if not is_right(value):
            raise ValueError(message.format(text=text))
        return value

    return read


def at_least(minimum: Number, parse: Callable[[str], Number]) -> Callable[[str], Number]:
    """Let a number pass from `minimum` up."""
    return checked(parse, lambda value: value >= minimum, f"{{text}} is too small: at least {minimum:g}")


def between(minimum: Number, maximum: Number, parse: Callable[[str], Number]) -> Callable[[str], Number]:
    """Let a number pass from `minimum` to `maximum`."""
    message = f"{{text}} is out of range: {minimum:.15g} to {maximum:.15g}"
    return checked(parse, lambda value: minimum <= value <= maximum, message)


def above_zero(parse: Callable[[str], float]) -> Callable[[str], float]:
    """Let a number pass that is more than zero."""
    return checked(parse, lambda value: value > 0, "{text} is too small: more than 0")


def one_of(known: Iterable[str], what: str = "value") -> Callable[[str], str]:
    """Let exactly the known words pass."""
    words = tuple(known)

    def checked(text: str) -> str:
        if text not in words:
            raise ValueError(f"unknown {what} {text!r}{suggest(text, words)}")
        return text

    return checked


def member_of(kind: type[Member], what: str) -> Callable[[str], Member]:
    """Read a member of an enumeration by its value."""
    checked = one_of((member.value for member in kind), what)
    return lambda text: kind(checked(text))


class NameOf(NamedTuple):
    """The name of something of this kind that is declared elsewhere, in place of a parser."""

    kind: str

"""JSON as Triton reads and writes it.

Its parser, RapidJSON, is wider than the standard in two places, and a converted message must be as wide: it takes and
writes NaN, Infinity and -Infinity, and it hands the bytes of a text on without asking whether they are UTF-8. Such
bytes are surrogate escapes (PEP 383) in what `read` returns.
Source: Triton common `triton_json.h` (kParseNanAndInfFlag, kWriteNanAndInfFlag); RapidJSON `dtoa.h`, `writer.h`.
"""

from __future__ import annotations

import json
import re
from math import isfinite, isnan
from typing import Any

import orjson

from gateway.protocol.json_reader import with_standard_numbers

NAN, INFINITY, NEGATIVE_INFINITY = b"NaN", b"Infinity", b"-Infinity"

_ESCAPED = re.compile(rb'[\x00-\x1f"\\]')
_ESCAPES = {bytes((code,)): b"\\u%04X" % code for code in range(0x20)} | {
    b'"': b'\\"',
    b"\\": b"\\\\",
    b"\b": b"\\b",
    b"\f": b"\\f",
    b"\n": b"\\n",
    b"\r": b"\\r",
    b"\t": b"\\t",
}

_EXPONENT = re.compile(rb"(-?)(\d)(?:\.(\d+))?e([+-]?\d+)")
# RapidJSON spells numbers of up to 21 digits before the point, and of up to 5 zeros behind it, without an exponent.
_LARGEST_POWER, _SMALLEST_POWER = 20, -6


def read(body: bytes) -> Any:
    """The value of a JSON text. Raises: ValueError where it is none."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if b"NaN" not in body and b"Inf" not in body and is_utf8(body):
            raise ValueError(str(error)) from None
    text = body.decode("utf-8", "surrogateescape")
    try:
        return json.loads(with_standard_numbers(text))
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def write(value: Any) -> bytes:
    """The JSON of values whose non-finite numbers and texts of unknown encoding are fragments already."""
    return orjson.dumps(value)


def scalar(value: Any) -> Any:
    """A value as `write` takes it: the same, but for a number that the standard has no spelling of."""
    return value if not isinstance(value, float) or isfinite(value) else orjson.Fragment(_special(value))


def floats(values: list[float]) -> bytes:
    """An array of numbers, spelled as RapidJSON does."""
    written = orjson.dumps(values)
    if b"e" in written:
        written = _EXPONENT.sub(_respell, written)
    if b"null" in written:
        specials = iter([_special(value) for value in values if not isfinite(value)])
        written = re.sub(rb"null", lambda _: next(specials), written)
    return written


def text(value: bytes) -> bytes:
    """A string with the bytes of `value`, whatever they are, with RapidJSON's escapes."""
    return b'"' + _ESCAPED.sub(lambda found: _ESCAPES[found[0]], value) + b'"'


def is_utf8(body: bytes) -> bool:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _special(value: float) -> bytes:
    return NAN if isnan(value) else INFINITY if value > 0 else NEGATIVE_INFINITY


def _respell(found: re.Match[bytes]) -> bytes:
    sign, lead, rest, exponent = found.groups(b"")
    digits, power = lead + rest, int(exponent)
    if 0 <= power <= _LARGEST_POWER:
        whole = digits.ljust(power + 1, b"0")
        return sign + whole[: power + 1] + b"." + (whole[power + 1 :] or b"0")
    if _SMALLEST_POWER <= power < 0:
        return sign + b"0." + b"0" * (-power - 1) + digits
    return sign + lead + (b"." + rest if rest else b"") + b"e%d" % power

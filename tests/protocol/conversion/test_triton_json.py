"""The JSON reader and writer that match Triton's."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gateway.protocol.conversion import triton_json

READ = [
    (b"[NaN,Infinity,-Infinity,Inf,-Inf,-NaN]", [math.nan, math.inf, -math.inf, math.inf, -math.inf, math.nan]),
    (b'["Inf","a -NaN","\\"Inf",Inf]', ["Inf", "a -NaN", '"Inf', math.inf]),
    (b'["\xff\xc3\xbc"]', ["\udcffü"]),
    (b"[18446744073709551615,18446744073709551616,-9223372036854775809]", [2**64 - 1, 2.0**64, -(2.0**63)]),
    (b"[1,1.0,-0.0]", [1, 1.0, -0.0]),
]


@pytest.mark.parametrize("body, value", READ)
def test_reads_what_triton_reads(body: bytes, value: Any) -> None:
    """The reader accepts NaN and infinities in every spelling and text that is not UTF-8; integers beyond 64 bits
    become floats."""
    assert repr(triton_json.read(body)) == repr(value)


@pytest.mark.parametrize("body", [b"", b"{", b"[1e400]", b'"\\ud800"', b"[NaN", b"nan", b'"Inf', b"[" * 5000 + b"NaN"])
def test_refuses_what_triton_refuses(body: bytes) -> None:
    """The reader rejects broken JSON, numbers beyond a double, and lone surrogates."""
    with pytest.raises(ValueError):
        triton_json.read(body)


# Recorded from a real Triton.
FLOATS = [
    (0.10000000149011612, b"0.10000000149011612"),
    (1.0, b"1.0"),
    (-0.0, b"-0.0"),
    (10000000272564224.0, b"10000000272564224.0"),
    (1e16, b"10000000000000000.0"),
    (1.5e20, b"150000000000000000000.0"),
    (-1e21, b"-1e21"),
    (1e22, b"1e22"),
    (1e-5, b"0.00001"),
    (1.5e-6, b"0.0000015"),
    (-1e-7, b"-1e-7"),
    (5e-324, b"5e-324"),
    (1.7976931348623157e308, b"1.7976931348623157e308"),
    (math.nan, b"NaN"),
    (math.inf, b"Infinity"),
    (-math.inf, b"-Infinity"),
]


def test_spells_numbers_as_rapidjson_does() -> None:
    """Numbers are written with the same bytes as in Triton's REST replies."""
    assert triton_json.floats([value for value, _ in FLOATS]) == b"[" + b",".join(text for _, text in FLOATS) + b"]"


def test_spells_texts_as_rapidjson_does() -> None:
    """The writer escapes quotes, backslashes and control characters only; other bytes are kept, UTF-8 or not."""
    assert triton_json.text(b'a"\\/\n\x00\x1f\x7f\xff\xc3\xbc') == b'"a\\"\\\\/\\n\\u0000\\u001F\x7f\xff\xc3\xbc"'


@pytest.mark.parametrize("end", [b"", b"\\", b"\n\\"])
def test_a_string_without_an_end_is_refused_in_time(end: bytes) -> None:
    """An unterminated string is rejected in linear time, whatever number of escaped quotes it contains."""
    with pytest.raises(ValueError):
        triton_json.read(b'["' + b'\\"Inf' * 300_000 + end)

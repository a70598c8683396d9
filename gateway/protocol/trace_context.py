"""W3C trace context: the field by which a caller tells which trace its request belongs to.

    traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
                 version, trace id, id of the caller's span, flags (01: the caller samples it)

Source: W3C Trace Context, section 3.2. Ids are in hexadecimal digits, as they travel.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TRACEPARENT = b"traceparent"
LENGTH = 55  # of a value of version 00

_DIGITS = b"0123456789abcdef"
_VALUE = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")

_NO_TRACE, _NO_SPAN = b"0" * 32, b"0" * 16
_ODD = b"13579bdf"  # last digits of the flags that sample


class TraceContext(NamedTuple):
    """What a caller says of its trace."""

    trace_id: bytes
    span_id: bytes
    is_sampled: bool


def read_traceparent(value: bytes) -> TraceContext | None:
    """The context in a field; None where it is invalid, which counts as missing (section 3.2.2.4)."""
    if value[:3] == b"00-":  # nearly always
        trace_id, span_id = value[3:35], value[36:52]
        if (
            len(value) != LENGTH
            or value[35:36] + value[52:53] != b"--"
            or value.translate(None, _DIGITS) != b"---"
            or trace_id == _NO_TRACE
            or span_id == _NO_SPAN
        ):
            return None
        return TraceContext(trace_id, span_id, value[54] in _ODD)
    found = _VALUE.fullmatch(value)
    if found is None:
        return None
    trace_id, span_id, flags = found.groups()
    return TraceContext(trace_id, span_id, flags[1] in _ODD)

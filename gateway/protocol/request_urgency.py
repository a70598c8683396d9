"""What a request says of its own urgency: a priority, a service tier, times in its head and body. Pure.

Bodies are not parsed: expressions find the names. In a JSON text a quote is escaped, so no prompt looks like a name.

Sources: Triton's ModelInferRequest (`priority`: 1 is the highest, 0 the default; `timeout`: microseconds in the queue);
vLLM's `priority` (lower is earlier, 0 the default); OpenAI's `service_tier`; the OpenAI and Anthropic SDKs'
`x-stainless-read-timeout` and `x-stainless-timeout` (seconds).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite

CLASS_FIELD = b"x-request-class"
TIMEOUT_FIELD = b"x-request-timeout"
# How long the SDKs of OpenAI and Anthropic wait for the first byte.
PATIENCE_FIELDS = (b"x-stainless-read-timeout", b"x-stainless-timeout")
URGENCY_FIELDS = frozenset({CLASS_FIELD, TIMEOUT_FIELD, *PATIENCE_FIELDS})

_PRIORITY = re.compile(rb'"priority"[ \n]{0,8}:[ \n]{0,8}(-?\d{1,9})(?![\d.eE])')
_TIMEOUT = re.compile(rb'"timeout"[ \n]{0,8}:[ \n]{0,8}(\d{1,15})(?![\d.eE])')
_FLEX = re.compile(rb'"service_tier"[ \n]{0,8}:[ \n]{0,8}"flex"')
# An entry of the map `parameters` as protobuf writes it: the name, then an int64_param or uint64_param.
_GRPC_PRIORITY = re.compile(rb"\x0a\x08priority\x12[\x02-\x0b][\x10\x28]([\x80-\xff]{0,9}[\x00-\x7f])")
_GRPC_TIMEOUT = re.compile(rb"\x0a\x07timeout\x12[\x02-\x0b][\x10\x28]([\x80-\xff]{0,9}[\x00-\x7f])")
# Parameters stand before the tensors' data.
_GRPC_BYTES = 64 * 1024
_MICROSECONDS = 1e-6
# Longer than anybody waits
_LONGEST_SECONDS = 366 * 86400.0

_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0}
_DURATION = re.compile(rb"(\d{1,9}(?:\.\d{1,9})?)[ ]?(ms|s|m)?")


@dataclass(frozen=True, slots=True)
class Urgency:
    """`classes_below` is how far below its caller's class it is, -1: the lowest class. `class_number` is the class
    itself, 0 the highest; None where none is named. `queue_seconds` is how long it may wait, 0 where that is not
    stated."""

    class_number: int | None = None
    classes_below: int = 0
    queue_seconds: float = 0.0


NO_URGENCY = Urgency()


def urgency_of(body: bytes, *, is_v2: bool) -> Urgency:
    """Of a REST request."""
    return urgency_of_v2(body) if is_v2 else urgency_of_generation(body)


def urgency_of_v2(body: bytes) -> Urgency:
    """Of the JSON of a V2 inference."""
    priority = int(found[1]) if b'"priority"' in body and (found := _PRIORITY.search(body)) else 0
    timeout = int(found[1]) if b'"timeout"' in body and (found := _TIMEOUT.search(body)) else 0
    return _of_v2(priority, timeout)


def urgency_of_message(message: bytes) -> Urgency:
    """Of a ModelInferRequest."""
    start = message[:_GRPC_BYTES]
    priority, timeout = _GRPC_PRIORITY.search(start), _GRPC_TIMEOUT.search(start)
    if priority is None and timeout is None:
        return NO_URGENCY
    return _of_v2(_varint(priority[1]) if priority else 0, _varint(timeout[1]) if timeout else 0)


def urgency_of_generation(body: bytes) -> Urgency:
    """Of a request in OpenAI's or Anthropic's API."""
    if b'"service_tier"' in body and _FLEX.search(body):
        return Urgency(classes_below=-1)
    found = _PRIORITY.search(body) if b'"priority"' in body else None
    return Urgency(classes_below=max(0, int(found[1]))) if found else NO_URGENCY


def read_seconds(text: bytes) -> float:
    """A time that a client states: `2.5`, `2.5s`, `500ms`, `1m`; 0 where it cannot be read."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        return 0.0
    seconds = float(found[1]) * _UNITS[(found[2] or b"s").decode()]
    return min(seconds, _LONGEST_SECONDS) if isfinite(seconds) else 0.0


def _of_v2(priority: int, timeout: int) -> Urgency:
    number = priority - 1 if priority > 0 else None
    return Urgency(number, queue_seconds=min(timeout * _MICROSECONDS, _LONGEST_SECONDS))


def _varint(data: bytes) -> int:
    value = 0
    for shift, byte in enumerate(data):
        value |= (byte & 0x7F) << (7 * shift)
    return value

"""W3C trace context: a request's own, as it comes in, and as it goes on to engines.

    traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
                 version, trace id, id of the caller's span, flags (01: the caller samples it)

Source: W3C Trace Context, section 3.2. Ids are in hexadecimal digits, as they travel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import getrandbits
from typing import Any, NamedTuple

from gateway.wire.http1.head import Field
from gateway.wire.http2.hpack import literal

TRACEPARENT = b"traceparent"
TRACESTATE = b"tracestate"

_VALUE = re.compile(rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_LENGTH = 55  # of a value of version 00
NO_LINK = b"", b""  # a trace's and a span's id
# Client spans of one request; those of a stream that goes on for days are left out from there on.
MAX_ATTEMPTS = 64


class TraceContext(NamedTuple):
    """What a caller says of its trace."""

    trace_id: bytes
    span_id: bytes
    is_sampled: bool


def read_traceparent(value: bytes) -> TraceContext | None:
    """The context in a field; None where it is invalid, which counts as missing (section 3.2.2.4)."""
    found = _VALUE.fullmatch(value)
    if found is None:
        return None
    version, trace_id, span_id, flags = found.groups()
    if version == b"00" and len(value) != _LENGTH:
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & 1))


def new_span_id() -> bytes:
    return b"%016x" % (getrandbits(64) or 1)


class AttemptSpan(NamedTuple):
    """One attempt at an engine. Times are of `time.monotonic`, 0 for what has not happened; `failure` is the kind of an
    error, what became of a hedge, or empty; `status` is HTTP's, 0 where there is none."""

    span_id: bytes
    engine: str
    endpoint: str
    begun_at: float
    sent_at: float
    first_byte_at: float
    ended_at: float
    status: int
    failure: str
    is_rpc: bool


class RequestTrace:
    """The trace of one request in this worker.

    `received` is the client's field, empty where there is none. One that is not `is_sampled` exists where several
    handlers answer a request, to join what they report; it goes nowhere before the end, which decides. While `is_held`,
    the end of a handler is not that of the request: it stays in `ended`, until another handler takes over or the
    request ends.
    """

    __slots__ = (
        *("_sent", "attempts", "ended", "is_held", "is_sampled", "link", "parent_id", "received", "span_id"),
        *("started_at", "trace_id"),
    )

    def __init__(
        self, trace_id: bytes, parent_id: bytes, received: bytes, started_at: float, *, is_sampled: bool = True
    ) -> None:
        self.trace_id = trace_id or b"%032x" % (getrandbits(128) or 1)
        self.span_id = b"%016x" % (getrandbits(64) or 1)
        self.parent_id = parent_id
        self.received = received
        self.started_at = started_at
        self.is_sampled = is_sampled
        self.is_held = False
        self.ended: Any = None
        self.link = NO_LINK  # the span that has caused it, of a copy
        self.attempts: list[tuple[Any, ...]] = []  # the fields of `AttemptSpan`
        self._sent: list[tuple[object, bytes]] = []  # attempts that are under way, and the ids of their spans

    def send(self, attempt: object) -> bytes:
        """The field for an engine that gets this attempt, whose span is its caller."""
        span_id = b"%016x" % (getrandbits(64) or 1)
        self._sent.append((attempt, span_id))
        return b"00-%b-%b-01" % (self.trace_id, span_id)

    def span_id_of(self, attempt: object) -> bytes:
        for sent, span_id in self._sent:
            if sent is attempt:
                return span_id
        return new_span_id()

    def add(self, spans: Sequence[tuple[Any, ...]]) -> None:
        """Attempts have ended."""
        if len(self.attempts) < MAX_ATTEMPTS:
            self.attempts += spans
        self._sent.clear()


def replaced_in_lines(lines: bytes, received: bytes, value: bytes) -> bytes:
    """Header lines of HTTP/1.1 with another traceparent. `received` is the one that they may have; rules that read it
    keep it elsewhere, where it stays."""
    if not received:
        return b"%b%b: %b\r\n" % (lines, TRACEPARENT, value)
    num = lines.count(received)
    if num == 1 and len(received) == _LENGTH:
        return lines.replace(received, value)
    if not num:
        return lines
    kept = [line for line in lines.split(b"\r\n")[:-1] if line.partition(b":")[0].lower() != TRACEPARENT]
    return b"".join([line + b"\r\n" for line in (*kept, b"%b: %b" % (TRACEPARENT, value))])


def replaced_in_literals(passing: bytes, received: bytes, value: bytes) -> bytes:
    """The same in fields of HTTP/2 that use no table. What is no valid context stays: the engine begins a trace of its
    own."""
    if not received:
        return passing + literal(TRACEPARENT, value)
    if len(received) == _LENGTH and passing.count(received) == 1:
        return passing.replace(received, value)
    return passing


def replaced_in_fields(fields: list[Field], value: bytes) -> list[Field]:
    return [*(field for field in fields if field[0] != TRACEPARENT), (TRACEPARENT, value)]

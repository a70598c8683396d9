"""The trace context of an attempt, in the fields that its engine gets: the attempt's span is the caller there."""

from __future__ import annotations

from typing import Any

from gateway.dataplane.attempts.front import Attempt
from gateway.observability.request_trace import RequestTrace
from gateway.protocol.trace_context import LENGTH, TRACEPARENT
from gateway.upstream.engine import Engine
from gateway.wire.http1.head import Field
from gateway.wire.http2.hpack import literal


def lines_with_trace(trace: RequestTrace, attempt: Attempt[Any], engine: Engine, lines: bytes) -> bytes:
    """Lines of HTTP/1.1; an engine that declares the field gets its own."""
    value = trace.send(attempt)
    return lines if TRACEPARENT in engine.extra_names else replaced_in_lines(lines, trace.received, value)


def literals_with_trace(trace: RequestTrace, attempt: Attempt[Any], engine: Engine, passing: bytes) -> bytes:
    """Fields of HTTP/2, encoded."""
    value = trace.send(attempt)
    return passing if TRACEPARENT in engine.extra_names else replaced_in_literals(passing, trace.received, value)


def fields_with_trace(trace: RequestTrace | None, attempt: object, engine: Engine, fields: list[Field]) -> list[Field]:
    if trace is None or not trace.is_sampled:
        return fields
    value = trace.send(attempt)
    return fields if TRACEPARENT in engine.extra_names else replaced_in_fields(fields, value)


def replaced_in_lines(lines: bytes, received: bytes, value: bytes) -> bytes:
    """Header lines of HTTP/1.1 with another traceparent. `received` is the one that they may have; rules that read it
    keep it elsewhere, where it stays."""
    if not received:
        return b"%b%b: %b\r\n" % (lines, TRACEPARENT, value)
    num = lines.count(received)
    if num == 1 and len(received) == LENGTH:
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
    if len(received) == LENGTH and passing.count(received) == 1:
        return passing.replace(received, value)
    return passing


def replaced_in_fields(fields: list[Field], value: bytes) -> list[Field]:
    return [*(field for field in fields if field[0] != TRACEPARENT), (TRACEPARENT, value)]

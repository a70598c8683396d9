"""The trace context of an attempt, in the fields that its engine gets: the attempt's span is the caller there."""

from __future__ import annotations

from typing import Any

from gateway.dataplane.attempts.front import Attempt
from gateway.observability.trace_context import (
    TRACEPARENT,
    RequestTrace,
    replaced_in_fields,
    replaced_in_lines,
    replaced_in_literals,
)
from gateway.upstream.engine import Engine
from gateway.wire.http1.head import Field


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

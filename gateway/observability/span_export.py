"""Spans on their way out of the control process, by OpenTelemetry's SDK: made from what workers have recorded, sent in
batches by OTLP over HTTP, in a thread of the SDK.

`pip install "pointsman[otel]"` brings the SDK; nothing else imports it.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from random import getrandbits
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.config.tracing import Tracing
from gateway.observability.exemplars import Exemplar, Exemplars
from gateway.observability.metrics import SeriesKey
from gateway.observability.request_trace import AttemptSpan
from gateway.observability.span_attributes import (
    STATUS_NAMES,
    Attributes,
    http_route,
    is_failure,
    is_generation,
    request_attributes,
    span_name,
)
from gateway.observability.spans import RequestSpan, SpanBatch

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

_log = logging.getLogger("pointsman")

_INSTALL = 'pip install "pointsman[otel]"'
# How long the end of a gateway waits for the last batch.
_CLOSE_MILLIS = 3000
# What becomes of requests that are traced, as metrics name it
RECORDED, DROPPED, EXPORTED, FAILED = "recorded", "dropped", "exported", "failed"


class TracingUnavailableError(Exception):
    """The packages that export spans are not installed."""

    def __init__(self) -> None:
        super().__init__(f"traces need OpenTelemetry's SDK: {_INSTALL}")


@dataclass(slots=True)
class TraceCounts:
    """`requests` recorded and dropped by workers, `spans` exported and failed."""

    requests: Counter[str] = field(default_factory=Counter)
    spans: Counter[str] = field(default_factory=Counter)


class SpanExport:
    """Exports the spans of one gateway."""

    def __init__(self, tracing: Tracing, version: str, exporter: SpanExporter | None = None) -> None:
        """`exporter` sends spans in place of OTLP's.

        Raises: TracingUnavailableError.
        """
        try:
            from gateway.observability.span_pipeline import make_provider
        except ImportError as error:
            raise TracingUnavailableError from error
        self.counts = TraceCounts()
        self.exemplars = Exemplars()
        self._provider: TracerProvider
        self._provider, self._ids = make_provider(tracing, version, self.counts.spans, exporter)
        self._tracer = self._provider.get_tracer("pointsman", version)

    def receive(self, batch: SpanBatch) -> None:
        """Take what a worker has recorded."""
        self.counts.requests[RECORDED] += len(batch.requests)
        self.counts.requests[DROPPED] += batch.dropped
        for request in batch.requests:
            self._export(request, batch.clock)

    def _export(self, request: RequestSpan, clock: float) -> None:
        from opentelemetry.trace import Link, SpanKind, set_span_in_context

        ids, trace_id = self._ids, _number(request.trace_id) or getrandbits(128) or 1
        links = []
        if request.link_trace:
            links.append(Link(ids.context(_number(request.link_trace), _number(request.link_span))))
        ids.use(trace_id, _number(request.span_id))
        span = self._tracer.start_span(
            span_name(request),
            ids.parent(trace_id, _number(request.parent_id)),
            SpanKind.CLIENT if request.link_trace else SpanKind.SERVER,
            _server_attributes(request),
            links,
            _nanoseconds(request.started_at, clock),
        )
        if is_failure(request):
            span.set_status(ids.error, request.reason or None)
        context = set_span_in_context(span)
        for number, attempt in enumerate(request.attempts):
            ids.use(trace_id, _number(attempt.span_id))
            began = attempt.begun_at or attempt.sent_at or request.started_at
            child = self._tracer.start_span(
                _attempt_name(request, attempt),
                context,
                SpanKind.CLIENT,
                _attempt_attributes(request, attempt, number),
                start_time=_nanoseconds(began, clock),
            )
            if attempt.first_byte_at:
                child.add_event("first_byte", timestamp=_nanoseconds(attempt.first_byte_at, clock))
            if attempt.failure or attempt.status >= 400:
                child.set_status(ids.error, attempt.failure or None)
            child.end(_nanoseconds(max(attempt.ended_at, began), clock))
        if request.first_token_at:
            span.add_event("first_token", timestamp=_nanoseconds(request.first_token_at, clock))
        span.end(_nanoseconds(request.ended_at, clock))
        if not request.link_trace and request.attempts:
            key = SeriesKey(request.route, request.arm, request.engine, request.attempts[-1].endpoint)
            seconds, at = request.ended_at - request.started_at, request.ended_at + clock
            self.exemplars.add(key, Exemplar(f"{trace_id:032x}", seconds, at))

    def close(self) -> None:
        """Send what waits, for a moment; blocks."""
        self._provider.force_flush(_CLOSE_MILLIS)
        self._provider.shutdown()


def _server_attributes(request: RequestSpan) -> Attributes:
    found = request_attributes(request)
    found["pointsman.sampled_by"] = request.why
    if request.protocol != "grpc" and (route := http_route(request.target)):
        found["http.route"] = route
    if request.waited:
        found["pointsman.limit.wait.duration"] = _seconds(request.waited - request.queued)
    if request.queued:
        found["pointsman.queue.duration"] = _seconds(request.queued)
    if request.attempts:
        found["pointsman.attempts"] = len(request.attempts)
        found["pointsman.endpoint"] = request.attempts[-1].endpoint
    if request.first_byte_at:
        found["pointsman.first_byte.duration"] = _seconds(request.first_byte_at - request.started_at)
    if is_generation(request):
        if request.provider:
            found["gen_ai.provider.name"] = request.provider
        found["gen_ai.request.stream"] = bool(request.first_token_at)
        if request.first_token_at:
            found["gen_ai.response.time_to_first_chunk"] = _seconds(request.first_token_at - request.started_at)
    return found


def _attempt_name(request: RequestSpan, attempt: AttemptSpan) -> str:
    if is_generation(request) and request.protocol != "grpc":
        return span_name(request)
    return f"{span_name(request)} {attempt.engine}" if attempt.engine else span_name(request)


def _attempt_attributes(request: RequestSpan, attempt: AttemptSpan, number: int) -> Attributes:
    """`number` counts attempts from 0."""
    parts = urlsplit(attempt.endpoint)
    found: Attributes = {
        "server.address": parts.hostname or attempt.endpoint,
        "pointsman.route": request.route,
        "pointsman.engine": attempt.engine,
        "pointsman.endpoint": attempt.endpoint,
        "pointsman.attempt": number + 1,
    }
    if parts.port is not None:
        found["server.port"] = parts.port
    if request.arm:
        found["pointsman.arm"] = request.arm
    if request.model:
        found["pointsman.model"] = request.engine_model or request.model
    is_last = number == len(request.attempts) - 1
    if attempt.is_rpc:
        found["rpc.system.name"] = "grpc"
        if is_last and 0 <= request.code < len(STATUS_NAMES):
            found["rpc.response.status_code"] = STATUS_NAMES[request.code]
    elif request.protocol != "grpc":
        found["http.request.method"] = request.method
    if attempt.status and not attempt.is_rpc:
        found["http.response.status_code"] = attempt.status
    if number:
        found["http.request.resend_count"] = number
    if attempt.failure:
        found["error.type"] = attempt.failure
    elif attempt.status >= 400:
        found["error.type"] = str(attempt.status)
    if attempt.sent_at and attempt.begun_at:
        found["pointsman.connect.duration"] = _seconds(attempt.sent_at - attempt.begun_at)
    if attempt.first_byte_at and attempt.sent_at:
        found["pointsman.first_byte.duration"] = _seconds(attempt.first_byte_at - attempt.sent_at)
    if is_last and is_generation(request):
        found["gen_ai.operation.name"] = request_attributes(request)["gen_ai.operation.name"]
        found["gen_ai.provider.name"] = request.provider
        found["gen_ai.request.model"] = request.engine_model or request.model
        found["gen_ai.usage.input_tokens"] = request.prompt_tokens
        found["gen_ai.usage.output_tokens"] = request.completion_tokens
        if request.finish_reason:
            found["gen_ai.response.finish_reasons"] = [request.finish_reason]
        if request.first_token_at and attempt.sent_at:
            found["gen_ai.response.time_to_first_chunk"] = _seconds(request.first_token_at - attempt.sent_at)
    return found


def _number(digits: bytes) -> int:
    return int(digits, 16) if digits else 0


def _seconds(seconds: float) -> float:
    return round(max(seconds, 0.0), 6)


def _nanoseconds(at: float, clock: float) -> int:
    return int((at + clock) * 1e9)

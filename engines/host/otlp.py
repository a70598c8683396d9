"""Traces as OpenTelemetry spans, sent by OTLP, where the packages for it are installed.

Source: Triton server `src/tracer.cc` (attributes and names of spans); OpenTelemetry's trace SDK.
"""

from __future__ import annotations

import time
from typing import Any

from engines.host.trace_settings import TraceSettings
from engines.host.tracing import Export, Trace

_INSTALL = "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http, or pointsman[otel]"
_DEFAULT_URL = "http://127.0.0.1:4318/v1/traces"
# The events at the start and end of a compute span within a request's span.
_COMPUTE = ("COMPUTE_START", "COMPUTE_END")


class OpenTelemetryMissingError(Exception):
    """The packages of the trace mode "opentelemetry" are missing."""

    def __init__(self) -> None:
        super().__init__(f"--trace-config mode=opentelemetry needs OpenTelemetry's SDK: {_INSTALL}")


def exporter(settings: TraceSettings) -> Export | None:
    """The exporter of traces in the mode "opentelemetry"; None in Triton's.

    Raises: OpenTelemetryMissingError.
    """
    if settings.mode != "opentelemetry":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise OpenTelemetryMissingError from error
    url = settings.options.get("url", _DEFAULT_URL)
    name, equals, value = settings.options.get("resource", "").partition("=")  # service.name=host
    resource = Resource.create({name: value} if equals else None)
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "pointsman-host"}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    return SpanExport(provider.get_tracer("pointsman"))


class SpanExport:
    """Exports a finished trace as spans: one of the request, and in it one of the computation or one of each step."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer

    def __call__(self, trace: Trace) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        # Calls are timed by the monotonic clock, spans by the wall clock.
        offset = time.time_ns() - time.monotonic_ns()
        parent = TraceContextTextMapPropagator().extract(trace.context) if trace.context else None
        self._export(trace, parent, offset)

    def _export(self, trace: Trace, parent: Any, offset: int) -> None:
        from opentelemetry import trace as api

        times = dict(trace.timestamps)
        attributes = {"triton.model_name": trace.model, "triton.model_version": trace.version}
        if trace.request_id:
            attributes["triton.request_id"] = trace.request_id
        kind = api.SpanKind.SERVER if trace.parent is None else api.SpanKind.INTERNAL
        start = times["REQUEST_START"] + offset
        span = self._tracer.start_span(
            "InferRequest", context=parent, kind=kind, start_time=start, attributes=attributes
        )
        if trace.error:
            span.set_status(api.StatusCode.ERROR, trace.error)
        for name, at_ns in trace.timestamps:
            span.add_event(name, timestamp=at_ns + offset)
        context = api.set_span_in_context(span)
        for step in trace.steps:
            self._export(step, context, offset)
        if not trace.steps and all(name in times for name in _COMPUTE):
            start, end = (times[name] + offset for name in _COMPUTE)
            if trace.instance:
                attributes["pointsman.instance"] = trace.instance
            self._tracer.start_span("compute", context=context, start_time=start, attributes=attributes).end(end)
        span.end(times["REQUEST_END"] + offset)

"""OpenTelemetry's SDK as `span_export` uses it: a provider whose spans have the ids that workers have sent to engines.

Imported only where requests are traced: the SDK is an extra.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import getrandbits

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, StatusCode, TraceFlags, set_span_in_context

from gateway.config.tracing import Tracing

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
# Where OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES give no name
_SERVICE = "pointsman"


class SpanIds(IdGenerator):
    """Gives the next span these ids; 0 stands for a new one."""

    error = StatusCode.ERROR

    def __init__(self) -> None:
        self._trace_id = self._span_id = 0

    def use(self, trace_id: int, span_id: int) -> None:
        self._trace_id, self._span_id = trace_id, span_id or getrandbits(64) or 1

    def generate_trace_id(self) -> int:
        return self._trace_id

    def generate_span_id(self) -> int:
        return self._span_id

    def context(self, trace_id: int, span_id: int) -> SpanContext:
        """That of a span in another process."""
        return SpanContext(trace_id, span_id, is_remote=True, trace_flags=_SAMPLED)

    def parent(self, trace_id: int, span_id: int) -> Context:
        """The context of a span with this parent; 0: without."""
        return (
            set_span_in_context(NonRecordingSpan(self.context(trace_id, span_id)), Context()) if span_id else Context()
        )


class CountingExporter(SpanExporter):
    """Counts what another exporter sends."""

    def __init__(self, exporter: SpanExporter, counts: Counter[str]) -> None:
        self._exporter = exporter
        self._counts = counts

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        self._counts["exported" if result is SpanExportResult.SUCCESS else "failed"] += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def make_provider(
    tracing: Tracing, version: str, counts: Counter[str], exporter: SpanExporter | None
) -> tuple[TracerProvider, SpanIds]:
    """A provider, and what gives its spans their ids."""
    ids = SpanIds()
    resource = Resource.create({"service.version": version})
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": _SERVICE}))
    provider = TracerProvider(ALWAYS_ON, resource, id_generator=ids, shutdown_on_exit=False)
    sender = exporter or OTLPSpanExporter(endpoint=tracing.endpoint)
    provider.add_span_processor(BatchSpanProcessor(CountingExporter(sender, counts)))
    return provider, ids

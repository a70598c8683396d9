"""Traces as OpenTelemetry spans."""

import sys
from dataclasses import replace

import pytest

from engines.core.calls import InferenceCall
from engines.core.messages import InferRequest
from engines.host.otlp import OpenTelemetryMissingError, SpanExport, exporter
from engines.host.trace_settings import TraceSettings
from engines.host.tracing import Tracer

SETTINGS = TraceSettings(levels=("TIMESTAMPS",), rate=1, mode="opentelemetry")


def test_the_sdk_is_required_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing OpenTelemetry package is an error that names it."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter", None)
    with pytest.raises(OpenTelemetryMissingError, match="pip install opentelemetry-sdk"):
        exporter(SETTINGS)
    assert exporter(TraceSettings()) is None


class FakeSpan:
    def __init__(self, name: str, **about: object) -> None:
        self.name = name
        self.about = about
        self.events: list[tuple[str, int]] = []
        self.ended_ns = 0

    def add_event(self, name: str, timestamp: int) -> None:
        self.events.append((name, timestamp))

    def set_status(self, code: object, text: str) -> None: ...

    def end(self, end_time: int) -> None:
        self.ended_ns = end_time


class FakeTracer:
    def __init__(self) -> None:
        self.spans: list[FakeSpan] = []

    def start_span(self, name: str, **about: object) -> FakeSpan:
        self.spans.append(FakeSpan(name, **about))
        return self.spans[-1]


def test_a_request_is_a_span_below_its_caller_s() -> None:
    """A request's span is a child of the caller's span, has Triton's attributes, and has the computation as its own
    child."""
    api = pytest.importorskip("opentelemetry.trace")
    spans = FakeTracer()
    tracer = Tracer(SETTINGS, SpanExport(spans))
    sampler = tracer.sampler("m")
    assert sampler is not None
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    call = InferenceCall(
        InferRequest("m", id="r", trace={"traceparent": parent}), lambda response, is_final: None, 1000
    )
    trace = sampler.sample("m", 3, call.request)
    assert trace is not None
    call.started_ns, call.compute_input_ns, call.compute_infer_ns, call.compute_output_ns = 2000, 10, 20, 30
    trace.end(call, 5000)
    request, compute = spans.spans
    assert (request.name, compute.name) == ("InferRequest", "compute")
    assert request.about["attributes"] == {
        "triton.model_name": "m",
        "triton.model_version": 3,
        "triton.request_id": "r",
    }
    above = api.get_current_span(request.about["context"]).get_span_context()
    assert f"{above.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    start = request.about["start_time"]
    assert isinstance(start, int)
    assert (request.ended_ns - start, compute.about["start_time"], compute.ended_ns) == (
        4000,
        start + 1000,
        start + 1060,
    )


def test_the_callers_sample_has_precedence() -> None:
    """A request whose caller samples it is traced whatever the rate, one whose caller does not is not; the rate decides
    on those without a context."""
    sampler = Tracer(replace(SETTINGS, rate=2), lambda trace: None).sampler("m")
    assert sampler is not None
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0"
    traces = [{"traceparent": f"{parent}1"}] * 3 + [{"traceparent": f"{parent}0"}] * 3 + [{}, {}, {"traceparent": "?"}]
    sampled = [sampler.sample("m", 1, InferRequest("m", trace=trace)) is not None for trace in traces]
    assert sampled == [True] * 3 + [False] * 3 + [False, True, False]

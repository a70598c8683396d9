"""Traces of real processes, decoded by OpenTelemetry's own protobuf: client, gateway, engine host."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy
import pytest
import tritonclient.grpc
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.support import plain_http
from tests.support.host import HostProcess
from tests.support.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.support.servers import SAMPLE_MODELS, GatewayProcess
from tests.support.waiting import eventually

CALLER = "00f067aa0ba902b7"
GATEWAY, HOST = "pointsman", "pointsman-host"
CHAIN = """
name: "chain"
platform: "ensemble"
max_batch_size: 8
input [{ name: "x", data_type: TYPE_INT32, dims: [ -1 ] }]
output [{ name: "y", data_type: TYPE_INT32, dims: [ -1 ] }]
ensemble_scheduling { step [{
  model_name: "adder" model_version: -1
  input_map [{ key: "a" value: "x" }, { key: "b" value: "x" }]
  output_map { key: "sum" value: "y" }
}] }
"""


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as running:
        yield running


@pytest.fixture(scope="module")
def host(receiver: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    folder = tmp_path_factory.mktemp("host")
    (folder / "models" / "chain" / "1").mkdir(parents=True)
    (folder / "models" / "chain" / "config.pbtxt").write_text(CHAIN)
    (folder / "models" / "adder").symlink_to(SAMPLE_MODELS / "adder")
    server = HostProcess.start([folder / "models"], folder, extra_args=["--otlp-endpoint", receiver.url])
    yield server.wait_ready()
    server.stop()


class Breaking(BaseHTTPRequestHandler):
    """An engine that is healthy, and breaks inferences off."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def breaking() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Breaking)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def gateway(
    host: HostProcess, breaking: str, receiver: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """The first endpoint of the engine `half` breaks inferences off."""
    rules = (
        "version: 1\nengines:\n"
        f"  host: {{endpoints: [{{url: '{host.http_url}', grpc: '127.0.0.1:{host.port('grpc')}'}}]}}\n"
        f"  half: {{endpoints: ['{breaking}', '{host.http_url}'], balance: round_robin, "
        "retry: {idempotent: infer}}\n"
        f"  copy: {{endpoints: ['{host.http_url}']}}\n"
        "routes:\n  - {name: retried, match: {header: {x-retried: 'yes'}}, engine: half}\n"
        "  - {name: mirrored, match: {header: {x-mirrored: 'yes'}}, engine: host, "
        "shadow: {engine: copy, sample: 100%}}\n"
        "  - {name: all, engine: host}\n"
    )
    options = ["--otlp-endpoint", receiver.url, "--trace-sample", "0%", "--trace-slow", "0"]
    server = GatewayProcess.start(rules, tmp_path_factory.mktemp("gateway"), extra_args=options)
    yield server.wait_ready()
    server.stop()


def body(*names: str) -> dict[str, Any]:
    return {"inputs": [{"name": name, "datatype": "INT32", "shape": [1, 1], "data": [1]} for name in names]}


def trace(receiver: OtlpReceiver, trace_id: str, number: int) -> list[ReceivedSpan]:
    """The spans of a trace, once there are so many."""

    def found() -> list[ReceivedSpan]:
        return [span for span in receiver.spans if span.trace_id == trace_id]

    eventually(lambda: len(found()) >= number)
    return found()


def only(spans: list[ReceivedSpan], service: str, kind: str, parent_id: str | None = None) -> ReceivedSpan:
    (found,) = (
        span
        for span in spans
        if (span.resource["service.name"], span.kind) == (service, kind) and parent_id in (None, span.parent_id)
    )
    return found


def test_one_trace_from_the_client_to_the_model(gateway: GatewayProcess, receiver: OtlpReceiver) -> None:
    """A request over REST to an ensemble is one trace: the client's span, the gateway's, its attempt's, the host's, the
    step's and the computation's, each the parent of the next."""
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4701"
    headers = {"traceparent": f"00-{trace_id}-{CALLER}-01", "x-request-id": "r1"}
    reply = plain_http.post(f"{gateway.http_url}/v2/models/chain/infer?key=s3cret", json=body("x"), headers=headers)
    assert reply.status_code == 200, reply.text
    spans = trace(receiver, trace_id, 5)
    server = only(spans, GATEWAY, "server", CALLER)
    attempt = only(spans, GATEWAY, "client", server.span_id)
    inferred = only(spans, HOST, "server", attempt.span_id)
    step = only(spans, HOST, "internal", inferred.span_id)
    computed = only(spans, HOST, "internal", step.span_id)
    assert server.name == "POST /v2/models/{model}/infer"
    expected = {
        "http.request.method": "POST",
        "url.path": "/v2/models/chain/infer",
        "url.query": "key=***",
        "http.route": "/v2/models/{model}/infer",
        "http.response.status_code": 200,
        "http.request.header.x-request-id": "r1",
        "pointsman.route": "all",
        "pointsman.engine": "host",
        "pointsman.model": "chain",
        "pointsman.sampled_by": "head",
    }
    assert {name: server.attributes[name] for name in expected} == expected
    assert attempt.attributes["http.response.status_code"] == 200
    assert attempt.attributes["server.address"] == "127.0.0.1"
    assert {"pointsman.connect.duration", "pointsman.first_byte.duration"} <= attempt.attributes.keys()
    assert (inferred.attributes["triton.model_name"], step.attributes["triton.model_name"]) == ("chain", "adder")
    assert computed.attributes["pointsman.instance"].startswith("adder")
    nested = server, attempt, inferred, step, computed
    starts = [span.started_ns for span in nested]
    assert starts == sorted(starts)  # by the clock of one machine


def test_calls_of_grpc_are_traced(gateway: GatewayProcess, receiver: OtlpReceiver) -> None:
    """A call, a stream and a question to the fleet over gRPC are traces, too, with the attributes of RPCs."""
    client = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{gateway.http_port}")
    tensors = [tritonclient.grpc.InferInput(name, [1, 1], "INT32") for name in ("a", "b")]
    for tensor in tensors:
        tensor.set_data_from_numpy(numpy.ones((1, 1), numpy.int32))

    def headers(trace_id: str) -> dict[str, str]:
        return {"traceparent": f"00-{trace_id}-{CALLER}-01"}

    unary, streamed, asked = (f"4bf92f3577b34da6a3ce929d0e0e47{number}" for number in ("11", "12", "13"))
    client.infer("adder", tensors, headers=headers(unary))
    answers: list[Any] = []
    client.start_stream(lambda result, error: answers.append(error or result), headers=headers(streamed))
    client.async_stream_infer("adder", tensors)
    eventually(lambda: answers)
    client.stop_stream()
    client.get_inference_statistics("adder", headers=headers(asked))
    client.close()
    for trace_id, method in ((unary, "ModelInfer"), (streamed, "ModelStreamInfer"), (asked, "ModelStatistics")):
        spans = trace(receiver, trace_id, 2 if trace_id == asked else 4)
        server = only(spans, GATEWAY, "server", CALLER)
        attempt = only(spans, GATEWAY, "client", server.span_id)
        assert server.name == server.attributes["rpc.method"] == f"inference.GRPCInferenceService/{method}"
        assert server.attributes["rpc.system.name"] == "grpc"
        assert not server.is_error and not attempt.is_error
        if trace_id != asked:
            assert (
                server.attributes["rpc.response.status_code"] == attempt.attributes["rpc.response.status_code"] == "OK"
            )
            assert only(spans, HOST, "server", attempt.span_id).attributes["triton.model_name"] == "adder"


def test_a_retry_is_two_spans_in_one(gateway: GatewayProcess, receiver: OtlpReceiver) -> None:
    """Nobody samples a request that needs a second attempt, and yet it is a trace: two spans of attempts, the first
    with its error. Metrics count what was recorded and exported."""
    for _ in range(2):  # of which one meets the other endpoint first
        reply = plain_http.post(
            f"{gateway.http_url}/v2/models/adder/infer", json=body("a", "b"), headers={"x-retried": "yes"}
        )
        assert reply.status_code == 200, reply.text
    server = eventually(
        lambda: [
            span for span in receiver.of_kind("server", GATEWAY) if span.attributes["pointsman.sampled_by"] == "retry"
        ]
    )[0]
    first, second = sorted(
        (span for span in receiver.of_kind("client", GATEWAY) if span.parent_id == server.span_id),
        key=lambda span: span.attributes["pointsman.attempt"],
    )
    assert (server.attributes["pointsman.attempts"], server.is_error) == (2, False)
    assert first.is_error and first.attributes["error.type"] == "upstream_reset"
    assert not second.is_error and second.attributes["http.request.resend_count"] == 1

    def counted(line: str) -> float:
        lines = plain_http.get(gateway.admin_url + "/metrics").text.splitlines()
        return sum(float(each.rpartition(" ")[2]) for each in lines if each.startswith(line))

    openmetrics = plain_http.get(gateway.admin_url + "/metrics", headers={"accept": "application/openmetrics-text"})
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    (requests,) = (
        family
        for family in text_string_to_metric_families(openmetrics.text)
        if family.name == "pointsman_request_seconds"
    )
    exemplars = [sample.exemplar for sample in requests.samples if sample.exemplar is not None]
    known = {span.trace_id for span in receiver.spans}
    assert exemplars and {exemplar.labels["trace_id"] for exemplar in exemplars} <= known
    assert counted('pointsman_traced_requests_total{outcome="recorded"}') >= 1
    eventually(lambda: counted('pointsman_trace_spans_total{outcome="exported"}') >= 3)


def test_copies_for_a_shadow_are_linked(gateway: GatewayProcess, receiver: OtlpReceiver) -> None:
    """The copy of a request is a trace of its own, with a link to the request's span; the candidate is called by it."""
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4721"
    headers = {"traceparent": f"00-{trace_id}-{CALLER}-01", "x-mirrored": "yes"}
    reply = plain_http.post(f"{gateway.http_url}/v2/models/adder/infer", json=body("a", "b"), headers=headers)
    assert reply.status_code == 200, reply.text
    server = only(trace(receiver, trace_id, 4), GATEWAY, "server", CALLER)
    (copy,) = eventually(lambda: [span for span in receiver.spans if span.links])
    assert copy.links == [(trace_id, server.span_id)]
    assert copy.trace_id != trace_id
    spans = trace(receiver, copy.trace_id, 4)
    attempt = only(spans, GATEWAY, "client", copy.span_id)
    assert only(spans, HOST, "server", attempt.span_id).attributes["triton.model_name"] == "adder"


def test_standard_variables_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, host: HostProcess
) -> None:
    """Without an option, the variables of OpenTelemetry say where spans go, which requests are sampled, how the service
    is called, and what the receiver gets as headers; at its end a gateway sends what waits."""
    with OtlpReceiver() as receiver:
        for name, value in {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_EXPORTER_OTLP_HEADERS": "x-api-key=k1",
            "OTEL_SERVICE_NAME": "front door",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
            "OTEL_TRACES_SAMPLER": "always_on",
        }.items():
            monkeypatch.setenv(name, value)
        rules = (
            f"version: 1\nengines: {{it: {{endpoints: ['{host.http_url}']}}}}\nroutes: [{{name: all, engine: it}}]\n"
        )
        server = GatewayProcess.start(rules, tmp_path_factory.mktemp("standard")).wait_ready()
        assert plain_http.get(f"{server.http_url}/v2/health/live").status_code == 200
        server.stop()
        (span,) = receiver.of_kind("server")
        assert span.resource["service.name"] == "front door"
        assert span.resource["deployment.environment.name"] == "test"
        assert receiver.headers["x-api-key"] == "k1"

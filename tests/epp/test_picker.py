"""The picker's service, driven by grpcio as a proxy drives it."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.protocol.ext_proc import PROCESS_PATH, BodyMode
from gateway.protocol.protobuf import message
from gateway.wire.grpc import framed
from tests.epp.engines import Engine
from tests.epp.processes import Config, PickerProcess
from tests.epp.proxy import BUFFERED, FULL_DUPLEX, NONE, Stream, destination_of, fields_of, refusal
from tests.support.kubernetes_api import KubernetesApi, endpoint
from tests.support.waiting import eventually

Engines = tuple[Engine, Engine]
Open = Callable[[], Stream]

CHAT = "/v1/chat/completions"
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
GRPC = [("content-type", "application/grpc"), ("te", "trailers")]
ONE_AT_A_TIME = {"min": 1, "max": 1, "initial": 1}


def rules_for(a: Engine, b: Engine) -> Config:
    engines: Config = {
        "v2": {"endpoints": [a.in_rules, b.in_rules]},
        "llm": {"protocol": "openai", "endpoints": [a.url, b.url], "balance": "prefix"},
        "keyed": {"protocol": "openai", "endpoints": [a.url], "headers": {"x-site": "a"}, "strip": ["x-internal"]},
        "sessions": {"endpoints": [a.url, b.url], "balance": "session"},
        "dead": {"endpoints": ["http://127.0.0.1:9"]},
        "busy": {"endpoints": [a.url], "overload": {"concurrency": ONE_AT_A_TIME, "queue": {"max_requests": 0}}},
        "queued": {"endpoints": [a.url], "overload": {"concurrency": ONE_AT_A_TIME, "queue": {"max_wait": "60s"}}},
        "learning": {"endpoints": [a.url, b.url], "models": {"source": "none", "remember": "600s"}},
        "breaking": {
            "endpoints": [a.url, b.url],
            "balance": "round_robin",
            "breaker": {"failures": 1, "open_for": "600s"},
            "health": {"interval": "0s"},
        },
    }
    by_model = {"gone": "dead", "hello": "sessions", "learn": "learning", "break": "breaking", "key": "keyed"}
    routes = [{"name": name, "match": {"model": name}, "engine": engine} for name, engine in by_model.items()]
    routes += [{"name": name, "match": {"model": name}, "engine": name} for name in ("busy", "queued")]
    routes += [
        {"name": "big", "match": {"model": "big"}, "engine": "v2", "max_body_bytes": 64},
        {"name": "alias", "match": {"model": "alias"}, "engine": "llm", "model": "one"},
        {"name": "old", "match": {"model": "old"}, "engine": "v2", "model": "one"},
        {"name": "typed", "match": {"model": "typed", "input": {"datatype": "FP32"}}, "engine": "v2", "model": "two"},
        {"name": "untyped", "match": {"model": "typed"}, "engine": "v2", "model": "one"},
        {"name": "chat", "match": {"protocol": "openai"}, "engine": "llm"},
        {"name": "all", "engine": "v2"},
    ]
    routes.insert(0, {"name": "split", "match": {"model": "split"}, "experiment": "halves"})
    halves = {
        "unit": "session",
        "arms": [
            {"name": "control", "engine": "v2", "weight": 50},
            {"name": "candidate", "engine": "sessions", "weight": 50},
        ],
    }
    return {"engines": engines, "routes": routes, "experiments": {"halves": halves}}


@pytest.fixture(scope="module")
def picker(engines: Engines, start_picker: Callable[..., PickerProcess]) -> PickerProcess:
    return start_picker(rules_for(*engines), "--max-body-bytes", "64KiB", "--endpoints", "2")


@pytest.fixture
def stream(picker: PickerProcess, open_stream: Callable[[PickerProcess], Stream]) -> Open:
    return lambda: open_stream(picker)


def chat(model: str, text: str = "hello", **more: object) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": text}], **more}).encode()


def infer_message(model: str, **fields: Any) -> bytes:
    return framed(message("inference.ModelInferRequest")(model_name=model, **fields).SerializeToString())


# Which endpoint


def test_the_head_of_a_v2_request_says_enough(engines: Engines, stream: Open) -> None:
    """The model stands in the path: the answer comes before the body, of which nothing need be sent."""
    a, b = engines
    for model, engine in (("one", a), ("two", b)):
        with stream() as each:
            assert each.head(f"/v2/models/{model}/infer").destination() == engine.address
            each.body(b"{}")
            (piece,) = each.pieces()
            assert piece.body == b"{}"
        with stream() as each:
            response = each.head(f"/v2/models/{model}/infer", modes=(BUFFERED, NONE)).answer()
            assert destination_of(response) == engine.address
            assert response.HasField("mode_override")
            assert response.mode_override.request_body_mode == NONE
            assert each.body(b"{}").answer().HasField("request_body")  # a proxy may send it all the same


def test_the_body_of_a_chat_names_the_model(engines: Engines, stream: Open) -> None:
    """The head waits for the body, which comes in pieces, and goes on behind it."""
    a, b = engines
    for model, engine in (("one", a), ("two", b)):
        body = chat(model)
        with stream() as each:
            each.head(CHAT).body(body[:10], ended=False).body(body[10:])
            assert each.destination() == engine.address
            assert b"".join(piece.body for piece in each.pieces()) == body


def test_a_message_names_the_model(engines: Engines, stream: Open) -> None:
    """A gRPC call goes to the gRPC address of an engine that has the model."""
    a, b = engines
    for model, engine in (("one", a), ("two", b)):
        body = infer_message(model)
        with stream() as each:
            each.head(INFER, fields=GRPC).body(body, ended=False).trailers()
            assert each.destination() == engine.grpc_address
            assert each.answer().request_body.response.body_mutation.streamed_response.body == body
            assert each.answer().HasField("request_trailers")


def test_a_compressed_message_names_the_model(engines: Engines, stream: Open) -> None:
    """`grpc-encoding: gzip` hides the name from nobody."""
    _, b = engines
    data = gzip.compress(infer_message("two")[5:])
    body = b"\x01" + len(data).to_bytes(4, "big") + data
    with stream() as each:
        each.head(INFER, fields=[*GRPC, ("grpc-encoding", "gzip")]).body(body)
        assert each.destination() == b.grpc_address
        assert b"".join(piece.body for piece in each.pieces()) == body


def test_the_first_message_of_a_stream_decides(engines: Engines, stream: Open) -> None:
    """ModelStreamInfer goes on with its first message, while the client still sends."""
    _, b = engines
    body = infer_message("two")
    with stream() as each:
        each.head(STREAM_INFER, fields=GRPC).body(body, ended=False)
        assert each.destination() == b.grpc_address
        each.answer()
        each.body(body, ended=False)
        assert each.answer().request_body.response.body_mutation.streamed_response.body == body
        each.body(b"", ended=True)
        assert next(each.pieces()).body == b""


def test_whole_bodies(engines: Engines, stream: Open) -> None:
    """A proxy that sends bodies whole (BUFFERED) gets the choice as the answer to the body."""
    _, b = engines
    modes = BodyMode.BUFFERED, NONE
    with stream() as each:
        each.head(CHAT, modes=modes)
        response = each.answer()
        assert response.HasField("request_headers")
        assert not response.HasField("dynamic_metadata")
        response = each.body(chat("two")).answer()
        assert destination_of(response) == b.address
        assert not response.request_body.response.HasField("body_mutation")


def test_without_a_body_the_head_must_say_enough(engines: Engines, stream: Open) -> None:
    """Where the proxy sends no bodies, V2 requests are routed, and chats are refused with what to configure."""
    a, _ = engines
    with stream() as each:
        assert each.head("/v2/models/one/infer", modes=(NONE, NONE)).destination() == a.address
    with stream() as each:
        status, body = each.head(CHAT, modes=(NONE, NONE)).refusal()
        assert status == 500
        assert b"FULL_DUPLEX_STREAMED or BUFFERED" in body


def test_proxies_that_do_not_say_how_they_send_bodies(engines: Engines, stream: Open) -> None:
    """Full-duplex is what the protocol requires of pickers."""
    _, b = engines
    with stream() as each:
        assert each.head(CHAT, modes=None).body(chat("two")).destination() == b.address


@pytest.mark.parametrize("datatype, model", [("FP32", "two"), ("INT64", "one")])
def test_rules_of_inputs_read_the_body(engines: Engines, stream: Open, datatype: str, model: str) -> None:
    """A rule on a tensor's datatype needs the body; the path gets the name of the model there."""
    tensor = {"name": "x", "datatype": datatype, "shape": [1], "data": [1]}
    with stream() as each:
        response = each.head("/v2/models/typed/infer").body(json.dumps({"inputs": [tensor]}).encode()).answer()
        fields = fields_of(response.request_headers.response)
        assert fields[b":path"] == f"/v2/models/{model}/infer".encode()
        assert destination_of(response) == engines[model == "two"].address


def test_prompts_that_begin_alike_meet(stream: Open) -> None:
    """`balance: prefix`: conversations go where their beginning went."""
    places = set()
    for turn in range(4):
        with stream() as each:
            each.head(CHAT).body(chat("shared", "x" * 1000 + f" {turn}"))
            places.add(each.destination().split(",")[0])
            list(each.pieces())
            each.reply_head(200, ended=True).answer()
            each.close()
    assert len(places) == 1


def test_sessions_keep_their_endpoint(stream: Open) -> None:
    """`balance: session`: a session has one endpoint, and sessions have several."""
    places: dict[str, set[str]] = {}
    for session in map(str, range(12)):
        for _ in range(2):
            with stream() as each:
                each.head("/v2/models/hello/infer", fields=[("x-session-id", session)])
                places.setdefault(session, set()).add(each.destination().split(",")[0])
    assert all(len(each) == 1 for each in places.values())
    assert len(set.union(*places.values())) == 2


def test_requests_under_way_count(engines: Engines, stream: Open) -> None:
    """A request counts at its endpoint from its head until the proxy ends the stream."""
    held = [stream() for _ in range(20)]
    try:
        for each in held:
            each.head("/v2/models/shared/infer")
        places = [each.destination().split(",")[0] for each in held]
        assert abs(places.count(engines[0].address) - places.count(engines[1].address)) <= 2
    finally:
        for each in held:
            each.__exit__()


def test_further_endpoints_for_retries(engines: Engines, stream: Open) -> None:
    """With --endpoints 2 an answer has a second endpoint that serves the model, where there is one."""
    with stream() as each:
        assert set(each.head("/v2/models/shared/infer").destination().split(",")) == {
            engine.address for engine in engines
        }
    with stream() as each:
        assert each.head("/v2/models/one/infer").destination() == engines[0].address


def test_the_proxy_restricts_the_choice(engines: Engines, stream: Open) -> None:
    """Only endpoints of the subset are chosen; without one that can serve, the status is 503."""
    for engine in engines:
        with stream() as each:
            each.head("/v2/models/shared/infer", subset=["10.0.0.1:80", engine.address])
            assert each.destination() == engine.address
    for subset in ([], ["10.0.0.1:80"], [engines[1].address]):
        with stream() as each:
            assert each.head("/v2/models/one/infer", subset=subset).refusal()[0] == 503, subset


def test_operations_about_a_server(engines: Engines, stream: Open) -> None:
    """Any server may answer what does not change it; load and unload are about all of them."""
    addresses = {engine.address for engine in engines}
    for path in ("/v2/health/ready", "/v2", "/v1/models"):
        with stream() as each:
            assert each.head(path, method="GET", ended=True).destination().split(",")[0] in addresses
    with stream() as each:
        path = "/inference.GRPCInferenceService/ServerReady"
        each.head(path, fields=GRPC).body(framed(b""))
        assert each.destination().split(",")[0] in {engine.grpc_address for engine in engines}
    with stream() as each:
        assert each.head("/v2/repository/models/one/load").body(b"{}").refusal()[0] in (403, 501)


def test_experiments_split_by_their_unit(stream: Open) -> None:
    """A session keeps its arm, and arms get their shares."""
    arms: dict[str, set[bytes]] = {}
    for session in map(str, range(24)):
        for _ in range(2):
            with stream() as each:
                each.head("/v2/models/split/infer", fields=[("x-session-id", session)]).destination()
                fields = fields_of(each.reply_head(200, ended=True).answer().response_headers.response)
                arms.setdefault(session, set()).add(fields[b"x-pointsman-arm"])
    assert all(len(each) == 1 for each in arms.values())
    assert set.union(*arms.values()) == {b"control", b"candidate"}


# What changes of a request


def test_a_chat_with_another_name_of_the_model(engines: Engines, stream: Open) -> None:
    """A route that renames the model changes the body, full-duplex and whole."""
    renamed = chat("one")
    with stream() as each:
        assert each.head(CHAT).body(chat("alias")).destination() == engines[0].address
        assert b"".join(piece.body for piece in each.pieces()) == renamed
    with stream() as each:
        each.head(CHAT, modes=(BUFFERED, NONE)).answer()
        response = each.body(chat("alias")).answer()
        common = response.request_body.response
        assert common.body_mutation.body == renamed
        assert fields_of(common)[b"content-length"] == str(len(renamed)).encode()


def test_a_message_with_another_name_of_the_model(engines: Engines, stream: Open) -> None:
    """A unary call gets the name in its message; a stream of messages is refused."""
    tensor = [b"0123456789" * 100]
    with stream() as each:
        each.head(INFER, fields=GRPC).body(infer_message("old", raw_input_contents=tensor))
        assert each.destination() == engines[0].grpc_address
        body = b"".join(piece.body for piece in each.pieces())
    request = message("inference.ModelInferRequest").FromString(body[5:])
    assert request.model_name == "one"
    assert list(request.raw_input_contents) == tensor
    assert int.from_bytes(body[1:5], "big") == len(body) - 5
    with stream() as each:
        response = each.head(STREAM_INFER, fields=GRPC).body(infer_message("old"), ended=False).answer()
        assert response.immediate_response.grpc_status.status == 12
        assert b"renames the model" in response.immediate_response.body


def test_fields_that_the_rules_declare(stream: Open) -> None:
    """An engine's headers are set, and stripped fields removed."""
    with stream() as each:
        response = each.head(CHAT, fields=[("x-internal", "1")]).body(chat("key")).answer()
        common = response.request_headers.response
        assert fields_of(common)[b"x-site"] == b"a"
        assert list(common.header_mutation.remove_headers) == [b"x-internal"]


# Refusals


@pytest.mark.parametrize(
    "path, body, status",
    [
        ("/v2/models/gone/infer", b"{}", 503),
        (CHAT, b"{}", 400),
        (CHAT, b"no json", 400),
        ("/v1/messages", chat("one"), 501),  # Anthropic's API at an engine that speaks OpenAI's
        ("/nothing/here", b"", 404),
        ("/v2/models/a%2fb/infer", b"{}", 400),
        ("/v2/models/big/infer", b"x" * 65, 413),
        (CHAT, b" " * (65 * 1024), 413),
    ],
)
def test_refusals(stream: Open, path: str, body: bytes, status: int) -> None:
    """A request that cannot be sent anywhere is answered by the proxy, in the words of its API."""
    with stream() as each:
        each.head(path).body(body)
        answers = [each.answer()]
        while not answers[-1].HasField("immediate_response"):
            answers.append(each.answer())
        code, content = refusal(answers[-1])
        if path == "/v1/messages":
            assert code in (400, 501)
        else:
            assert code == status
        assert "error" in json.loads(content)


def test_refused_calls_have_a_grpc_status(stream: Open) -> None:
    """gRPC's clients read the status: NOT_FOUND or UNAVAILABLE, and the message."""
    with stream() as each:
        response = each.head(INFER, fields=GRPC).body(infer_message("gone")).answer()
        assert response.immediate_response.grpc_status.status in (12, 14)
    with stream() as each:
        response = each.head("/other.Service/Call", fields=GRPC).body(framed(b"")).answer()
        assert response.immediate_response.grpc_status.status == 12
        assert b"unknown method" in response.immediate_response.body


def test_overload_is_429(stream: Open) -> None:
    """An engine with `overload:` that has no room gets no further request: 429, with when to come again."""
    with stream() as first, stream() as second:
        first.head("/v2/models/busy/infer").destination()
        response = second.head("/v2/models/busy/infer").answer()
        assert refusal(response)[0] == 429
        headers = {each.header.key for each in response.immediate_response.headers.set_headers}
        assert b"retry-after" in headers
        first.reply_head(200, ended=True)
        first.answer()
        first.close()
        with stream() as third:
            assert third.head("/v2/models/busy/infer").destination()


def test_requests_wait_for_an_overloaded_engine(stream: Open) -> None:
    """With a queue, a request waits until another one ends; a body that comes meanwhile goes on behind the head."""
    with stream() as first, stream() as second:
        first.head("/v2/models/queued/infer").destination()
        second.head("/v2/models/queued/infer").body(b"12", ended=False).body(b"34")
        first.close()
        assert second.destination()
        assert b"".join(piece.body for piece in second.pieces()) == b"1234"


# Replies


def test_replies_name_the_decision(stream: Open) -> None:
    """The route and the engine stand in the reply's head, and its body passes unchanged."""
    modes = FULL_DUPLEX, FULL_DUPLEX
    with stream() as each:
        each.head("/v2/models/one/ready", modes=modes, method="GET", ended=True).destination()
        fields = fields_of(each.reply_head(200).answer().response_headers.response)
        assert fields == {b"x-pointsman-route": b"all", b"x-pointsman-engine": b"v2"}
        each.reply_body(b"one", ended=False)
        assert each.answer().response_body.response.body_mutation.streamed_response.body == b"one"
        each.reply_body(b"", ended=True)
        assert next(each.pieces()).end_of_stream
        each.close()


def test_an_endpoint_that_lacks_a_model_gets_no_more_of_it(engines: Engines, stream: Open) -> None:
    """A reply that says so, or a 404 whose body is not sent, keeps further requests for the model away."""
    path, sent = "/v2/models/learn/infer", []
    for body in (b'{"error": "Request for unknown model: \'learn\' is not found"}', None):
        with stream() as each:
            modes = FULL_DUPLEX, NONE if body is None else FULL_DUPLEX
            sent.append(each.head(path, modes=modes).destination().split(",")[0])
            each.reply_head(404).answer()
            if body is not None:
                each.reply_body(body)
                list(each.pieces())
            each.close()
        with stream() as each:
            following = each.head(path).destination().split(",")
            if body is not None:
                assert sent[0] not in following


def test_a_failing_endpoint_is_left_out(engines: Engines, stream: Open) -> None:
    """502 counts against an endpoint, as does a reply that the proxy wrote since it reached none."""
    path = "/v2/models/break/infer"
    with stream() as each:
        failed = each.head(path).destination().split(",")[0]
        each.reply_head(503, details="upstream_reset_before_response_started{connection_failure}").answer()
        each.close()
    for _ in range(4):
        with stream() as each:
            assert failed not in each.head(path).destination().split(",")[0]


def test_the_endpoint_that_served_is_the_one_that_counts(picker: PickerProcess, engines: Engines, stream: Open) -> None:
    """A proxy that went on to the second endpoint says so: the request counts there."""
    with stream() as each:
        _, second = each.head("/v2/models/shared/infer").destination().split(",")
        each.reply_head(200, served=second).answer()
        each.close()
    text = httpx.get(f"{picker.metrics_url}/metrics").text
    assert "pointsman_epp_served_elsewhere_total 1.0" in text


# The service


def test_health(picker: PickerProcess) -> None:
    """grpc.health.v1 knows the picker's services, and HTTP says the same."""
    with grpc.insecure_channel(picker.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"):
            reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as error:
            stub.Check(health_pb2.HealthCheckRequest(service="other"), timeout=60)
        assert error.value.code() is grpc.StatusCode.NOT_FOUND
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert next(iter(watch)).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
    assert httpx.get(f"{picker.metrics_url}/livez").status_code == 200
    assert httpx.get(f"{picker.metrics_url}/readyz").status_code == 200


def test_tls_and_a_fleet_that_is_down(start_picker: Callable[..., PickerProcess], tmp_path: Path) -> None:
    """With --tls-client-ca only a proxy with a certificate is served; health says no while no engine is ready."""
    authority = trustme.CA()
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("proxy")
    server.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    server.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    engine = {"endpoints": ["http://127.0.0.1:9"], "api_key": "secret"}  # which the proxy alone may read
    rules = {"engines": {"e": engine}, "routes": [{"name": "r", "engine": "e"}]}
    files = {"--tls-cert": "cert.pem", "--tls-key": "key.pem", "--tls-client-ca": "ca.pem"}
    options = [text for name, file in files.items() for text in (name, str(tmp_path / file))]
    picker = start_picker(rules, *options)
    root = authority.cert_pem.bytes()
    own = client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes()
    with grpc.secure_channel(picker.address, grpc.ssl_channel_credentials(root, *own)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service, status in (("liveness", "SERVING"), ("readiness", "NOT_SERVING"), ("", "NOT_SERVING")):
            reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=60, wait_for_ready=True)
            assert reply.status == health_pb2.HealthCheckResponse.ServingStatus.Value(status)
    with grpc.secure_channel(picker.address, grpc.ssl_channel_credentials(root)) as channel:
        with pytest.raises(grpc.RpcError) as error:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert httpx.get(f"{picker.metrics_url}/readyz").status_code == 503


def test_malformed_calls_end_with_a_status(picker: PickerProcess) -> None:
    """What is no ProcessingRequest, or no method of the service, ends the call and nothing else."""
    with grpc.insecure_channel(picker.address) as channel:
        for path, code in (
            (PROCESS_PATH.decode(), grpc.StatusCode.INVALID_ARGUMENT),
            ("/envoy.service.ext_proc.v3.ExternalProcessor/Other", grpc.StatusCode.UNIMPLEMENTED),
        ):
            with pytest.raises(grpc.RpcError) as error:
                list(channel.stream_stream(path)(iter([b"\xff\xff"]), timeout=60))
            assert error.value.code() is code


def test_streams_may_end_by_a_reset(engines: Engines, stream: Open) -> None:
    """Envoy ends the stream of each request by a reset: thousands of them are no flood."""
    for _ in range(2100):
        with stream() as each:
            each.head("/v2/models/one/infer").answer()
    with stream() as each:
        assert each.head("/v2/models/one/infer").destination() == engines[0].address


def test_metrics_count_what_was_picked(picker: PickerProcess, stream: Open) -> None:
    """The gateway's metrics count the requests by route and endpoint, the picker's own what it has decided."""
    with stream() as each:
        each.head("/v2/models/one/infer").destination()
        each.reply_head(200, ended=True).answer()
        each.close()
    text = httpx.get(f"{picker.metrics_url}/metrics").text
    assert 'engine="v2",route="all",status="200"} ' in text
    assert 'pointsman_epp_picks_total{engine="v2"}' in text
    assert "pointsman_epp_pick_seconds_bucket" in text
    eventually(
        lambda: "pointsman_epp_open_requests 0.0" in httpx.get(f"{picker.metrics_url}/metrics").text,
        timeout_seconds=60,
    )
    assert "pointsman_epp_held_bytes 0.0" in httpx.get(f"{picker.metrics_url}/metrics").text


def test_pods_join_and_leave(
    engines: Engines, start_picker: Callable[..., PickerProcess], open_stream: Callable[[PickerProcess], Stream]
) -> None:
    """The EndpointSlices of a Service are the endpoints, over REST and gRPC, as they change."""
    a, b = engines
    with KubernetesApi() as api:
        api.put("a", [endpoint("127.0.0.1")], port=a.port, grpc=a.grpc_port)
        service = {"service": "triton", "namespace": "models", "port": "http", "api": api.url}
        rules = {
            "engines": {"triton": {"endpoints": [{"kubernetes": service, "grpc": "grpc"}]}},
            "routes": [{"name": "all", "engine": "triton"}],
        }
        picker = start_picker(rules)

        def picked(path: str, body: bytes | None = None) -> str | None:
            with open_stream(picker) as each:
                each.head(path, fields=[] if body is None else GRPC)
                response = each.body(body or b"{}").answer()
                return None if response.HasField("immediate_response") else destination_of(response)

        shared = "/v2/models/shared/infer"
        assert picked(shared) == a.address
        assert picked(INFER, infer_message("shared")) == a.grpc_address
        api.put("b", [endpoint("127.0.0.1")], port=b.port, grpc=b.grpc_port)
        eventually(lambda: picked(shared) == b.address)
        api.delete("a")
        eventually(lambda: {picked(shared) for _ in range(8)} == {b.address})
        assert picked(INFER, infer_message("shared")) == b.grpc_address
        api.delete("b")
        eventually(lambda: picked(shared) is None)

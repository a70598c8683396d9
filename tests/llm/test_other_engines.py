"""V2 clients with TF Serving, TorchServe and MLServer: real servers, except the first, which is replayed."""

import json
import queue
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.support import plain_http
from tests.support.llm import rules_for
from tests.support.mlserver import MLServer
from tests.support.servers import GatewayProcess
from tests.support.tfserving import TfServing
from tests.support.torchserve import TorchServe

Start = Callable[..., GatewayProcess]
Use = Callable[[str], GatewayProcess]


@pytest.fixture(scope="module")
def tfserving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TfServing]:
    server = TfServing.start(tmp_path_factory.mktemp("tfserving"))
    yield server.wait_ready()
    server.stop()


def column(kind: Any) -> Any:
    values = kind.InferInput("x", [3, 1], "FP32")
    values.set_data_from_numpy(numpy.array([[1.0], [2.0], [5.0]], numpy.float32))
    return values


def test_tfserving_by_rest(tfserving: TfServing, use_gateway: Use) -> None:
    """A V2 REST client can infer with binary tensors, and read metadata, config and readiness."""
    gateway = use_gateway(rules_for(tfserving.http_url, protocol="tfserving"))
    with tritonclient.http.InferenceServerClient(gateway.http_url.removeprefix("http://")) as client:
        reply = client.infer("half_plus_two", [column(tritonclient.http)])
        assert reply.as_numpy("y").tolist() == [[2.5], [3.0], [4.5]]
        assert client.get_model_metadata("half_plus_two")["inputs"][0]["datatype"] == "FP32"
        assert client.get_model_config("half_plus_two")["backend"] == "tensorflow"
        assert client.is_model_ready("half_plus_two") and not client.is_model_ready("missing")
        with pytest.raises(tritonclient.http.InferenceServerException, match="missing"):
            client.infer("missing", [column(tritonclient.http)])


def test_tfserving_for_grpc_clients(tfserving: TfServing, use_gateway: Use) -> None:
    """A V2 gRPC client can infer, unary and as a stream, and read metadata."""
    gateway = use_gateway(rules_for(tfserving.http_url, protocol="tfserving"))
    answers: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(gateway.grpc_url) as client:
        reply = client.infer("half_plus_two", [column(tritonclient.grpc)])
        assert reply.as_numpy("y").tolist() == [[2.5], [3.0], [4.5]]
        assert client.get_model_metadata("half_plus_two").inputs[0].datatype == "FP32"
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer("half_plus_two", [column(tritonclient.grpc)])
        assert answers.get(timeout=120).as_numpy("y").tolist() == [[2.5], [3.0], [4.5]]
        client.stop_stream()


def test_what_tfserving_has_no_place_for(tfserving: TfServing, start_gateway: Start) -> None:
    """Generation and model control are refused with the reason, in the client's dialect."""
    options = ["--allow-control", "load"]
    gateway = start_gateway(rules_for(tfserving.http_url, protocol="tfserving"), extra_args=options)
    chat = {"model": "half_plus_two", "messages": [{"role": "user", "content": "hi"}]}
    refused = plain_http.post(f"{gateway.http_url}/v1/chat/completions", json=chat)
    assert refused.status_code == 400 and "tfserving" in refused.json()["error"]["message"]
    refused = plain_http.post(f"{gateway.http_url}/v2/repository/models/half_plus_two/load")
    assert refused.status_code == 501 and "tfserving" in refused.json()["error"]


def test_tfserving_that_has_grpc_alone(tfserving: TfServing, use_gateway: Use) -> None:
    """REST and gRPC clients can call a TF Serving that has only its gRPC PredictionService."""
    gateway = use_gateway(rules_for(f"grpc://{tfserving.grpc_url}", protocol="tfserving"))
    with tritonclient.http.InferenceServerClient(gateway.http_url.removeprefix("http://")) as client:
        reply = client.infer("half_plus_two", [column(tritonclient.http)])
        assert reply.as_numpy("y").tolist() == [[2.5], [3.0], [4.5]]
        assert client.get_model_metadata("half_plus_two")["platform"]
        assert client.is_model_ready("half_plus_two")
        with pytest.raises(tritonclient.http.InferenceServerException, match=r"not recorded|Servable not found"):
            client.infer("missing", [column(tritonclient.http)])
    with tritonclient.grpc.InferenceServerClient(gateway.grpc_url) as client:
        reply = client.infer("half_plus_two", [column(tritonclient.grpc)])
        assert reply.as_numpy("y").tolist() == [[2.5], [3.0], [4.5]]


@pytest.mark.parametrize("by_grpc", [False, True])
def test_a_translated_requests_time_is_told(tfserving: TfServing, use_gateway: Use, by_grpc: bool) -> None:
    """A translated request gets its timing on request, whatever the engine's protocol."""
    url = f"grpc://{tfserving.grpc_url}" if by_grpc else tfserving.http_url
    gateway = use_gateway(rules_for(url, protocol="tfserving"))
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [3, 1], "data": [1.0, 2.0, 5.0]}]}
    for fields, is_told in [({"x-pointsman-timing": "1"}, True), ({}, False)]:
        reply = plain_http.post(f"{gateway.http_url}/v2/models/half_plus_two/infer", json=body, headers=fields)
        assert reply.status_code == 200
        assert ("server-timing" in reply.headers) is is_told
        if is_told:
            assert f'desc="{url}"' in reply.headers["server-timing"]


def text(kind: Any, name: str, content: bytes) -> Any:
    tensor = kind.InferInput(name, [1], "BYTES")
    tensor.set_data_from_numpy(numpy.array([content], numpy.object_))
    return tensor


@pytest.mark.parametrize("by_grpc", [False, True])
def test_torchserve(torchserve: TorchServe, use_gateway: Use, by_grpc: bool) -> None:
    """V2 clients can call a TorchServe over its REST or its gRPC, with the token from the rules."""
    url = f"grpc://127.0.0.1:{torchserve.ports['grpc']}" if by_grpc else torchserve.http_url
    key = torchserve.inference_key
    gateway = use_gateway(rules_for(url, engine={"api_key": key}, protocol="torchserve"))
    with tritonclient.http.InferenceServerClient(gateway.http_url.removeprefix("http://")) as client:
        reply = client.infer("plain", [text(tritonclient.http, "text", b"hello")])
        assert reply.as_numpy("output").tolist() == [b"HELLO"]
        with pytest.raises(tritonclient.http.InferenceServerException, match=r"handler failed|Prediction failed"):
            client.infer("plain", [text(tritonclient.http, "text", b"fail")])
        assert client.get_model_metadata("plain")["platform"] == "torchserve"
    with tritonclient.grpc.InferenceServerClient(gateway.grpc_url) as client:
        reply = client.infer("plain", [text(tritonclient.grpc, "text", b"hello")])
        assert reply.as_numpy("output").tolist() == [b"HELLO"]


def test_torchserve_streams(torchserve: TorchServe, use_gateway: Use) -> None:
    """A handler's intermediate results reach the client of generate_stream as events; a failure in the middle breaks
    the stream."""
    engine = {"api_key": torchserve.inference_key}
    gateway = use_gateway(rules_for(torchserve.http_url, engine=engine, protocol="torchserve"))
    url = f"{gateway.http_url}/v2/models/texts/generate_stream"
    reply = plain_http.post(url, json={"text_input": "as they come"})
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line]
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert "".join(event["text_output"] for event in events) == "as they come"
    got: list[str] = []
    with plain_http.stream("POST", url, json={"text_input": "one fail two"}) as broken, pytest.raises(httpx.HTTPError):
        got += broken.iter_lines()
        raise httpx.HTTPError("the stream ended as if it were whole")
    refused = plain_http.post(f"{gateway.http_url}/v2/models/texts/generate", json={"text_input": "fail now"})
    assert refused.status_code >= 400 and refused.json()["error"]


def test_mlserver_by_rest(mlserver: MLServer, use_gateway: Use) -> None:
    """V2 REST clients can use generate, streams and binary tensors, which MLServer has in other forms or lacks."""
    gateway = use_gateway(rules_for(mlserver.http_url, protocol="mlserver"))
    reply = plain_http.post(f"{gateway.http_url}/v2/models/streamer/generate", json={"text_input": "hi"})
    assert reply.json()["text_output"] == "HI"
    reply = plain_http.post(
        f"{gateway.http_url}/v2/models/streamer/generate_stream", json={"text_input": "as they come"}
    )
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line]
    assert [event["text_output"] for event in events] == ["as", "they", "come"]
    with tritonclient.http.InferenceServerClient(gateway.http_url.removeprefix("http://")) as client:
        numbers = tritonclient.http.InferInput("x", [1, 2], "FP32")
        numbers.set_data_from_numpy(numpy.array([[1.0, 2.0]], numpy.float32))
        assert client.infer("doubler", [numbers]).as_numpy("twice").tolist() == [[2.0, 4.0]]
        assert client.is_model_ready("doubler")


@pytest.mark.parametrize("protocol", ["mlserver", "kserve"])
def test_mlserver_streams_by_grpc(mlserver: MLServer, use_gateway: Use, protocol: str) -> None:
    """MLServer's ModelStreamInfer has another response message: the gateway converts it to the one that Triton's client
    reads."""
    endpoint = {"url": mlserver.http_url, "grpc": f"127.0.0.1:{mlserver.ports['grpc']}"}
    rules = {"engines": {"it": {"protocol": protocol, "endpoints": [endpoint]}}}
    gateway = use_gateway(json.dumps({"version": 1, **rules, "routes": [{"name": "all", "engine": "it"}]}))
    answers: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(gateway.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer("streamer", [text(tritonclient.grpc, "text", b"as they come")])
        found = [answers.get(timeout=120).as_numpy("answer").ravel().tolist() for _ in range(3)]
        client.stop_stream()
    assert found == [[b"as"], [b"they"], [b"come"]]


def test_mlserver_that_has_rest_alone(mlserver: MLServer, use_gateway: Use) -> None:
    """On a gRPC client's stream each message becomes a REST request and gets one response."""
    gateway = use_gateway(rules_for(mlserver.http_url, protocol="mlserver"))
    answers: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(gateway.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer("streamer", [text(tritonclient.grpc, "text", b"as they come")])
        assert answers.get(timeout=120).as_numpy("answer").ravel().tolist() == [b"AS THEY COME"]
        client.stop_stream()


def test_infer_stream(mlserver: MLServer, use_gateway: Use, triton: Any) -> None:
    """MLServer's own infer_stream passes through to it, and is translated for Triton."""
    rules = {
        "engines": {
            "mlserver": {"protocol": "mlserver", "endpoints": [mlserver.http_url]},
            "triton": {"endpoints": [triton.http_url]},
        },
        "routes": [
            {"name": "mlserver", "match": {"model": "streamer"}, "engine": "mlserver"},
            {"name": "triton", "engine": "triton"},
        ],
    }
    gateway = use_gateway(json.dumps({"version": 1, **rules}))
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["as they come"]}
    reply = plain_http.post(f"{gateway.http_url}/v2/models/streamer/infer_stream", json={"inputs": [tensor]})
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]
    assert [event["outputs"][0]["data"] for event in events] == [["as"], ["they"], ["come"]]

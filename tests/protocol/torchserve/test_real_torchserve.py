"""The TorchServe translation against a real TorchServe."""

from __future__ import annotations

import http.client
import json
from typing import Any

import grpc
import pytest

from gateway.protocol.conversion.infer import infer_request_of_rest
from gateway.protocol.operations import Operation
from gateway.protocol.protobuf import parse
from gateway.protocol.torchserve.reply import infer_response
from gateway.protocol.torchserve.request import Envelope, torchserve_request
from gateway.protocol.torchserve.translator import PREDICTIONS, prediction, predictions_request
from gateway.protocol.translator import Reply, Translator
from tests.protocol.torchserve.translations import translator
from tests.support.outsiders import fetch
from tests.support.torchserve import VERSION, TorchServe


def ask(server: TorchServe, made: Translator, key: str | None = None) -> Reply:
    """The client's reply to a request that is translated and sent to TorchServe."""
    sent = made.request()
    headers = {name.decode(): value.decode() for name, value in sent.fields}
    headers |= {
        "content-type": sent.content_type,
        "authorization": f"Bearer {key or server.inference_key}",
    }
    body = sent.body if sent.method == "POST" else None
    return made.whole(Reply(*_in_order(fetch(server.http_url + sent.path, body, headers, sent.method))))


def _in_order(found: tuple[int, str, bytes]) -> tuple[int, bytes, str]:
    status, content_type, body = found
    return status, body, content_type


def infer(server: TorchServe, model: str, inputs: list[dict[str, Any]], **where: Any) -> Any:
    parameters = where.pop("parameters", {})
    body = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    reply = ask(server, translator(Operation.INFER, body, model=model, **where))
    written = json.loads(reply.body)
    return written["outputs"] if reply.status == 200 else (reply.status, written["error"])


def tensor(name: str, datatype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


OCTETS, JSON = "application/octet-stream", "application/json"
PAIR = tensor("x", "FP32", [2, 2], [1, 2, 3, 4.5])
TEXT = tensor("t", "BYTES", [1], ["hü"])


def said(text: str, content_type: str) -> list[dict[str, Any]]:
    return [tensor("output", "BYTES", [1], [text]) | {"parameters": {"content_type": content_type}}]


INFERS: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any], Any]] = {
    "bytes": ("plain", [tensor("x", "BYTES", [1], ["hi"])], {}, said("HI", OCTETS)),
    "a text": ("plain", [TEXT], {"content_type": "text/plain; charset=utf-8"}, said("HÜ", OCTETS)),
    "numbers": ("plain", [PAIR], {}, [tensor("output", "FP64", [2, 2], [2.0, 4.0, 6.0, 9.0])]),
    "whole numbers": ("plain", [tensor("x", "UINT8", [1, 2], [1, 2])], {}, [tensor("output", "INT64", [1, 2], [2, 4])]),
    "an object": ("plain", [tensor("x", "BYTES", [1], ['json {"a": 1}'])], {}, said('{\n  "a": 1\n}', JSON)),
    "instances of an only input": ("enveloped", [tensor("instances", "INT64", [2, 1], [1, 2])], {"envelope": "json"}, [
        tensor("output", "INT64", [2, 1], [2, 4])]),
    "instances by name": ("enveloped", [PAIR, tensor("l", "BYTES", [2], ["a", "b"])], {"envelope": "json"}, [
        tensor("x", "FP64", [2, 2], [2.0, 4.0, 6.0, 9.0]), tensor("l", "BYTES", [2], ["aa", "bb"])]),
    "KServe's instances": ("enveloped", [tensor("data", "INT8", [2], [1, 2])], {"envelope": "kserve"}, [
        tensor("data", "INT64", [2], [2, 4])]),
    "KServe's tensors": ("enveloped", [PAIR, TEXT], {"envelope": "kservev2"}, [
        tensor("x", "FP64", [4], [2.0, 4.0, 6.0, 9.0]), tensor("t", "BYTES", [1], ["hühü"])]),
    "a handler that fails": ("plain", [tensor("x", "BYTES", [1], ["fail"])], {}, (500, "Prediction failed")),
    "a status of a handler's": ("plain", [tensor("x", "BYTES", [1], ["teapot"])], {}, (418, "I am a teapot")),
    "a model that is not there": ("nobody", [TEXT], {}, (404, "Model not found: nobody")),
}  # fmt: skip


@pytest.mark.parametrize("model, inputs, parameters, outputs", INFERS.values(), ids=INFERS)
def test_infer(
    torchserve: TorchServe, model: str, inputs: list[dict[str, Any]], parameters: dict[str, Any], outputs: Any
) -> None:
    """In every envelope, the handler gets the inputs in the expected form, and its result or error is returned."""
    assert infer(torchserve, model, inputs, parameters=parameters) == outputs


def test_parts(torchserve: TorchServe) -> None:
    """A plain handler gets several inputs as parts: bytes unchanged, numbers as values."""
    head = {"inputs": [tensor("n", "INT8", [2], [1, 2])]}
    head["inputs"].append({"name": "b", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 7}})
    body = json.dumps(head).encode()
    made = translator(Operation.INFER, body + b"\x03\0\0\0\r\n\xff", len(body), model="plain")
    outputs = json.loads(ask(torchserve, made).body)["outputs"]
    assert json.loads(outputs[0]["data"][0]) == {"n": [1, 2], "b": "0d0aff"}


def test_bytes_that_are_no_text(torchserve: TorchServe) -> None:
    """Binary tensors pass unchanged; the content type of the output is a parameter."""
    head = {
        "inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 9}}],
        "parameters": {"binary_data_output": True},
    }
    body = json.dumps(head).encode()
    reply = ask(torchserve, translator(Operation.INFER, body + b"\x05\0\0\0image", len(body), model="plain"))
    assert reply.head_bytes is not None
    assert reply.body[reply.head_bytes :] == b"\x05\0\0\0\x89PNG\xff"
    assert json.loads(reply.body[: reply.head_bytes])["outputs"][0]["parameters"]["content_type"] == "image/png"


def test_base64(torchserve: TorchServe) -> None:
    """TorchServe's json envelope decodes bytes sent as base64."""
    head = {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}}]}
    body = json.dumps(head).encode()
    made = translator(
        Operation.INFER, body + b"\x02\0\0\0\xff\xfe", len(body), model="enveloped", envelope=Envelope.JSON
    )
    assert json.loads(ask(torchserve, made).body)["outputs"] == [tensor("x", "BYTES", [1], ["bytes fffe"])]


def test_versions(torchserve: TorchServe) -> None:
    """A request reaches the version that it names; an unknown version is not found."""
    assert infer(torchserve, "plain", [TEXT], version=VERSION) == said("HÜ", OCTETS)
    status, error = infer(torchserve, "plain", [TEXT], version="9")
    assert (status, error) == (404, "Model version: 9 does not exist for model: plain")


def test_sequences(torchserve: TorchServe) -> None:
    """The sequence headers reach the handler."""
    parameters = {"sequence_id": 7, "sequence_start": True}
    outputs = infer(torchserve, "plain", [tensor("x", "BYTES", [1], ["headers"])], parameters=parameters)
    headers = {name.lower(): value for name, value in json.loads(outputs[0]["data"][0]).items()}
    assert headers["ts_request_sequence_id"] == "7"
    assert headers["ts_request_sequence_start"] == "true"


def test_token(torchserve: TorchServe) -> None:
    """A wrong token yields status 401, whatever status TorchServe uses."""
    made = translator(Operation.GENERATE, b'{"text_input":"hi"}', model="plain")
    reply = ask(torchserve, made, key="wrong")
    assert reply.status == 401
    assert "Token Authorization failed" in json.loads(reply.body)["error"]


@pytest.mark.parametrize(
    "body, written",
    [
        ({"text_input": "hi"}, {"text_output": "HI"}),
        ({"text_input": "hi", "id": "7"}, {"text_output": "HI", "id": "7"}),
        ({"text_input": "hi", "envelope": "kserve"}, {"text_output": {"data": "hihi"}}),
        ({"text_input": "hi", "envelope": "kservev2"}, {"text_output": "hihi"}),
    ],
)
def test_generate(torchserve: TorchServe, body: dict[str, Any], written: dict[str, Any]) -> None:
    """The handler gets the prompt, and its result is the generated text."""
    model = "enveloped" if "envelope" in body else "plain"
    reply = ask(torchserve, translator(Operation.GENERATE, json.dumps(body).encode(), model=model))
    assert json.loads(reply.body) == {"model_name": model, "model_version": ""} | written


def stream(server: TorchServe, made: Translator) -> tuple[list[dict[str, Any]], bool]:
    """The events of a stream, and whether the stream was complete."""
    torchserve_request = made.request()
    connection = http.client.HTTPConnection("127.0.0.1", server.ports["http"], timeout=120)
    try:
        headers = {"content-type": torchserve_request.content_type, "authorization": f"Bearer {server.inference_key}"}
        connection.request(torchserve_request.method, torchserve_request.path, torchserve_request.body, headers)
        reply = connection.getresponse()
        assert (reply.status, reply.getheader("content-type")) == (200, None)
        written = b""
        try:
            while piece := reply.read1():
                written += made.feed(piece)
            written += made.end()
            is_whole = True
        except (http.client.IncompleteRead, ConnectionResetError):
            is_whole = False
    finally:
        connection.close()
    return [json.loads(event.removeprefix(b"data: ")) for event in written.split(b"\n\n")[:-1]], is_whole


@pytest.mark.parametrize("beside", [{}, {"max_tokens": 5}], ids=["text", "objects"])
def test_generate_stream(torchserve: TorchServe, beside: dict[str, Any]) -> None:
    """Each chunk that the handler sends is an event; of objects, `text` is the generated text."""
    body = json.dumps({"text_input": "wörds as they come"} | beside).encode()
    events, is_whole = stream(torchserve, translator(Operation.GENERATE_STREAM, body, model="texts"))
    assert is_whole
    assert "".join(event["text_output"] for event in events) == "wörds as they come"
    assert all(event["model_name"] == "texts" for event in events)
    assert not beside or all(event["tokens"] == 1 for event in events)


def test_a_stream_of_a_handler_that_does_not_stream(torchserve: TorchServe) -> None:
    """A whole reply to a stream request is one event."""
    made = translator(Operation.GENERATE_STREAM, b'{"text_input":"hi"}', model="plain")
    events, is_whole = stream(torchserve, made)
    assert is_whole
    assert [event["text_output"] for event in events] == ["HI"]


def test_a_stream_that_breaks(torchserve: TorchServe) -> None:
    """TorchServe cuts off a stream whose handler fails, and the client detects that."""
    made = translator(Operation.GENERATE_STREAM, b'{"text_input":"one fail two"}', model="texts")
    events, is_whole = stream(torchserve, made)
    assert not is_whole
    assert [event["text_output"] for event in events] == ["one "]


@pytest.mark.parametrize(
    "model, version, ready, known",
    [("plain", "", 200, 200), ("plain", VERSION, 200, 200), ("plain", "9", 400, 404), ("nobody", "", 400, 404)],
)
def test_models(torchserve: TorchServe, model: str, version: str, ready: int, known: int) -> None:
    """TorchServe's inference port reports which models exist, without running one."""
    assert ask(torchserve, translator(Operation.MODEL_READY, model=model, version=version)).status == ready
    assert ask(torchserve, translator(Operation.MODEL_METADATA, model=model, version=version)).status == known


def test_ping(torchserve: TorchServe) -> None:
    """TorchServe's health check is GET /ping, which requires the token too."""
    headers = {"authorization": f"Bearer {torchserve.inference_key}"}
    assert fetch(f"{torchserve.http_url}/ping", headers=headers)[0] == 200
    assert fetch(f"{torchserve.http_url}/ping")[0] == 400


PING, STREAM_PREDICTIONS = (PREDICTIONS.replace("/Predictions", f"/{name}") for name in ("Ping", "StreamPredictions"))


@pytest.fixture(scope="module")
def channel(torchserve: TorchServe) -> Any:
    with grpc.insecure_channel(torchserve.grpc_url) as channel:
        yield channel


def metadata(server: TorchServe) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {server.inference_key}"),)


def test_predictions(torchserve: TorchServe, channel: grpc.Channel) -> None:
    """TorchServe reads the gateway's PredictionsRequest, and the gateway reads its PredictionResponse."""
    assert b"Healthy" in channel.unary_unary(PING)(b"", metadata=metadata(torchserve))
    message, _ = infer_request_of_rest(json.dumps({"inputs": [TEXT], "id": "7"}).encode(), None, "plain", "")
    question = torchserve_request(message)
    call = channel.unary_unary(PREDICTIONS)
    for version in ("", VERSION):
        reply = prediction(call(predictions_request(question, "plain", version), metadata=metadata(torchserve)))
        response = parse("inference.ModelInferResponse", infer_response(question, reply.prediction, model="plain"))
        assert (response.id, response.raw_output_contents[0][4:].decode()) == ("7", "HÜ")
    with pytest.raises(grpc.RpcError) as failed:
        call(predictions_request(question, "nobody"), metadata=metadata(torchserve))
    status = failed.value.code().value[0]
    assert (status, "Model not found: nobody" in failed.value.details()) == (13, True)


def test_envelopes_over_grpc(torchserve: TorchServe, channel: grpc.Channel) -> None:
    """TorchServe's kserve and kservev2 envelopes work by gRPC."""
    message, _ = infer_request_of_rest(json.dumps({"inputs": [TEXT | {"name": "data"}]}).encode(), None, "m", "")
    for envelope in (Envelope.KSERVE, Envelope.KSERVEV2):
        question = torchserve_request(message, envelope)
        data = predictions_request(question, "enveloped")
        reply = prediction(channel.unary_unary(PREDICTIONS)(data, metadata=metadata(torchserve)))
        response = parse("inference.ModelInferResponse", infer_response(question, reply.prediction, model="m"))
        assert response.raw_output_contents[0][4:].decode() == "hühü"


def test_stream_predictions(torchserve: TorchServe, channel: grpc.Channel) -> None:
    """A StreamPredictions call returns each chunk that the handler sends."""
    body = json.dumps({"inputs": [tensor("x", "BYTES", [1], ["as they come"])]}).encode()
    data = predictions_request(torchserve_request(infer_request_of_rest(body, None, "texts", "")[0]), "texts")
    replies = channel.unary_stream(STREAM_PREDICTIONS)(data, metadata=metadata(torchserve), timeout=120)
    assert [prediction(reply).prediction for reply in replies] == [b"as ", b"they ", b"come"]

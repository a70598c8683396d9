"""The MLServer translation against a real MLServer."""

from __future__ import annotations

import http.client
import json
from typing import Any

import grpc
import pytest

from gateway.protocol.conversion.stream import is_bare_response, stream_response
from gateway.protocol.mlserver.translator import MLServerGenerateTranslator
from gateway.protocol.operations import Operation
from gateway.protocol.protobuf import message, parse
from gateway.protocol.translator import JSON, Reply, Translator, V2Request
from tests.protocol.mlserver.translations import generate, generate_stream, infer
from tests.support.mlserver import MLServer
from tests.support.outsiders import fetch

STREAM_RESPONSE = "inference.ModelStreamInferResponse"


def ask(server: MLServer, made: Translator) -> Reply:
    sent = made.request()
    status, content_type, body = fetch(server.http_url + sent.path, sent.body, {"content-type": sent.content_type})
    return made.whole(Reply(status, body, content_type))


def test_it_says_that_it_is_mlserver(mlserver: MLServer) -> None:
    """MLServer's server metadata has the name `mlserver`."""
    assert json.loads(fetch(f"{mlserver.http_url}/v2")[2])["name"] == "mlserver"


def test_generate(mlserver: MLServer) -> None:
    """MLServer answers a Triton generate request, and the reply has Triton's form."""
    reply = ask(
        mlserver,
        generate(b'{"id":"7","text_input":"hi"}', model="streamer"),
    )
    assert reply.content_type == JSON
    assert json.loads(reply.body) == {
        "id": "7",
        "model_name": "streamer",
        "model_version": "1",
        "text_output": "HI",
    }


@pytest.mark.parametrize(
    "made, status, message",
    [
        (
            generate(b'{"text_input":"fail"}', model="streamer"),
            400,
            "the model failed",
        ),
        (
            generate(b'{"text_input":"a"}', model="nobody"),
            404,
            "Model nobody not found",
        ),
        (
            MLServerGenerateTranslator(
                V2Request(Operation.GENERATE, b'{"text_input":"a"}', model="streamer", version="9")
            ),
            404,
            "Model streamer with version 9 not found",
        ),
        (infer(b"{}", model="doubler"), 400, "Field required"),
    ],
)
def test_failures(mlserver: MLServer, made: Translator, status: int, message: str) -> None:
    """A failure becomes V2's error object."""
    reply = ask(mlserver, made)
    assert reply.status == status
    assert message in json.loads(reply.body)["error"]


def stream(server: MLServer, made: Translator) -> tuple[list[Any], bool]:
    """The events of a stream, and whether the stream was complete."""
    sent = made.request()
    connection = http.client.HTTPConnection("127.0.0.1", server.ports["http"], timeout=120)
    try:
        connection.request("POST", sent.path, sent.body, {"content-type": sent.content_type})
        reply = connection.getresponse()
        assert (reply.status, reply.getheader("content-type")) == (200, "text/event-stream; charset=utf-8")
        written, is_whole = b"", True
        try:
            while piece := reply.read1():
                written += made.feed(piece)
        except (http.client.IncompleteRead, ConnectionResetError):
            is_whole = False
        written += made.end() if is_whole else b""
    finally:
        connection.close()
    return events_of(written), is_whole


def test_generate_stream(mlserver: MLServer) -> None:
    """MLServer answers a Triton generate_stream request, and every response becomes an event in Triton's form."""
    events, is_whole = stream(
        mlserver,
        MLServerGenerateTranslator(
            V2Request(Operation.GENERATE_STREAM, b'{"id":"7","text_input":"a b"}', model="streamer")
        ),
    )
    assert is_whole
    names = {"id": "7", "model_name": "streamer", "model_version": "1"}
    assert events == [names | {"text_output": "a"}, names | {"text_output": "b"}]


def test_a_stream_that_breaks(mlserver: MLServer) -> None:
    """MLServer cuts off a stream that fails, and the client detects that."""
    made = MLServerGenerateTranslator(
        V2Request(Operation.GENERATE_STREAM, b'{"text_input":"a fail"}', model="streamer")
    )
    events, is_whole = stream(mlserver, made)
    assert not is_whole
    assert [event["text_output"] for event in events] == ["a"]


def test_a_stream_that_does_not_begin(mlserver: MLServer) -> None:
    """A failure before the first response is a whole reply without details."""
    reply = ask(
        mlserver,
        generate_stream(b'{"text_input":"a"}', model="nobody"),
    )
    assert reply == Reply(500, b'{"error":"Internal Server Error"}')


def test_infer_with_binary_tensors(mlserver: MLServer) -> None:
    """Binary tensors are converted to JSON in the request, and back to binary in the reply."""
    declared = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    wanted = {"name": "twice", "parameters": {"binary_data": True}}
    head = json.dumps({"id": "7", "inputs": [declared], "outputs": [wanted]}).encode()
    body = head + b"\0\0\x80\x3f\0\0\x20\xc0"  # 1, -2.5
    reply = ask(mlserver, infer(body, len(head), model="doubler"))
    assert reply.head_bytes is not None
    assert reply.content_type == "application/octet-stream"
    outputs = json.loads(reply.body[: reply.head_bytes])["outputs"]
    assert [(output["name"], output["datatype"]) for output in outputs] == [("twice", "FP32")]
    assert reply.body[reply.head_bytes :] == b"\0\0\0\x40\0\0\xa0\xc0"  # 2, -5


def test_infer_in_json(mlserver: MLServer) -> None:
    """A JSON request and its reply keep their bodies; the request gets the content type that MLServer requires."""
    body = b'{ "inputs": [{"name": "x", "shape": [1], "datatype": "INT64", "data": [4]}] }'
    made = infer(body, model="doubler")
    sent = made.request()
    assert (sent.body, sent.content_type) == (body, JSON)
    assert json.loads(ask(mlserver, made).body)["outputs"][0]["data"] == [8]


def test_model_stream_infer(mlserver: MLServer) -> None:
    """MLServer streams bare responses, with raw or typed contents; wrapped, they read as Triton's messages. A
    failure is a gRPC status."""
    with grpc.insecure_channel(mlserver.grpc_url) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        for is_raw in (False, True):
            request = message("inference.ModelInferRequest")(model_name="streamer", id="7")
            tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
            if is_raw:
                request.raw_input_contents.append(b"\x03\0\0\0a b")
            else:
                tensor.contents.bytes_contents.append(b"a b")
            replies = list(call(iter([request.SerializeToString()]), timeout=120))
            assert all(is_bare_response(reply) for reply in replies)
            written = [parse(STREAM_RESPONSE, stream_response(reply)).infer_response for reply in replies]
            assert [(response.id, response.model_name, response.outputs[0].name) for response in written] == [
                ("7", "streamer", "answer")
            ] * 2
            words = [list(response.raw_output_contents) or list(response.outputs[0].contents.bytes_contents)
                     for response in written]  # fmt: skip
            assert words == ([[b"\x01\0\0\0a"], [b"\x01\0\0\0b"]] if is_raw else [[b"a"], [b"b"]])
        request.raw_input_contents[0] = b"\x04\0\0\0fail"
        with pytest.raises(grpc.RpcError) as failed:
            list(call(iter([request.SerializeToString()]), timeout=120))
        assert failed.value.details() == "the model failed"


def events_of(data: bytes) -> list[Any]:
    return [json.loads(event.removeprefix(b"data: ")) for event in data.split(b"\n\n")[:-1]]

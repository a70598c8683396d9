"""MLServer's dialect: which messages are its own, what they are in Triton's, and all of it against a real one."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.mlserver import (
    GenerateTranslator,
    InferTranslator,
    begins_as_tritons,
    error_of,
    generate_of_inference,
    inference_of_generate,
    is_bare_response,
    is_mlserver,
    wrapped,
)
from gateway.protocol.protobuf import message, parse
from gateway.protocol.stream_messages import error_response
from gateway.protocol.translating import JSON, Reply, Translator
from gateway.wire.grpc import framed
from tests.protocol.conversion.inferences import serialised
from tests.support.mlserver import MLServer
from tests.support.outsiders import NotHereError, fetch

RESPONSE, STREAM_RESPONSE = "inference.ModelInferResponse", "inference.ModelStreamInferResponse"

# gRPC

BARE = {
    "as MLServer's are": """model_name: "m" model_version: "1" id: "7"
        outputs {name: "t" datatype: "BYTES" shape: 1 contents {bytes_contents: "a"}}""",
    "raw": 'model_name: "m" outputs {name: "t" datatype: "INT8" shape: 1} raw_output_contents: "a"',
    "a name and a version": 'model_name: "m" model_version: "1"',
    "a version that begins as a field does": 'model_name: "m" model_version: "10.2"',
    "no name": 'id: "7"',
    "parameters": 'model_name: "m" parameters {key: "a" value {int64_param: 1}}',
}
TRITONS = {
    "a response": 'infer_response {model_name: "m" model_version: "1" outputs {name: "t" datatype: "INT8" shape: 1}}',
    "an empty response": "infer_response {}",
    "an error": 'error_message: "model_name"',
    "an error and whose": 'error_message: "no" infer_response {id: "7"}',
    "an error of a model": 'error_message: "no" infer_response {model_name: "m" model_version: "1" id: "7"}',
    "nothing": "",
}


@pytest.mark.parametrize("text", BARE.values(), ids=BARE)
def test_bare_responses(text: str) -> None:
    """A ModelInferResponse is told from Triton's message by its fields, and becomes one by being put into it."""
    data = serialised(RESPONSE, text)
    assert is_bare_response(data)
    whole = parse(STREAM_RESPONSE, wrapped(data))
    assert whole.error_message == ""
    assert whole.infer_response == parse(RESPONSE, data)
    assert not is_bare_response(wrapped(data))


@pytest.mark.parametrize("text", TRITONS.values(), ids=TRITONS)
def test_tritons_responses(text: str) -> None:
    """Triton's own messages are not taken for bare ones."""
    assert not is_bare_response(serialised(STREAM_RESPONSE, text))


@pytest.mark.parametrize(
    "text, is_known",
    [(TRITONS["a response"], True), (TRITONS["an empty response"], True), (TRITONS["an error"], False)],
)
def test_the_first_bytes_of_tritons(text: str, is_known: bool) -> None:
    """Six bytes tell that a stream is Triton's, where it begins with a response."""
    assert begins_as_tritons(framed(serialised(STREAM_RESPONSE, text))) is is_known


@pytest.mark.parametrize(
    "data", [framed(serialised(RESPONSE, BARE["raw"])), framed(b"\x12\0", compressed=True), b"\0\0"]
)
def test_first_bytes_that_tell_nothing(data: bytes) -> None:
    """A bare response, a compressed one, and a beginning that is too short are not known to be Triton's."""
    assert not begins_as_tritons(data)


def test_our_errors() -> None:
    """Nor are the errors that the gateway writes into a stream."""
    assert not is_bare_response(error_response("no", b"7"))
    assert not is_bare_response(error_response("no", b""))


@given(st.text(min_size=1), st.sampled_from(["", "1", "2", "v1", "1.0"]), st.text(), st.binary(max_size=300))
def test_any_response(model: str, version: str, id: str, raw: bytes) -> None:
    """A response with an output is never mistaken, by itself or wrapped, however long."""
    response = message(RESPONSE)(model_name=model, model_version=version, id=id, raw_output_contents=[raw])
    response.outputs.add(name="x", datatype="UINT8", shape=[len(raw)])
    data = response.SerializeToString()
    assert is_bare_response(data)
    assert parse(STREAM_RESPONSE, wrapped(data)).infer_response == response
    assert not is_bare_response(wrapped(data))


@given(st.binary(max_size=40))
def test_no_message(data: bytes) -> None:
    """Whatever the bytes are, there is an answer."""
    assert is_bare_response(data) in (True, False)


@pytest.mark.parametrize(
    "metadata, is_one",
    [
        (b'{"name":"mlserver","version":"1.7.1","extensions":[]}', True),
        (b'{"name":"triton","version":"2.51.0","extensions":[]}', False),
        (b"[]", False),
        (b"<html>", False),
    ],
)
def test_server_metadata(metadata: bytes, is_one: bool) -> None:
    """A server says that it is MLServer."""
    assert is_mlserver(metadata) is is_one


# JSON

GENERATES: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "a text": (
        {"id": "7", "text_input": "hi", "parameters": {"max_tokens": 5}, "stream": True},
        {
            "id": "7",
            "parameters": {"stream": True, "max_tokens": 5},
            "inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["hi"]}],
        },
        True,
    ),
    "arrays": (
        {"a": [1, 2.5], "parameters": {"b": ["x", "y"]}, "none": None},
        {
            "inputs": [
                {"name": "a", "shape": [2], "datatype": "FP64", "data": [1, 2.5]},
                {"name": "b", "shape": [2], "datatype": "BYTES", "data": ["x", "y"]},
            ]
        },
        False,
    ),
}


@pytest.mark.parametrize("body, inference, is_text", GENERATES.values(), ids=GENERATES)
def test_generate_requests(body: dict[str, Any], inference: dict[str, Any], is_text: bool) -> None:
    """Texts and arrays are inputs, what else there is are parameters."""
    written, told = inference_of_generate(json.dumps(body).encode())
    assert (json.loads(written), told) == (inference, is_text)


def test_mlservers_own_generate_requests() -> None:
    """Who speaks MLServer's dialect is understood, and answered in it."""
    body = b'{ "inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["a"]}] }'
    made = GenerateTranslator(body, model="m", streams=True)
    assert made.request().body == body
    assert made.feed(b'data: {"model_name":"m","outputs":[]}\n\n') == b'data: {"model_name":"m","outputs":[]}\n\n'


@pytest.mark.parametrize(
    "body, message",
    [
        (b"[]", "the JSON must be an object"),
        (b'{"text_input":[]}', "'text_input' must be of numbers, of booleans or of strings"),
        (b'{"a":[1,"x"]}', "'a' must be of numbers, of booleans or of strings"),
        (b'{"a":{"b":1}}', "'a' must be a number, a boolean, a string or an array of these"),
    ],
)
def test_generate_requests_that_are_none(body: bytes, message: str) -> None:
    """What is no generate request is the client's fault."""
    with pytest.raises(GatewayError, match=message) as refused:
        inference_of_generate(body)
    assert refused.value.kind is ErrorKind.BAD_REQUEST


def event(*outputs: tuple[str, str, Any], **others: Any) -> bytes:
    told = [{"name": name, "shape": [1, 1], "datatype": datatype, "data": data} for name, datatype, data in outputs]
    return json.dumps({"model_name": "m", "model_version": "1", "id": "7", "outputs": told} | others).encode()


NAMES = {"id": "7", "model_name": "m", "model_version": "1"}
EVENTS: dict[str, tuple[bytes, bool, dict[str, Any]]] = {
    "a text, whatever its name": (event(("answer", "BYTES", ["a"])), True, {"text_output": "a"}),
    "by its name": (event(("answer", "BYTES", ["a"])), False, {"answer": "a"}),
    "several": (event(("a", "BYTES", ["x"]), ("b", "INT64", [1, 2])), True, {"a": "x", "b": [1, 2]}),
    "nested": (event(("a", "INT64", [[1], [2]])), True, {"a": [1, 2]}),
    "parameters": (
        event(("a", "INT64", [1]), parameters={"headers": {"Ce-Id": "7"}, "n": 1, "content_type": "np"}),
        False,
        {"a": 1, "n": 1},
    ),
    "none": (event(parameters=None), False, {}),
}


@pytest.mark.parametrize("data, is_text, told", EVENTS.values(), ids=EVENTS)
def test_events(data: bytes, is_text: bool, told: dict[str, Any]) -> None:
    """A response is a generate's: its outputs by name, without the headers that MLServer puts into it."""
    assert json.loads(generate_of_inference(data, is_text=is_text)) == NAMES | told


def test_events_that_are_no_responses() -> None:
    """What is no inference response stays as it is; what is no JSON, or lacks data, is the engine's fault."""
    for data in (b'{"error":"no"}', b'{"text_output":"a"}', b"[]"):
        assert generate_of_inference(data) == data
    for data in (b"{", b'{"outputs":[{}]}', b'{"outputs":[1]}'):
        with pytest.raises(GatewayError) as failed:
            generate_of_inference(data)
        assert failed.value.kind is ErrorKind.UPSTREAM_PROTOCOL


@given(st.lists(st.integers(0, 400)))
def test_a_stream_cut_anywhere(cuts: list[int]) -> None:
    """However MLServer's stream is cut, each of its events is one."""
    data = b"".join(b"data: " + event(("t", "BYTES", [word])) + b"\n\n" for word in ("a", "ö", "c"))
    at = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    made = GenerateTranslator(b'{"text_input":"x"}', model="m", streams=True)
    made.request()
    written = b"".join(made.feed(data[start:stop]) for start, stop in pairwise(at)) + made.end()
    assert [told["text_output"] for told in events_of(written)] == ["a", "ö", "c"]


def test_a_stream_that_ends_in_an_event() -> None:
    """A stream that is cut off is not taken for a whole one."""
    made = GenerateTranslator(b'{"text_input":"x"}', model="m", streams=True)
    made.request()
    assert made.feed(b'data: {"outputs"') == b""
    with pytest.raises(GatewayError, match="in the middle of an event"):
        made.end()


@pytest.mark.parametrize(
    "status, body, told, message",
    [
        (404, b'{"error":"Model m not found"}', 404, "Model m not found"),
        (404, b'{"detail":"Not Found"}', 404, "Not Found"),
        (422, b'{"detail":[{"type":"missing"}]}', 400, '[{"type":"missing"}]'),
        (500, b"Internal Server Error", 500, "Internal Server Error"),
        (500, b"", 500, "MLServer answered with status 500"),
    ],
)
def test_errors(status: int, body: bytes, told: int, message: str) -> None:
    """An error is V2's, whichever of its layers made it."""
    reply = error_of(Reply(status, body))
    assert (reply.status, json.loads(reply.body)) == (told, {"error": message})


def events_of(data: bytes) -> list[Any]:
    return [json.loads(event.removeprefix(b"data: ")) for event in data.split(b"\n\n")[:-1]]


# A real MLServer


@pytest.fixture(scope="module")
def mlserver() -> Iterator[MLServer]:
    try:
        server = MLServer.start()
    except NotHereError as error:
        pytest.skip(str(error))
    with server:
        yield server.wait_ready()


def ask(server: MLServer, made: Translator) -> Reply:
    asked = made.request()
    status, content_type, body = fetch(server.http_url + asked.path, asked.body, {"content-type": asked.content_type})
    return made.whole(Reply(status, body, content_type))


def test_it_says_that_it_is_mlserver(mlserver: MLServer) -> None:
    """Its server metadata names it."""
    assert is_mlserver(fetch(f"{mlserver.http_url}/v2")[2])


def test_generate(mlserver: MLServer) -> None:
    """Triton's generate is understood, and answered as Triton answers."""
    reply = ask(mlserver, GenerateTranslator(b'{"id":"7","text_input":"hi"}', model="streamer"))
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
        (GenerateTranslator(b'{"text_input":"fail"}', model="streamer"), 400, "the model failed"),
        (GenerateTranslator(b'{"text_input":"a"}', model="nobody"), 404, "Model nobody not found"),
        (
            GenerateTranslator(b'{"text_input":"a"}', model="streamer", version="9"),
            404,
            "Model streamer with version 9 not found",
        ),
        (InferTranslator(b"{}", model="doubler"), 400, "Field required"),
    ],
)
def test_failures(mlserver: MLServer, made: Translator, status: int, message: str) -> None:
    """What fails is an error of V2's."""
    reply = ask(mlserver, made)
    assert reply.status == status
    assert message in json.loads(reply.body)["error"]


def stream(server: MLServer, made: Translator) -> tuple[list[Any], bool]:
    """The events of a stream, and whether it ended as it should."""
    asked = made.request()
    connection = http.client.HTTPConnection("127.0.0.1", server.ports["http"], timeout=30)
    try:
        connection.request("POST", asked.path, asked.body, {"content-type": asked.content_type})
        reply = connection.getresponse()
        assert (reply.status, reply.getheader("content-type")) == (200, "text/event-stream; charset=utf-8")
        written, is_whole = b"", True
        try:
            while piece := reply.read1():
                written += made.feed(piece)
        except (http.client.IncompleteRead, ConnectionResetError):
            is_whole = False
        written += made.end() if is_whole else made.failed("the engine's stream broke off", "upstream_reset")
    finally:
        connection.close()
    return events_of(written), is_whole


def test_generate_stream(mlserver: MLServer) -> None:
    """Triton's generate_stream is understood, and every response is an event as Triton has it."""
    events, is_whole = stream(
        mlserver, GenerateTranslator(b'{"id":"7","text_input":"a b"}', model="streamer", streams=True)
    )
    assert is_whole
    names = {"id": "7", "model_name": "streamer", "model_version": "1"}
    assert events == [names | {"text_output": "a"}, names | {"text_output": "b"}]


def test_a_stream_that_breaks(mlserver: MLServer) -> None:
    """MLServer cuts a stream that fails, and the client is told."""
    made = GenerateTranslator(b'{"text_input":"a fail"}', model="streamer", streams=True)
    events, is_whole = stream(mlserver, made)
    assert not is_whole
    assert [event.get("text_output") or event["error"] for event in events] == ["a", "the engine's stream broke off"]


def test_a_stream_that_does_not_begin(mlserver: MLServer) -> None:
    """What fails before the first response is a whole reply, of which MLServer says no more than that."""
    reply = ask(mlserver, GenerateTranslator(b'{"text_input":"a"}', model="nobody", streams=True))
    assert reply == Reply(500, b'{"error":"Internal Server Error"}')


def test_infer_with_binary_tensors(mlserver: MLServer) -> None:
    """Binary tensors become JSON on the way there, and binary again on the way back."""
    declared = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    wanted = {"name": "twice", "parameters": {"binary_data": True}}
    head = json.dumps({"id": "7", "inputs": [declared], "outputs": [wanted]}).encode()
    body = head + b"\0\0\x80\x3f\0\0\x20\xc0"  # 1, -2.5
    reply = ask(mlserver, InferTranslator(body, len(head), model="doubler"))
    assert reply.head_bytes is not None
    assert reply.content_type == "application/octet-stream"
    outputs = json.loads(reply.body[: reply.head_bytes])["outputs"]
    assert [(output["name"], output["datatype"]) for output in outputs] == [("twice", "FP32")]
    assert reply.body[reply.head_bytes :] == b"\0\0\0\x40\0\0\xa0\xc0"  # 2, -5


def test_infer_in_json(mlserver: MLServer) -> None:
    """A request in JSON goes as it is, with the content type that MLServer wants, and its reply comes as it is."""
    body = b'{ "inputs": [{"name": "x", "shape": [1], "datatype": "INT64", "data": [4]}] }'
    made = InferTranslator(body, model="doubler")
    asked = made.request()
    assert (asked.body, asked.content_type) == (body, JSON)
    assert json.loads(ask(mlserver, made).body)["outputs"][0]["data"] == [8]


def test_model_stream_infer(mlserver: MLServer) -> None:
    """Each message of its stream is a bare response, with raw contents and without, and reads as Triton's once put into
    one; its failure is a status."""
    with grpc.insecure_channel(mlserver.grpc_url) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        for is_raw in (False, True):
            request = message("inference.ModelInferRequest")(model_name="streamer", id="7")
            tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
            if is_raw:
                request.raw_input_contents.append(b"\x03\0\0\0a b")
            else:
                tensor.contents.bytes_contents.append(b"a b")
            replies = list(call(iter([request.SerializeToString()]), timeout=30))
            assert all(is_bare_response(reply) for reply in replies)
            told = [parse(STREAM_RESPONSE, wrapped(reply)).infer_response for reply in replies]
            assert [(response.id, response.model_name, response.outputs[0].name) for response in told] == [
                ("7", "streamer", "answer")
            ] * 2
            words = [list(response.raw_output_contents) or list(response.outputs[0].contents.bytes_contents)
                     for response in told]  # fmt: skip
            assert words == ([[b"\x01\0\0\0a"], [b"\x01\0\0\0b"]] if is_raw else [[b"a"], [b"b"]])
        request.raw_input_contents[0] = b"\x04\0\0\0fail"
        with pytest.raises(grpc.RpcError) as failed:
            list(call(iter([request.SerializeToString()]), timeout=30))
        assert failed.value.details() == "the model failed"

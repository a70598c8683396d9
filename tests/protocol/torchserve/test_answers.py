"""TorchServe's replies to inference requests, as V2 clients receive them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.operations import Operation
from gateway.protocol.translator import Reply, Translator
from tests.protocol.torchserve.translations import translator


def made(parameters: dict[str, Any] | None = None, outputs: list[dict[str, Any]] | None = None) -> Translator:
    body: dict[str, Any] = {"id": "7", "inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "data": [1]}]}
    body |= {"parameters": parameters} if parameters else {}
    body |= {"outputs": outputs} if outputs else {}
    translated = translator(Operation.INFER, json.dumps(body).encode(), model="here", version="1")
    translated.request()
    return translated


def output(datatype: str, shape: list[int], data: list[Any], content_type: str = "", name: str = "output") -> Any:
    parameters = {"parameters": {"content_type": content_type}} if content_type else {}
    return {"name": name, "datatype": datatype, "shape": shape, "data": data} | parameters


OBJECT = '{"cat": 0.9, "dog": 0.1}'

# body and content type of the reply, the client's request -> outputs
ANSWERS: dict[str, tuple[str, str, dict[str, Any], list[Any]]] = {
    "numbers": ("[0.25, 1]", "", {}, [output("FP64", [2], [0.25, 1.0])]),
    "whole numbers": ("[\n  [1, 2],\n  [3, 4]\n]", "", {}, [output("INT64", [2, 2], [1, 2, 3, 4])]),
    "booleans": ("[true]", "", {}, [output("BOOL", [1], [True])]),
    "texts": ('["a", "b"]', "", {}, [output("BYTES", [2], ["a", "b"])]),
    "a number, where it is said to be JSON": ("5", "application/json", {}, [output("INT64", [1], [5])]),
    "a text": ("5 apples", "", {}, [output("BYTES", [1], ["5 apples"], "application/octet-stream")]),
    "a text that its handler calls one": ("[1]", "text/plain", {}, [output("BYTES", [1], ["[1]"], "text/plain")]),
    "a ragged array": ("[[1], [2, 3]]", "", {}, [output("BYTES", [1], ["[[1], [2, 3]]"], "application/json")]),
    "a mixed array": ('[1, "a"]', "", {}, [output("BYTES", [1], ['[1, "a"]'], "application/json")]),
    "null in it": ("[1, null]", "", {}, [output("BYTES", [1], ["[1, null]"], "application/json")]),
    "nothing in it": ("[]", "", {}, [output("BYTES", [1], ["[]"], "application/json")]),
    "a number beyond 64 bits": ("[9223372036854775808]", "", {}, [
        output("BYTES", [1], ["[9223372036854775808]"], "application/json")]),
    "an object": (OBJECT, "", {}, [output("BYTES", [1], [OBJECT], "application/json")]),
    "an object whose members the client names": (OBJECT, "", {"outputs": [{"name": "dog"}, {"name": "cat"}]}, [
        output("FP64", [1], [0.1], name="dog"), output("FP64", [1], [0.9], name="cat")]),
    "the only output as the client names it": ("[1]", "", {"outputs": [{"name": "y"}]}, [
        output("INT64", [1], [1], name="y")]),
    "predictions": ('{"predictions": [[1, 2], [3, 4]]}', "", {}, [output("INT64", [2, 2], [1, 2, 3, 4])]),
    "predictions that are objects": ('{"predictions": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]}', "", {}, [
        output("INT64", [2], [1, 2], name="a"), output("BYTES", [2], ["x", "y"], name="b")]),
    "no JSON after all": ("[1, 2", "", {}, [output("BYTES", [1], ["[1, 2"], "application/octet-stream")]),
    "kservev2": (
        '{"id": "made up", "model_name": "there", "model_version": null, "outputs": '
        '[{"name": "x", "datatype": "INT64", "data": [2], "shape": [1]}]}',
        "",
        {"parameters": {"envelope": "kservev2"}},
        [output("INT64", [1], [2], name="x")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("body, content_type, wants, outputs", ANSWERS.values(), ids=ANSWERS)
def test_answers(body: str, content_type: str, wants: dict[str, Any], outputs: list[Any]) -> None:
    """Outputs get the datatype and shape of the JSON in the reply; any other reply is one BYTES output."""
    reply = made(**wants).whole(Reply(200, body.encode(), content_type))
    assert (reply.status, reply.content_type, reply.head_bytes) == (200, "application/json", None)
    written = json.loads(reply.body)
    assert written.pop("outputs") == outputs
    assert written == {"id": "7", "model_name": "here", "model_version": "1"}


def test_numbers_that_are_not_finite() -> None:
    """NaN and Infinity in TorchServe's JSON are kept in V2's."""
    body = made().whole(Reply(200, b"[NaN, -Infinity]", "")).body
    assert b'"datatype":"FP64","shape":[2],"data":[NaN,-Infinity]' in body


def test_binary_outputs() -> None:
    """Outputs requested in binary follow the JSON."""
    reply = made({"binary_data_output": True}).whole(Reply(200, b"\x89PNG", "image/png"))
    assert reply.content_type == "application/octet-stream"
    assert reply.head_bytes is not None
    head = json.loads(reply.body[: reply.head_bytes])
    assert head["outputs"] == [
        {
            "name": "output",
            "datatype": "BYTES",
            "shape": [1],
            "parameters": {"content_type": "image/png", "binary_data_size": 8},
        }
    ]
    assert reply.body[reply.head_bytes :] == b"\x04\0\0\0\x89PNG"


@pytest.mark.parametrize(
    "body, wants, message",
    [
        (b"[1]", {"outputs": [{"name": "a"}, {"name": "b"}]}, "has no output 'a', only output"),
        (b'{"outputs": [{}]}', {"parameters": {"envelope": "kservev2"}}, "'name' is missing"),
    ],
)
def test_answers_that_nobody_understands(body: bytes, wants: dict[str, Any], message: str) -> None:
    """A malformed reply, or one without a requested output, is an upstream protocol error."""
    with pytest.raises(GatewayError, match=message) as failed:
        made(**wants).whole(Reply(200, body, ""))
    assert failed.value.kind is ErrorKind.UPSTREAM_PROTOCOL


ERRORS = {
    "an unknown model": (404, '{"code": 404, "type": "ModelNotFoundException", "message": "no m"}', 404, "no m"),
    "a wrong token": (400, '{"code": 400, "type": "InvalidKeyException", "message": "Token"}', 401, "Token"),
    "a handler that failed": (503, '{"code": 503, "type": "InternalServerException", "message": "x"}', 500, "x"),
    "a full queue": (503, '{"code": 503, "type": "ServiceUnavailableException", "message": "x"}', 503, "x"),
    "no JSON": (502, "Bad Gateway", 502, "Bad Gateway"),
    "nothing": (500, "", 500, "TorchServe answered with status 500"),
}


@pytest.mark.parametrize("status, body, written, message", ERRORS.values(), ids=ERRORS)
def test_errors(status: int, body: str, written: int, message: str) -> None:
    """An error becomes V2's error object; a wrong token has status 401 and a handler's failure 500."""
    reply = made().whole(Reply(status, body.encode()))
    assert (reply.status, json.loads(reply.body)) == (written, {"error": message})


def test_models() -> None:
    """Model readiness is queried with OPTIONS; the metadata is one BYTES input and one BYTES output."""
    ready = translator(Operation.MODEL_READY, model="here")
    request = ready.request()
    assert (request.method, request.path, request.body) == ("OPTIONS", "/predictions/here", b"")
    assert ready.whole(Reply(200, b"{}")) == Reply(200)
    assert ready.whole(Reply(404, b'{"message": "no"}')) == Reply(400, b'{"error":"no"}')

    metadata = translator(Operation.MODEL_METADATA, model="here", version="2")
    assert metadata.request().path == "/predictions/here/2"
    assert json.loads(metadata.whole(Reply(200, b"{}")).body) == {
        "name": "here",
        "versions": ["2"],
        "platform": "torchserve",
        "inputs": [{"name": "input", "datatype": "BYTES", "shape": [1]}],
        "outputs": [{"name": "output", "datatype": "BYTES", "shape": [1]}],
    }
    assert metadata.whole(Reply(404, b'{"message": "no"}')) == Reply(404, b'{"error":"no"}')

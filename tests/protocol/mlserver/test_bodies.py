"""Conversion between MLServer's JSON and Triton's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.mlserver.bodies import error_of, generate_of_inference, inference_of_generate
from gateway.protocol.translator import Reply

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
    """Strings and arrays become inputs; other values become parameters."""
    written, report = inference_of_generate(json.dumps(body).encode())
    assert (json.loads(written), report) == (inference, is_text)


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
    """A malformed generate request is a bad request."""
    with pytest.raises(GatewayError, match=message) as refused:
        inference_of_generate(body)
    assert refused.value.kind is ErrorKind.BAD_REQUEST


def event(*outputs: tuple[str, str, Any], **others: Any) -> bytes:
    written = [{"name": name, "shape": [1, 1], "datatype": datatype, "data": data} for name, datatype, data in outputs]
    return json.dumps({"model_name": "m", "model_version": "1", "id": "7", "outputs": written} | others).encode()


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


@pytest.mark.parametrize("data, is_text, written", EVENTS.values(), ids=EVENTS)
def test_events(data: bytes, is_text: bool, written: dict[str, Any]) -> None:
    """A response becomes a generate event with its outputs by name and without MLServer's headers."""
    assert json.loads(generate_of_inference(data, is_text=is_text)) == NAMES | written


def test_events_that_are_no_responses() -> None:
    """JSON that is no inference response is kept; invalid JSON and malformed outputs are upstream protocol errors."""
    for data in (b'{"error":"no"}', b'{"text_output":"a"}', b"[]"):
        assert generate_of_inference(data) == data
    for data in (b"{", b'{"outputs":[{}]}', b'{"outputs":[1]}'):
        with pytest.raises(GatewayError) as failed:
            generate_of_inference(data)
        assert failed.value.kind is ErrorKind.UPSTREAM_PROTOCOL


@pytest.mark.parametrize(
    "status, body, written, message",
    [
        (404, b'{"error":"Model m not found"}', 404, "Model m not found"),
        (404, b'{"detail":"Not Found"}', 404, "Not Found"),
        (422, b'{"detail":[{"type":"missing"}]}', 400, '[{"type":"missing"}]'),
        (500, b"Internal Server Error", 500, "Internal Server Error"),
        (500, b"", 500, "MLServer answered with status 500"),
    ],
)
def test_errors(status: int, body: bytes, written: int, message: str) -> None:
    """An error of any layer of MLServer becomes V2's error object."""
    reply = error_of(Reply(status, body))
    assert (reply.status, json.loads(reply.body)) == (written, {"error": message})

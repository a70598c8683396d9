"""MLServer's infer_stream translated for Triton, with a test against a real one."""

from __future__ import annotations

import http.client
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.demo.triton import TritonProcess
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.mlserver.translator import generate_of_inference_request, inference_of_event
from tests.protocol.mlserver.translations import infer_stream


def tensor(name: str, data: Any, datatype: str = "BYTES") -> dict[str, Any]:
    return {"name": name, "shape": [len(data)], "datatype": datatype, "data": data}


REQUESTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a text": ({"inputs": [tensor("text_input", ["hi"])]}, {"text_input": "hi"}),
    "all that there is": (
        {
            "id": "7",
            "parameters": {"temperature": 0.5, "headers": {"Ce-Id": "7"}, "content_type": "str"},
            "inputs": [tensor("a", [[1, 2], [3, 4]], "INT32"), tensor("b", ["x"])],
        },
        {"id": "7", "a": [1, 2, 3, 4], "b": "x", "parameters": {"temperature": 0.5}},
    ),
}


@pytest.mark.parametrize("body, generate", REQUESTS.values(), ids=REQUESTS)
def test_requests(body: dict[str, Any], generate: dict[str, Any]) -> None:
    """Tensors become keys; parameters that only MLServer's clients use are dropped."""
    request = infer_stream(json.dumps(body).encode(), model="m", version="2").request()
    assert request.path == "/v2/models/m/versions/2/generate_stream"
    assert json.loads(request.body) == generate


@pytest.mark.parametrize(
    "body, kind, message",
    [
        ({}, ErrorKind.BAD_REQUEST, "'inputs' is missing"),
        ({"inputs": [{"name": "a"}]}, ErrorKind.BAD_REQUEST, "input 'a': 'data' is missing"),
        ({"inputs": [tensor("id", ["a"])]}, ErrorKind.UNSUPPORTED, "input 'id' has the name of another member"),
        ({"inputs": [tensor("a", [1]), tensor("a", [2])]}, ErrorKind.UNSUPPORTED, "input 'a' has the name"),
        ({"inputs": [tensor("a", [1])], "parameters": {"a": 1}}, ErrorKind.UNSUPPORTED, "input 'a' has the name"),
    ],
)
def test_refusals(body: dict[str, Any], kind: ErrorKind, message: str) -> None:
    """A request that is malformed, or that generate cannot express, is rejected."""
    with pytest.raises(GatewayError, match=message) as refused:
        generate_of_inference_request(json.dumps(body).encode())
    assert refused.value.kind is kind


EVENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a text": ({"model_name": "m", "model_version": "1", "text_output": "a"}, {
        "model_name": "m", "model_version": "1", "outputs": [tensor("text_output", ["a"])]}),
    "numbers": ({"a": [1, 2.5], "b": 3, "c": True}, {"outputs": [
        tensor("a", [1, 2.5], "FP64"), tensor("b", [3], "INT64"), tensor("c", [True], "BOOL")]}),
    "parameters": ({"sequence_id": 0, "sequence_end": False, "t": "a"}, {
        "parameters": {"sequence_id": 0, "sequence_end": False}, "outputs": [tensor("t", ["a"])]}),
    "of no kind": ({"a": {"b": 1}, "c": None}, {"outputs": [tensor("a", ['{"b":1}'])]}),
    "an error": ({"error": "no"}, {"error": "no"}),
}  # fmt: skip


@pytest.mark.parametrize("event, inference", EVENTS.values(), ids=EVENTS)
def test_events(event: dict[str, Any], inference: dict[str, Any]) -> None:
    """Each key and each parameter of an event becomes an output; an error stays an error."""
    assert json.loads(inference_of_event(json.dumps(event).encode())) == inference


@given(st.lists(st.integers(0, 200)))
def test_a_stream_cut_anywhere(cuts: list[int]) -> None:
    """The events do not depend on how the stream is split into chunks."""
    data = "".join(f'data: {{"text_output": "{word}"}}\n\n' for word in ("a", "ö", "c")).encode()
    at = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    made = infer_stream(b"", model="m")
    written = b"".join(made.feed(data[start:stop]) for start, stop in pairwise(at)) + made.end()
    assert [event["outputs"][0]["data"] for event in events_of(written)] == [["a"], ["ö"], ["c"]]


@pytest.mark.parametrize("data", [b"data: [1]\n\n", b"data: {"])
def test_streams_that_are_none(data: bytes) -> None:
    """A malformed or incomplete event is an upstream protocol error."""
    made = infer_stream(b"", model="m")
    with pytest.raises(GatewayError) as failed:
        made.feed(data)
        made.end()
    assert failed.value.kind is ErrorKind.UPSTREAM_PROTOCOL


def events_of(data: bytes) -> list[Any]:
    return [json.loads(event.removeprefix(b"data: ")) for event in data.split(b"\n\n")[:-1]]


@pytest.mark.triton
def test_a_real_triton(triton: TritonProcess) -> None:
    """An infer_stream client reads Triton's outputs, and its error, in MLServer's form."""
    inputs = [tensor("text_input", ["hi"]), tensor("count", [2], "INT32"), tensor("fail_after", [1], "INT32")]
    for sent, written in ((inputs[:2], [["hi"], ["hi"]]), (inputs, [["hi"], None])):
        made = infer_stream(json.dumps({"inputs": sent}).encode(), model="repeater")
        requested = made.request()
        connection = http.client.HTTPConnection("127.0.0.1", triton.http_port, timeout=120)
        try:
            connection.request("POST", requested.path, requested.body, {"content-type": requested.content_type})
            reply = connection.getresponse()
            assert reply.status == 200
            events = events_of(made.feed(reply.read()) + made.end())
        finally:
            connection.close()
        assert [event["outputs"][0]["data"] if "outputs" in event else None for event in events] == written

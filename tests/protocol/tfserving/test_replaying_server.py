"""V2 requests against a stand-in for TF Serving that gives the documented replies."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import grpc
import orjson
import pytest

from gateway.protocol.conversion.infer import WantedOutputs, rest_of_infer_response
from gateway.protocol.tfserving.inference import InferTranslation
from gateway.protocol.tfserving.model_info import (
    read_signatures,
    read_signatures_message,
    read_versions_message,
    ready_of,
    target,
)
from gateway.protocol.tfserving.rpcs import EngineCall, metadata_call, status_call
from gateway.protocol.translator import Reply
from tests.protocol.tfserving.exchanges import DOCUMENTED
from tests.protocol.tfserving.translations import infer_translation
from tests.support.tfserving import TfServing, answer


@pytest.mark.parametrize(
    "method, path, body, status, written", DOCUMENTED, ids=[f"{row[0]} {row[1]} {row[2]}" for row in DOCUMENTED]
)
def test_what_is_documented(method: str, path: str, body: Any, status: int, written: Any) -> None:
    """The stand-in's statuses and JSON are those of TF Serving's documentation, tests and error texts."""
    answered = answer(method, path, b"" if body is None else json.dumps(body).encode())
    assert (answered[0], json.loads(answered[1])) == (status, written)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TfServing]:
    started = TfServing.start(tmp_path_factory.mktemp("tfserving"))
    try:
        yield started.wait_ready()
    finally:
        started.stop()


def fetch(server: TfServing, method: str, path: str, body: bytes = b"") -> Reply:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=120)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return Reply(response.status, response.read(), response.headers["content-type"])
    finally:
        connection.close()


def call(server: TfServing, asked: EngineCall) -> bytes:
    with grpc.insecure_channel(server.grpc_url) as channel:
        answered: bytes = channel.unary_unary(asked.path.decode())(asked.message, timeout=120)
        return answered


X = {"name": "x", "datatype": "FP32", "shape": [3, 1], "data": [1, 2, 5]}
PAIR = X | {"shape": [2], "data": [2, 4]}
CLASSIFY = {"method": "classify", "signature_name": "classify_x_to_y"}
REGRESS = {"method": "regress", "signature_name": "regress_x_to_y"}


def translation(inputs: list[Any], parameters: dict[str, Any], **named: str) -> InferTranslation:
    body = orjson.dumps({"id": "7", "parameters": parameters, "inputs": inputs})
    body = body.replace(b'"Infinity"', b"Infinity")
    return infer_translation(body, None, **({"model": "half_plus_two"} | named))


@pytest.mark.parametrize(
    "inputs, parameters, named, outputs",
    [
        ([X], {}, {}, {"y": [2.5, 3.0, 4.5]}),
        ([X], {"tf_format": "instances"}, {"model": "half_plus_three"}, {"y": [3.5, 4.0, 5.5]}),
        ([X], {}, {"model": "half_plus_two:stable"}, {"y": [2.5, 3.0, 4.5]}),
        ([X | {"data": [1, "Infinity", 0]}], {}, {"version": "123"}, {"y": [2.5, float("inf"), 2.0]}),
        ([PAIR], CLASSIFY, {}, {"classes": ["", ""], "scores": [3.0, 4.0]}),
        ([PAIR], REGRESS, {}, {"outputs": [3.0, 4.0]}),
    ],
)
def test_v2_infer_by_rest(
    server: TfServing, inputs: list[Any], parameters: dict[str, Any], named: dict[str, str], outputs: dict[str, Any]
) -> None:
    """A V2 request is translated with the server's signatures, and its reply is translated back."""
    made = translation(inputs, parameters, **named)
    made.know(read_signatures(fetch(server, "GET", made.requested.target.metadata_path).body))
    request = made.request()
    reply = made.whole(fetch(server, request.method, request.path, request.body))
    assert reply.status == 200
    assert {each["name"]: each["data"] for each in json.loads(reply.body)["outputs"]} == outputs


@pytest.mark.parametrize(
    "inputs, parameters, named, outputs",
    [
        ([X], {}, {}, {"y": [2.5, 3.0, 4.5]}),
        ([X], {"signature_name": "serving_default"}, {"model": "half_plus_two:stable"}, {"y": [2.5, 3.0, 4.5]}),
        ([PAIR], CLASSIFY, {}, {"classes": ["", ""], "scores": [3.0, 4.0]}),
        ([PAIR], REGRESS, {"version": "123"}, {"outputs": [3.0, 4.0]}),
    ],
)
def test_v2_infer_by_grpc(
    server: TfServing, inputs: list[Any], parameters: dict[str, Any], named: dict[str, str], outputs: dict[str, Any]
) -> None:
    """By gRPC too, a V2 request and its reply are translated; the reply names the version that served it."""
    signatures = read_signatures_message(call(server, metadata_call(target("half_plus_two"))))
    made = translation(inputs, parameters, **named)
    made.know(signatures)
    message = made.response_of_call(call(server, made.call()))
    reply = json.loads(rest_of_infer_response(message, WantedOutputs()).data)
    assert (reply["id"], reply["model_version"]) == ("7", "123")
    assert {each["name"]: each["data"] for each in reply["outputs"]} == outputs


def test_readiness_and_errors(server: TfServing) -> None:
    """A served model is ready by name, version and label; an error becomes V2's error object."""
    for model, version, ready in (
        *(("half_plus_two", "", True), ("half_plus_two", "123", True), ("half_plus_two:stable", "", True)),
        *(("half_plus_two", "7", False), ("half_plus_two:other", "", False), ("half", "", False)),
    ):
        written = fetch(server, "GET", target(model, version).path)
        assert ready_of(written.status, written.body) is ready
    assert read_versions_message(call(server, status_call(target("half_plus_two")))) == ["123"]
    made = infer_translation(orjson.dumps({"inputs": [X]}), None, model="half")
    request = made.request()
    reply = made.whole(fetch(server, request.method, request.path, request.body))
    assert (reply.status, json.loads(reply.body)) == (404, {"error": "Servable not found for request: Latest(half)"})
    with pytest.raises(grpc.RpcError) as refused:
        call(server, made.call())
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND

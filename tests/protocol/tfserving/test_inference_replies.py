"""TF Serving's replies as V2 clients receive them."""

import json
import struct
from typing import Any

import orjson
import pytest

from gateway.protocol.conversion.errors import read_error
from gateway.protocol.protobuf import parse
from gateway.protocol.tfserving.inference import Inference, InferTranslation
from gateway.protocol.translator import Reply
from tests.protocol.conversion.inferences import Tensor, request_of
from tests.protocol.tfserving.exchanges import NOT_FOUND
from tests.protocol.tfserving.translations import BOTH, PAIR, TWO, X, infer_translation, translation
from tests.protocol.tfserving.vectors import RESPONSES


def answer(translated: InferTranslation, body: bytes) -> dict[str, Any]:
    reply = translated.whole(Reply(200, body))
    assert (reply.status, reply.content_type, reply.head_bytes) == (200, "application/json", None)
    written: dict[str, Any] = json.loads(reply.body)
    return written


def output(name: str, datatype: str, shape: list[int], data: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


ANSWERS = [
    ("columns", {}, b'{"outputs": [[2.5], [3.0], [4.5]]}', [output("y", "FP32", [3, 1], [2.5, 3.0, 4.5])]),
    ("rows", {}, b'{"predictions": [2.5, 3.0, 4.5]}', [output("y", "FP32", [3], [2.5, 3.0, 4.5])]),
    ("named", {}, b'{"outputs": {"y": [2.5]}}', [output("y", "FP32", [1], [2.5])]),
    ("a scalar", {}, b'{"outputs": 2.5}', [output("y", "FP32", [], [2.5])]),
    ("no rows", {}, b'{"predictions": []}', [output("y", "FP32", [0, 1], [])]),
    (
        "several columns",
        {"signatures": BOTH, "inputs": PAIR},
        b'{"outputs": {"n": [1.5, 2], "raw_bytes": [{"b64": "cA=="}, {"b64": ""}]}}',
        [output("n", "FP32", [2], [1.5, 2.0]), output("raw_bytes", "BYTES", [2], ["p", ""])],
    ),
    (
        "several rows",
        {"signatures": BOTH, "inputs": PAIR},
        b'{"predictions": [{"raw_bytes": {"b64": "cA=="}, "n": 1.5}, {"n": 2.0, "raw_bytes": {"b64": ""}}]}',
        [output("n", "FP32", [2], [1.5, 2.0]), output("raw_bytes", "BYTES", [2], ["p", ""])],
    ),
    (
        "no rows of several",
        {"signatures": BOTH, "inputs": PAIR},
        b'{"predictions": []}',
        [output("n", "FP32", [0], []), output("raw_bytes", "BYTES", [0], [])],
    ),
    (
        "those that are wanted, in that order",
        {"signatures": BOTH, "inputs": PAIR, "outputs": [{"name": "raw_bytes"}, {"name": "n"}]},
        b'{"outputs": {"n": [1.5], "raw_bytes": ["p"]}}',
        [output("raw_bytes", "BYTES", [1], ["p"]), output("n", "FP32", [1], [1.5])],
    ),
    ("unknown, numbers", {"signatures": None}, b'{"outputs": [[1, 2]]}', [output("output_0", "INT64", [1, 2], [1, 2])]),
    (
        "unknown, the one that is wanted",
        {"signatures": None, "outputs": [{"name": "z"}]},
        b'{"predictions": [{"b64": "cA=="}]}',
        [output("z", "BYTES", [1], ["p"])],
    ),
    (
        "unknown, several",
        {"signatures": None},
        b'{"predictions": [{"b": 1.5, "a": true}]}',
        [output("a", "BOOL", [1], [True]), output("b", "FP64", [1], [1.5])],
    ),
    (
        "regress",
        {"parameters": {"method": "regress"}},
        b'{"results": [3.5, 4.0]}',
        [output("outputs", "FP32", [2], [3.5, 4.0])],
    ),
    (
        "classify",
        {"parameters": {"method": "classify"}},
        b'{"result": [[["a", 0.5], ["", 1.0]], [["b", 0.25], ["c", NaN]]]}',
        [
            output("classes", "BYTES", [2, 2], ["a", "", "b", "c"]),
            output("scores", "FP32", [2, 2], [0.5, 1.0, 0.25, float("nan")]),
        ],
    ),
    (
        "classify, the scores",
        {"parameters": {"method": "classify"}, "outputs": [{"name": "scores"}]},
        b'{"results": [[["", 1.0]]]}',
        [output("scores", "FP32", [1, 1], [1.0])],
    ),
]


@pytest.mark.parametrize("options, body, outputs", [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS])
def test_what_is_answered_by_rest(options: dict[str, Any], body: bytes, outputs: Any) -> None:
    """Names and datatypes come from the signature, shapes from the nested lists."""
    written = answer(translation(**options), body)
    assert repr(written) == repr({"model_name": "half", "model_version": "", "outputs": outputs})


def test_a_reply_in_binary() -> None:
    """Outputs requested in binary are raw tensors after the JSON."""
    body = orjson.dumps({"id": "7", "inputs": [X], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]})
    translated = infer_translation(body, None, model="half", version="123")
    translated.know(TWO)
    reply = translated.whole(Reply(200, b'{"outputs": [2.5, Infinity]}'))
    assert (reply.content_type, reply.body[reply.head_bytes :]) == (
        "application/octet-stream",
        struct.pack("<2f", 2.5, float("inf")),
    )
    assert orjson.loads(reply.body[: reply.head_bytes]) == {
        "id": "7",
        "model_name": "half",
        "model_version": "123",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}],
    }


GRPC_ANSWERS = {
    "predict": [("y", "FP32", [3, 1], struct.pack("<3f", 2.5, 3.0, 4.5))],
    "classify": [("classes", "BYTES", [2, 1], bytes(8)), ("scores", "FP32", [2, 1], struct.pack("<2f", 3.0, 4.0))],
    "regress": [("outputs", "FP32", [2], struct.pack("<2f", 3.0, 4.0))],
}


@pytest.mark.parametrize("name", GRPC_ANSWERS)
def test_what_is_answered_by_grpc(name: str) -> None:
    """Replies serialized by TF Serving's classes are read; the version is the one in the reply."""
    parameters = {} if name == "predict" else {"method": name}
    sent = request_of([Tensor("x", "FP32", [1], bytes(4))], parameters, "7").SerializeToString()
    response = parse(
        "inference.ModelInferResponse", Inference(sent, model="half:stable").response_of_call(RESPONSES[name])
    )
    assert (response.id, response.model_name, response.model_version) == ("7", "half", "123")
    outputs = [(each.name, each.datatype, list(each.shape)) for each in response.outputs]
    found = [(*each, raw) for each, raw in zip(outputs, response.raw_output_contents, strict=True)]
    assert found == GRPC_ANSWERS[name]


@pytest.mark.parametrize(
    "body, text",
    [
        (NOT_FOUND, "Servable not found for request: Latest(half)"),
        (
            b'{ "error": "it\\\'s \\303\\274" }',
            '{ "error": "it\\\'s \\303\\274" }',
        ),  # C escapes are invalid JSON
        (b"<html>\xff", "<html>\ufffd"),
        (b'{"error": {"code": 3}}', '{"code":3}'),
        (b"", ""),
    ],
)
def test_errors_keep_their_status_and_their_text(body: bytes, text: str) -> None:
    """An error keeps its status and text, in V2's error object."""
    assert read_error(body)[0] == text
    reply = translation().whole(Reply(404, body, "text/plain"))
    assert (reply.status, orjson.loads(reply.body), reply.content_type) == (404, {"error": text}, "application/json")

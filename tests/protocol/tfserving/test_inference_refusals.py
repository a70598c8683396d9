"""V2 inference requests that TF Serving cannot serve, and replies of TF Serving that cannot be read."""

from typing import Any

import orjson
import pytest

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.tfserving.inference import Inference
from gateway.protocol.translator import Reply
from tests.protocol.conversion.inferences import Tensor, request_of
from tests.protocol.tfserving.translations import BOTH, PAIR, X, infer_translation, translation

REFUSED = [
    ("unknown parameter", {"parameters": {"priority": 2}}, ErrorKind.UNSUPPORTED, "'priority' cannot be told to TF"),
    (
        "of a tensor",
        {"outputs": [{"name": "y", "parameters": {"classification": 3}}]},
        ErrorKind.UNSUPPORTED,
        "'classification' cannot be told to TF Serving; leave it out, or set 'unsupported: drop'",
    ),
    ("method", {"parameters": {"method": "explain"}}, ErrorKind.BAD_REQUEST, "must be one of predict, classify"),
    ("format", {"parameters": {"tf_format": "rows"}}, ErrorKind.BAD_REQUEST, "must be one of inputs, instances"),
    ("no text", {"parameters": {"signature_name": 3}}, ErrorKind.BAD_REQUEST, "'signature_name' must be a string"),
    ("unknown input", {"inputs": [X | {"name": "z"}]}, ErrorKind.BAD_REQUEST, "unexpected inference input 'z' for"),
    ("datatype", {"inputs": [X | {"datatype": "INT32"}]}, ErrorKind.BAD_REQUEST, "data-type is 'INT32', but model"),
    ("unknown output", {"outputs": [{"name": "z"}]}, ErrorKind.BAD_REQUEST, "unexpected inference output 'z'"),
    ("no inputs", {"inputs": []}, ErrorKind.BAD_REQUEST, "has no inputs"),
    ("one input twice", {"inputs": [X, X]}, ErrorKind.BAD_REQUEST, "several inputs of one name"),
    ("two versions", {"model": "half:stable", "version": "3"}, ErrorKind.BAD_REQUEST, "in several versions"),
    (
        "rows of a scalar",
        {"inputs": [X | {"shape": [], "data": [1]}], "parameters": {"tf_format": "instances"}},
        ErrorKind.BAD_REQUEST,
        "input 'x' has no axis, and rows are along the first",
    ),
    (
        "rows of several sizes",
        {
            "inputs": [PAIR[0], PAIR[1] | {"shape": [1], "data": ["p"]}],
            "signatures": BOTH,
            "parameters": {"tf_format": "instances"},
        },
        ErrorKind.BAD_REQUEST,
        "a first axis of one size, and have 'a' 2, 't' 1",
    ),
    (
        "a feature in FP64",
        {"inputs": [X | {"datatype": "FP64"}], "parameters": {"method": "classify"}},
        ErrorKind.UNSUPPORTED,
        "input 'x' is FP64, and an example's feature is FP32",
    ),
    (
        "a feature beyond INT64",
        {
            "inputs": [{"name": "u", "datatype": "UINT64", "shape": [1], "data": [2**63]}],
            "parameters": {"method": "regress"},
        },
        ErrorKind.UNSUPPORTED,
        "cannot hold",
    ),
    (
        "shared memory",
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "parameters": {"shared_memory_region": "r"}}]},
        ErrorKind.UNSUPPORTED,
        "input 'x' is in shared memory",
    ),
    (
        "shared memory for an output",
        {"outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]},
        ErrorKind.UNSUPPORTED,
        "output 'y' is to be in shared memory",
    ),
]


@pytest.mark.parametrize("options, kind, text", [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_is_refused(options: dict[str, Any], kind: ErrorKind, text: str) -> None:
    """A malformed or unsupported request is rejected; the error names the cause."""
    with pytest.raises(GatewayError, match=text) as refused:
        translation(**options).request()
    assert refused.value.kind is kind


@pytest.mark.parametrize("options, kind, text", [row[1:] for row in REFUSED if row[0].startswith("a feature")])
def test_what_is_refused_by_grpc(options: dict[str, Any], kind: ErrorKind, text: str) -> None:
    """The gRPC translation rejects malformed and unsupported requests too."""
    with pytest.raises(GatewayError, match=text) as refused:
        translation(**options).call()
    assert refused.value.kind is kind


def test_a_raw_binary_request_is_refused() -> None:
    """A raw binary request is unsupported, because its input has no name."""
    with pytest.raises(GatewayError, match="name the input") as refused:
        infer_translation(b"1234", 0, model="half")
    assert refused.value.kind is ErrorKind.UNSUPPORTED


def test_what_has_no_place_is_dropped_where_the_engine_is_set_so() -> None:
    """With `drop`, unsupported parameters are left out and listed."""
    made = translation(
        [X | {"parameters": {"hint": 1}}], {"priority": 2}, [{"name": "y", "parameters": {"hint": 2}}], drop=True
    )
    assert orjson.loads(made.request().body) == {"inputs": {"x": [[1.0], [2.0], [5.0]]}}
    assert made.request().dropped == ("priority", "hint")


@pytest.mark.parametrize(
    "options, body, text",
    [
        ({}, b"<html>", "unexpected"),
        ({}, b"{}", "neither 'outputs' nor 'predictions'"),
        ({}, b"[]", "neither 'outputs' nor 'predictions'"),
        ({}, b'{"predictions": {}}', "neither 'outputs' nor 'predictions'"),
        ({}, b'{"outputs": ["a"]}', "output 'y': its data has a string in it, which is no FP32"),
        ({}, b'{"outputs": [[1.0], []]}', "its rows are not of one shape"),
        ({}, b'{"outputs": [[1.0], 2.0]}', "its rows are not of one shape"),
        (
            {"inputs": PAIR, "signatures": BOTH},
            b'{"outputs": [1.0]}',
            "one output without a name, the model has n, raw",
        ),
        ({"inputs": PAIR, "signatures": BOTH}, b'{"predictions": [1.0]}', "one output without a name"),
        ({"inputs": PAIR, "signatures": BOTH}, b'{"predictions": [{"n": 1.0}, {}]}', "with the same members"),
        ({"inputs": PAIR, "signatures": BOTH}, b'{"predictions": [{"n": 1.0}, 1]}', "with the same members"),
        ({"parameters": {"method": "regress"}}, b'{"outputs": [1.0]}', "no 'results'"),
        ({"parameters": {"method": "regress"}}, b'{"results": [[1.0]]}', "'results' must be numbers"),
        ({"parameters": {"method": "regress"}}, b'{"results": ["a"]}', "no FP32"),
        ({"parameters": {"method": "classify"}}, b'{"results": [1.0]}', r"lists of \[label, score\]"),
        ({"parameters": {"method": "classify"}}, b'{"results": [[["a"]]]}', r"lists of \[label, score\]"),
        ({"parameters": {"method": "classify"}}, b'{"results": [[["a", 1.0]], []]}', "not of one shape"),
        ({"parameters": {"method": "classify"}}, b'{"results": [[["a", "b"]]]}', "no FP32"),
    ],
)
def test_replies_that_cannot_be_understood(options: dict[str, Any], body: bytes, text: str) -> None:
    """A malformed REST reply is an upstream protocol error."""
    with pytest.raises(GatewayError, match=text) as refused:
        translation(**options).whole(Reply(200, body))
    assert refused.value.kind is ErrorKind.UPSTREAM_PROTOCOL


@pytest.mark.parametrize("parameters", [{}, {"method": "classify"}, {"method": "regress"}])
@pytest.mark.parametrize("data", [b"\x0a\xff", b"\x0a\x02\x0a\xff", b"\xff", b"\x12\x02\x0a\xff"])
def test_messages_that_cannot_be_understood(parameters: dict[str, str], data: bytes) -> None:
    """A malformed gRPC reply is an upstream protocol error."""
    sent = request_of([Tensor("x", "FP32", [1], bytes(4))], parameters).SerializeToString()
    with pytest.raises(GatewayError) as refused:
        Inference(sent, model="half").response_of_call(data)
    assert refused.value.kind is ErrorKind.UPSTREAM_PROTOCOL


def test_an_output_that_the_model_does_not_answer() -> None:
    """Without signatures, a requested output that is missing from the reply is a bad request."""
    translated = translation(signatures=None, outputs=[{"name": "y"}, {"name": "z"}])
    with pytest.raises(GatewayError, match="unexpected inference output 'z'") as refused:
        translated.whole(Reply(200, b'{"outputs": {"y": [1.0]}}'))
    assert refused.value.kind is ErrorKind.BAD_REQUEST

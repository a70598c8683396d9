"""V2 inference requests translated for TorchServe."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.operations import Operation
from gateway.protocol.torchserve.request import Envelope
from gateway.protocol.translator import EngineRequest
from tests.protocol.torchserve.translations import translator


def tensor(name: str, datatype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


HI = tensor("x", "BYTES", [1], ["hi"])
PAIR = tensor("x", "FP32", [2, 2], [1, 2, 3, 4.5])
LABELS = tensor("label", "BYTES", [2], ["a", "b"])


def asked(body: dict[str, Any], envelope: Envelope = Envelope.BODY, **where: Any) -> EngineRequest:
    return translator(Operation.INFER, json.dumps(body).encode(), model="m", envelope=envelope, **where).request()


# inputs and parameters -> content type and body
BODIES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str, bytes]] = {
    "bytes are the body": ([HI], {}, "application/octet-stream", b"hi"),
    "of a type that the client names": ([HI], {"content_type": "text/plain"}, "text/plain", b"hi"),
    "numbers are nested arrays": ([PAIR], {}, "application/json", b"[[1.0,2.0],[3.0,4.5]]"),
    "a scalar": ([tensor("x", "INT8", [], [7])], {}, "application/json", b"7"),
    "booleans": ([tensor("x", "BOOL", [2], [True, False])], {}, "application/json", b"[true,false]"),
    "json has an instance for each row": (
        [PAIR, LABELS],
        {"envelope": "json"},
        "application/json",
        b'{"instances":[{"x":[1.0,2.0],"label":"a"},{"x":[3.0,4.5],"label":"b"}]}',
    ),
    "kserve has the same": (
        [LABELS],
        {"envelope": "kserve"},
        "application/json",
        b'{"instances":[{"label":"a"},{"label":"b"}]}',
    ),
    "an input that is the instances": (
        [tensor("instances", "INT32", [2, 1], [1, 2])],
        {"envelope": "json"},
        "application/json",
        b'{"instances":[[1],[2]]}',
    ),
    "kservev2 is V2": (
        [PAIR, HI],
        {"envelope": "kservev2"},
        "application/json",
        b'{"inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":[1.0,2.0,3.0,4.5]},'
        b'{"name":"x","shape":[1],"datatype":"BYTES","data":["hi"]}]}',
    ),
}


@pytest.mark.parametrize("inputs, parameters, content_type, body", BODIES.values(), ids=BODIES)
def test_bodies(inputs: list[dict[str, Any]], parameters: dict[str, Any], content_type: str, body: bytes) -> None:
    """Inputs become one body, in the envelope that the request selects."""
    request = asked({"inputs": inputs, "parameters": parameters})
    assert request == EngineRequest("/predictions/m", body, content_type)


def test_the_envelope_of_a_rule() -> None:
    """The engine's envelope applies if the request selects none."""
    assert asked({"inputs": [LABELS]}, Envelope.JSON).body == b'{"instances":[{"label":"a"},{"label":"b"}]}'
    assert asked({"inputs": [HI], "parameters": {"envelope": "body"}}, Envelope.JSON).body == b"hi"


def test_several_inputs_are_parts() -> None:
    """In a plain body, several inputs are multipart parts; the boundary occurs in none of them."""
    request = asked({"inputs": [tensor("a", "BYTES", [1], ["pointsman"]), PAIR]})
    assert request.content_type == "multipart/form-data; boundary=pointsman-9"
    assert request.body == (
        b'--pointsman-9\r\ncontent-disposition: form-data; name="a"; filename="a"\r\n'
        b"content-type: application/octet-stream\r\n\r\npointsman\r\n"
        b'--pointsman-9\r\ncontent-disposition: form-data; name="x"; filename="x"\r\n'
        b"content-type: application/json\r\n\r\n[[1.0,2.0],[3.0,4.5]]\r\n--pointsman-9--\r\n"
    )


def binary(shape: list[int], datatype: str, raw: bytes, parameters: dict[str, Any] | None = None) -> tuple[bytes, int]:
    declared = {"name": "x", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [declared], "parameters": parameters or {}}).encode()
    return head + raw, len(head)


@pytest.mark.parametrize(
    "shape, datatype, raw, parameters, body",
    [
        ([1], "BYTES", b"\x02\0\0\0\xff\0", {}, b"\xff\0"),
        ([1], "BYTES", b"\x01\0\0\0\xff", {"envelope": "json"}, b'{"instances":[{"x":{"b64":"/w=="}}]}'),
        ([2], "FP32", b"\0\0\xc0\x7f\0\0\x80\xff", {}, b"[NaN,-Infinity]"),
        ([2], "FP16", b"\0\x3c\0\xc0", {}, b"[1.0,-2.0]"),
        ([2], "BF16", b"\x80\x3f\0\xc0", {}, b"[1.0,-2.0]"),
    ],
)
def test_binary_tensors(shape: list[int], datatype: str, raw: bytes, parameters: dict[str, Any], body: bytes) -> None:
    """Binary tensors become the same JSON as JSON tensors, with NaN and infinities; bytes are kept."""
    whole, head_bytes = binary(shape, datatype, raw, parameters)
    assert translator(Operation.INFER, whole, head_bytes, model="m").request().body == body


def test_versions_and_sequences() -> None:
    """The version is in the path; the sequence is in the headers that TorchServe's stateful models read."""
    parameters = {"sequence_id": 7, "sequence_start": True, "sequence_end": False}
    request = asked({"inputs": [HI], "parameters": parameters}, version="1.0")
    assert request.path == "/predictions/m/1.0"
    assert request.fields == ((b"ts_request_sequence_id", b"7"), (b"ts_request_sequence_start", b"true"))


def test_a_name_is_escaped() -> None:
    """A model's name is escaped into one path segment."""
    request = translator(Operation.INFER, json.dumps({"inputs": [HI]}).encode(), model="a/b?").request()
    assert request.path == "/predictions/a%2Fb%3F"


REFUSED: dict[str, tuple[dict[str, Any], ErrorKind, str]] = {
    "a batch of texts in a plain body": (
        {"inputs": [LABELS]},
        ErrorKind.UNSUPPORTED,
        "input 'label' has 2 elements, and a body of TorchServe's is one request",
    ),
    "a batch of texts in kservev2": (
        {"inputs": [LABELS], "parameters": {"envelope": "kservev2"}},
        ErrorKind.BAD_REQUEST,
        "input 'label': TorchServe's kservev2 envelope reads the first element of BYTES alone",
    ),
    "a parameter without a meaning": (
        {"inputs": [HI], "parameters": {"temperature": 1, "n": 2}},
        ErrorKind.UNSUPPORTED,
        "parameter 'n', 'temperature' cannot be told to TorchServe",
    ),
    "an envelope that is none": (
        {"inputs": [HI], "parameters": {"envelope": "seldon"}},
        ErrorKind.BAD_REQUEST,
        "parameter 'envelope' is 'seldon', and none of body, json, kserve, kservev2",
    ),
    "a content type that breaks the line": (
        {"inputs": [HI], "parameters": {"content_type": "a\r\nb: c"}},
        ErrorKind.BAD_REQUEST,
        "parameter 'content_type' must be a media type",
    ),
    "a sequence's id that breaks the line": (
        {"inputs": [HI], "parameters": {"sequence_id": "a\r\nb: c"}},
        ErrorKind.BAD_REQUEST,
        "parameter 'sequence_id' is no value of a header",
    ),
    "a part's name that breaks the form": (
        {"inputs": [HI | {"name": 'a"\r\n'}, PAIR]},
        ErrorKind.UNSUPPORTED,
        "has a name that no part of a form can have",
    ),
    "instances that are not equally many": (
        {"inputs": [LABELS, tensor("y", "INT8", [3], [1, 2, 3])], "parameters": {"envelope": "json"}},
        ErrorKind.BAD_REQUEST,
        "the inputs must have equally many instances, and 'label' has 2, 'y' has 3",
    ),
    "no instances at all": (
        {"inputs": [tensor("y", "INT8", [], [1])], "parameters": {"envelope": "kserve"}},
        ErrorKind.BAD_REQUEST,
        "input 'y': it has no axis of instances",
    ),
    "no inputs": ({"inputs": []}, ErrorKind.BAD_REQUEST, "the request has no inputs"),
    "no elements": (
        {"inputs": [tensor("x", "FP32", [1000000000, 0], [])]},
        ErrorKind.BAD_REQUEST,
        "input 'x': it has no elements",
    ),
    "shared memory": (
        {"inputs": [{"name": "x", "datatype": "INT8", "shape": [1], "parameters": {
            "shared_memory_region": "r", "shared_memory_byte_size": 1}}]},
        ErrorKind.UNSUPPORTED,
        "input 'x' is in shared memory",
    ),
    "classification": (
        {"inputs": [HI], "outputs": [{"name": "y", "parameters": {"classification": 1}}]},
        ErrorKind.UNSUPPORTED,
        "'classification' of output 'y'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("body, kind, message", REFUSED.values(), ids=REFUSED)
def test_refusals(body: dict[str, Any], kind: ErrorKind, message: str) -> None:
    """A request that TorchServe cannot express is rejected; the error names the cause."""
    with pytest.raises(GatewayError) as refused:
        asked(body)
    assert refused.value.kind is kind
    assert message in refused.value.message


def test_dropping() -> None:
    """With `drop`, parameters without a meaning are left out and listed."""
    body = json.dumps({"inputs": [HI], "parameters": {"temperature": 1}}).encode()
    request = translator(Operation.INFER, body, model="m", drop=True).request()
    assert (request.body, request.dropped) == (b"hi", ("temperature",))


def test_a_raw_binary_request_is_refused() -> None:
    """A raw binary request is rejected, because its input has no name and no datatype."""
    with pytest.raises(GatewayError, match="raw binary request"):
        translator(Operation.INFER, b"hi", 0, model="m").request()


@pytest.mark.parametrize("operation", [Operation.MODEL_CONFIG, Operation.LOAD, Operation.MODEL_STATS])
def test_operations_that_it_has_not(operation: Operation) -> None:
    """Operations that TorchServe's inference API lacks are unsupported."""
    with pytest.raises(GatewayError) as refused:
        translator(operation, model="m")
    assert refused.value.kind is ErrorKind.UNSUPPORTED

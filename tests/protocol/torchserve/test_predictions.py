"""TorchServe's gRPC messages, compared with the classes that protobuf generates from their schema."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.text_format import Parse

from gateway.protocol.conversion.infer import infer_request_of_rest
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.torchserve.request import torchserve_request
from gateway.protocol.torchserve.translator import prediction, predictions_request

# The parts in use of TorchServe 0.12's `inference.proto` and of google.rpc.Status.
SCHEMA = """
name: "inference.proto" package: "t" syntax: "proto3"
message_type { name: "Request"
  field {name: "model_name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL}
  field {name: "model_version" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL}
  field {name: "input" number: 3 type: TYPE_MESSAGE label: LABEL_REPEATED type_name: ".t.Request.InputEntry"}
  field {name: "sequence_id" number: 4 type: TYPE_STRING label: LABEL_OPTIONAL}
  nested_type { name: "InputEntry" options {map_entry: true}
    field {name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL}
    field {name: "value" number: 2 type: TYPE_BYTES label: LABEL_OPTIONAL} } }
message_type { name: "Response"
  field {name: "prediction" number: 1 type: TYPE_BYTES label: LABEL_OPTIONAL}
  field {name: "sequence_id" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL}
  field {name: "status" number: 3 type: TYPE_MESSAGE label: LABEL_OPTIONAL type_name: ".t.Status"} }
message_type { name: "Status"
  field {name: "code" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL}
  field {name: "message" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL} }
"""


def message(name: str) -> Any:
    pool = DescriptorPool()
    pool.Add(Parse(SCHEMA, FileDescriptorProto()))
    return GetMessageClass(pool.FindMessageTypeByName(f"t.{name}"))


def infer(body: bytes) -> bytes:
    return infer_request_of_rest(body, None, "m", "")[0]


@pytest.mark.parametrize(
    "body, inputs",
    [
        (b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["hi"]}]}', {"data": b"hi"}),
        (b'{"inputs":[{"name":"x","datatype":"INT8","shape":[2],"data":[1,2]}]}', {"data": b"[1,2]"}),
        (
            b'{"inputs":[{"name":"a","datatype":"BYTES","shape":[1],"data":[""]},'
            b'{"name":"b","datatype":"INT8","shape":[1],"data":[1]}]}',
            {"a": b"", "b": b"[1]"},
        ),
    ],
)
@pytest.mark.parametrize("version", ["", "1.0"])
def test_requests(body: bytes, inputs: dict[str, bytes], version: str) -> None:
    """A single body is the input `data`, as in TorchServe's own clients; parts keep their names."""
    read = message("Request").FromString(predictions_request(torchserve_request(infer(body)), "m", version))
    assert (read.model_name, read.model_version, read.sequence_id) == ("m", version, "")
    assert dict(read.input) == inputs


@pytest.mark.parametrize(
    "parameters, message",
    [(b'{"envelope":"json"}', "json envelope"), (b'{"sequence_id":7}', "knows no sequences")],
)
def test_what_needs_rest(parameters: bytes, message: str) -> None:
    """Requests that TorchServe's gRPC API cannot express are unsupported."""
    body = b'{"parameters":%b,"inputs":[{"name":"x","datatype":"INT8","shape":[2],"data":[1,2]}]}' % parameters
    with pytest.raises(GatewayError, match=message) as refused:
        predictions_request(torchserve_request(infer(body)), "m")
    assert refused.value.kind is ErrorKind.UNSUPPORTED


@pytest.mark.parametrize(
    "text, read",
    [
        ('prediction: "hi"', (b"hi", 0, "")),
        ("", (b"", 0, "")),
        ('sequence_id: "s" status {code: 13 message: "no"}', (b"", 13, "no")),
    ],
)
def test_responses(text: str, read: tuple[bytes, int, str]) -> None:
    """A response is read as protobuf reads it."""
    found = prediction(Parse(text, message("Response")()).SerializeToString())
    assert (found.prediction, found.status.code, found.status.message) == read


@pytest.mark.parametrize("data", [b"\x0a\x05hi", b"\xff", b"\x12\x01\xff", b"\x1a\x01\x08"])
def test_no_response(data: bytes) -> None:
    """A malformed PredictionResponse is an upstream protocol error."""
    with pytest.raises(GatewayError) as failed:
        prediction(data)
    assert failed.value.kind is ErrorKind.UPSTREAM_PROTOCOL

"""What TorchServe is sent for a V2 inference request: a serialised ModelInferRequest in, a body or named parts out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson

from gateway.protocol.conversion.errors import about, refusing, unsupported
from gateway.protocol.conversion.json_tensors import WriteElement, as_text, as_text_or_base64, write_tensor
from gateway.protocol.conversion.messages import read_tensors, refuse_output_options
from gateway.protocol.conversion.parameters import FINAL_RESPONSE_FLAG, json_of
from gateway.protocol.conversion.tensors import RawTensor, element_count, split_elements
from gateway.protocol.errors import ErrorKind
from gateway.protocol.operations import path_segment
from gateway.protocol.translator import BINARY, JSON, EngineRequest, Field

TEXT = "text/plain"

# Parameters that TorchServe's stateful models read as headers. Source: TorchServe docs, "stateful inference".
SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
BODY = "body"  # what TorchServe calls the body among the parts


class Envelope(Enum):
    """How a server's handlers take their input, by TorchServe's names for it (`service_envelope`)."""

    BODY = "body"
    JSON = "json"
    KSERVE = "kserve"
    KSERVEV2 = "kservev2"


@dataclass(frozen=True, slots=True)
class RequestPart:
    """A value of the row that a handler gets. TorchServe decodes a text, and reads JSON."""

    name: str
    content: bytes
    content_type: str


@dataclass(frozen=True, slots=True)
class TorchServeRequest:
    """A request as TorchServe takes it. `outputs` are those that the client names, none where it takes all; `dropped`
    the parameters that have no meaning there."""

    parts: tuple[RequestPart, ...]
    envelope: Envelope
    fields: tuple[Field, ...] = ()
    id: str = ""
    outputs: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def torchserve_request(message: bytes, default: Envelope = Envelope.BODY, *, drop: bool = False) -> TorchServeRequest:
    """What TorchServe is sent for a serialised ModelInferRequest. `drop`: parameters without a meaning there are left
    out, not refused.

    Raises: GatewayError, BAD_REQUEST where the request is malformed, UNSUPPORTED where TorchServe has no place for it.
    """
    with refusing(ErrorKind.BAD_REQUEST):
        request, tensors = read_tensors(message, "TorchServe")
        refuse_output_options(request, "TorchServe")
        parameters = json_of(request.parameters, (FINAL_RESPONSE_FLAG,))
        envelope = read_envelope(parameters, default)
        content_type = _content_type(parameters.pop("content_type", BINARY))
        fields, dropped = sequence_fields(parameters, drop=drop)
        parts = _parts(tensors, envelope, content_type, request.id)
        names = tuple(output.name for output in request.outputs)
        return TorchServeRequest(parts, envelope, fields, request.id, names, dropped)


def http_request(sent: TorchServeRequest, model: str, version: str = "") -> EngineRequest:
    """The request by TorchServe's REST."""
    path = predictions_path(model, version)
    if len(sent.parts) == 1 and sent.parts[0].name == BODY:
        body, content_type = sent.parts[0].content, sent.parts[0].content_type
    else:
        body, content_type = _multipart(sent.parts)
    return EngineRequest(path, body, content_type, fields=sent.fields, dropped=sent.dropped)


def predictions_path(model: str, version: str = "") -> str:
    path = f"/predictions/{path_segment(model)}"
    return f"{path}/{path_segment(version)}" if version else path


def sequence_fields(parameters: Mapping[str, Any], *, drop: bool = False) -> tuple[tuple[Field, ...], tuple[str, ...]]:
    """The header fields of a sequence, and the names of the parameters that have no meaning. Raises:
    GatewayError(UNSUPPORTED) that names these, where they are not to be dropped."""
    lost = tuple(sorted(parameters.keys() - set(SEQUENCE)))
    if lost and not drop:
        names = ", ".join(f"'{name}'" for name in lost)
        raise unsupported(f"parameter {names} cannot be told to TorchServe; leave it out, or set 'unsupported: drop'")
    fields: list[Field] = []
    for name in SEQUENCE:
        value = parameters.get(name)
        if value is None or value is False:
            continue
        text = "true" if value is True else str(value)
        if not text.isprintable() or not text.isascii():
            raise ValueError(f"parameter '{name}' is no value of a header")
        fields.append((f"ts_request_{name}".encode(), text.encode()))
    return tuple(fields), lost


def in_instances(tensors: list[RawTensor], envelope: Envelope) -> bytes:
    """The body for the envelopes `json` and `kserve`: {"instances": [...]}, one for each row. Raises: ValueError where
    the inputs have no rows, or not equally many."""
    as_value = as_text_or_base64 if envelope is Envelope.JSON else as_text
    columns: dict[str, list[Any]] = {}
    for tensor in tensors:
        with about(f"input '{tensor.name}'"):
            if not tensor.shape:
                raise ValueError("it has no axis of instances")
            columns[tensor.name] = json_value(tensor, as_value)
    if len({len(column) for column in columns.values()}) > 1:
        sizes = ", ".join(f"'{name}' has {len(column)}" for name, column in columns.items())
        raise ValueError(f"the inputs must have equally many instances, and {sizes}")
    if columns.keys() == {"instances"}:
        return orjson.dumps(columns)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return orjson.dumps({"instances": rows})


def in_kservev2(tensors: list[RawTensor], id: str) -> bytes:
    """The body for the envelope `kservev2`. Raises: ValueError where it would not read all of an input."""
    inputs: list[dict[str, Any]] = []
    for tensor in tensors:
        with about(f"input '{tensor.name}'"):
            values = json_value(RawTensor(tensor.name, tensor.datatype, (element_count(tensor.shape),), tensor.raw))
            if tensor.datatype == "BYTES" and len(values) > 1:
                raise ValueError("TorchServe's kservev2 envelope reads the first element of BYTES alone")
            shape = list(tensor.shape)
            inputs.append({"name": tensor.name, "shape": shape, "datatype": tensor.datatype, "data": values})
    return orjson.dumps({"id": id, "inputs": inputs} if id else {"inputs": inputs})


def json_value(tensor: RawTensor, write: WriteElement = as_text) -> Any:
    """As `write_tensor`. Raises: ValueError as that, and where the tensor has no elements."""
    if 0 in tensor.shape:
        raise ValueError("it has no elements")
    return write_tensor(tensor, write)


def _parts(tensors: list[RawTensor], envelope: Envelope, content_type: str, id: str) -> tuple[RequestPart, ...]:
    if not tensors:
        raise ValueError("the request has no inputs")
    match envelope:
        case Envelope.KSERVEV2:
            return (RequestPart(BODY, in_kservev2(tensors, id), JSON),)
        case Envelope.JSON | Envelope.KSERVE:
            return (RequestPart(BODY, in_instances(tensors, envelope), JSON),)
    if len(tensors) == 1:
        return (_part(BODY, tensors[0], content_type),)
    return tuple(_part(tensor.name, tensor, content_type) for tensor in tensors)


def _part(name: str, tensor: RawTensor, content_type: str) -> RequestPart:
    with about(f"input '{tensor.name}'"):
        if tensor.datatype != "BYTES":
            return RequestPart(name, orjson.dumps(json_value(tensor)), JSON)
        count = element_count(tensor.shape)
        if count != 1:
            raise unsupported(
                f"input '{tensor.name}' has {count} elements, and a body of TorchServe's is one request: send one "
                "each, or the parameter 'envelope' (json, kserve), where the model's handler takes instances"
            )
        return RequestPart(name, split_elements(tensor.raw, 1)[0], content_type)


def _multipart(parts: tuple[RequestPart, ...]) -> tuple[bytes, str]:
    """The body and its content type. Source: RFC 7578; of a part with a file name TorchServe keeps the content type."""
    boundary = b"pointsman"
    while any(boundary in part.content for part in parts):
        boundary += b"-%d" % len(boundary)
    pieces: list[bytes] = []
    for part in parts:
        name = part.name.encode()
        if any(byte < 0x20 or byte in b'"\\\x7f' for byte in name):
            raise unsupported(f"input {part.name!r} has a name that no part of a form can have")
        head = b'--%b\r\ncontent-disposition: form-data; name="%b"; filename="%b"\r\ncontent-type: %b\r\n\r\n'
        pieces += (head % (boundary, name, name, part.content_type.encode()), part.content, b"\r\n")
    pieces.append(b"--" + boundary + b"--\r\n")
    return b"".join(pieces), f"multipart/form-data; boundary={boundary.decode()}"


def read_envelope(parameters: dict[str, Any], default: Envelope) -> Envelope:
    """The envelope that the request names, which is taken out of its parameters. Raises: ValueError."""
    value = parameters.pop("envelope", default.value)
    try:
        return Envelope(value)
    except ValueError:
        known = ", ".join(envelope.value for envelope in Envelope)
        raise ValueError(f"parameter 'envelope' is {value!r}, and none of {known}") from None


def _content_type(value: Any) -> str:
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise ValueError("parameter 'content_type' must be a media type, as text/plain")
    return value

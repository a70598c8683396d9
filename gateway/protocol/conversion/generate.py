"""Generate requests and replies: REST's one flat JSON object, gRPC's inference messages.

A key of the object is a tensor where the model's metadata has one of that name, else a parameter. An array is taken as
flat: the shape comes from the metadata.
Source: Triton server `http_server.cc` (GenerateRequestClass); the generate extension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import orjson

from gateway.protocol.conversion import raw_contents, rest_bodies, triton_json
from gateway.protocol.conversion.errors import about, error_json, refusing, unsupported
from gateway.protocol.conversion.messages import read_response, read_tensors, refuse_output_options
from gateway.protocol.conversion.parameters import (
    IS_FINAL,
    json_of,
    json_of_request,
    set_for_reply,
    set_for_request,
)
from gateway.protocol.conversion.sse import event_of
from gateway.protocol.conversion.tensors import (
    Raw,
    RawTensor,
    element_count,
    flatten,
    inferred_datatype,
    json_of_raw,
    raw_of_elements,
)
from gateway.protocol.errors import ErrorKind
from gateway.protocol.protobuf import Message, message, parse
from gateway.protocol.translator import RestBody

_RESERVED = ("id", "model_name", "model_version")
_PARAMETERS = "parameters"


class MetadataTensor(NamedTuple):
    """A tensor of a model's metadata; -1 stands for an axis of any length."""

    datatype: str
    shape: tuple[int, ...]


class Tensors(NamedTuple):
    """What a model's metadata says, by the tensors' names."""

    inputs: Mapping[str, MetadataTensor]
    outputs: Mapping[str, MetadataTensor]


# REST to gRPC


def infer_request_of_generate(body: bytes, metadata: bytes, model: str, version: str) -> bytes:
    """A serialised ModelInferRequest of a generate body.

    `metadata` is a serialised ModelMetadataResponse. gRPC reads `sequence_id`, `priority` and `timeout` as the
    request's own; to Triton's generate they are parameters like any other.
    Raises: GatewayError, BAD_REQUEST where the body is malformed or does not fit the metadata, UPSTREAM_PROTOCOL where
    the metadata is malformed.
    """
    known = _tensors_of(metadata).inputs
    with refusing(ErrorKind.BAD_REQUEST):
        content = rest_bodies.with_repeated_members(body, rest_bodies.read_object(body), known)
        request = message("inference.ModelInferRequest")(model_name=model, model_version=version)
        if "id" in content:
            request.id = rest_bodies.string(content, "id")
        if _PARAMETERS in content and _PARAMETERS in known:
            raise ValueError(f"keyword '{_PARAMETERS}' is also the name of an input, and cannot be both")
        raws: dict[str, bytes] = {}
        for values in (content, rest_bodies.parameters(content)):
            for key, value in values.items():
                if key == _PARAMETERS and values is content:
                    continue
                if key not in known:
                    set_for_request(request.parameters[key], key, value)
                elif key in raws:
                    raise ValueError(f"input '{key}' already exists in request")
                else:
                    raws[key] = _add_tensor(request.inputs, key, known[key], value)
        return raw_contents.joined(request.SerializeToString(), raw_contents.INPUT_TAG, raws.values())


def generate_of_infer_response(message: bytes) -> bytes:
    """The JSON object that Triton answers a generate with: reserved keys, parameters and outputs, sorted.

    Raises: GatewayError, UPSTREAM_PROTOCOL where the response is malformed, UNSUPPORTED for an output that JSON does
    not hold.
    """
    with refusing(ErrorKind.UPSTREAM_PROTOCOL):
        response, data = read_response(message)
        values: dict[str, Any] = {"id": response.id} if response.id else {}
        values |= {"model_name": response.model_name, "model_version": response.model_version}
        for key, value in json_of(response.parameters, (IS_FINAL,)).items():
            values.setdefault(key, value)
        for output, raw in zip(response.outputs, data, strict=True):
            values.setdefault(output.name, orjson.Fragment(_flat_json("output", output, raw)))
        return triton_json.write(dict(sorted(values.items())))


def sse_of_infer_response(message: bytes) -> bytes:
    """The event that Triton's generate_stream tells a response by."""
    return event_of(generate_of_infer_response(message))


def sse_of_error(text: str) -> bytes:
    """The event that Triton's generate_stream tells an error by."""
    return event_of(error_json(text))


# gRPC to REST


def generate_of_infer_request(message: bytes, metadata: bytes = b"") -> RestBody:
    """The generate body of a serialised ModelInferRequest. Which outputs it names is lost: a generate answers all.

    With the engine's metadata (a serialised ModelMetadataResponse) a shape that the engine would not take the flat
    array back to is refused.
    Raises: GatewayError, BAD_REQUEST where the request is malformed, UNSUPPORTED where a generate has no place for what
    it asks.
    """
    known = _tensors_of(metadata).inputs
    with refusing(ErrorKind.BAD_REQUEST):
        request, tensors = read_tensors(message, "a generate request")
        refuse_output_options(request, "a generate request")
        content: dict[str, Any] = {"id": request.id} if request.id else {}
        for tensor in tensors:
            if tensor.name in ("id", _PARAMETERS) or tensor.name in request.parameters:
                raise unsupported(f"input '{tensor.name}' has the name of another member of a generate request")
            shape, open_shape = list(tensor.shape), known[tensor.name].shape if tensor.name in known else None
            if open_shape is not None and filled(open_shape, element_count(shape)) != shape:
                raise unsupported(f"input '{tensor.name}' has shape {shape}, which a generate request does not tell")
            written = _flat_json("input", tensor, tensor.raw)
            if not triton_json.is_utf8(written):
                raise unsupported(f"input '{tensor.name}' has bytes that are not UTF-8, which JSON does not hold")
            content[tensor.name] = orjson.Fragment(written)
        if parameters := json_of_request(request.parameters):
            content[_PARAMETERS] = parameters
        return RestBody(triton_json.write(content))


def infer_response_of_generate(body: bytes, metadata: bytes, *, id: str = "", model: str = "") -> bytes:
    """A serialised ModelInferResponse of a generate reply, or of one event of a stream.

    A key is the output that the metadata says. Another one, where there is metadata, is a parameter if it is a scalar,
    as Triton writes those; else it is an output of the datatype that its value looks like. What is neither tensor nor
    scalar becomes a parameter, as JSON text. `id` and `model` stand in where the reply names none.
    Raises: GatewayError(UPSTREAM_PROTOCOL) where it is malformed.
    """
    known = _tensors_of(metadata).outputs
    with refusing(ErrorKind.UPSTREAM_PROTOCOL):
        content = rest_bodies.read_object(body)
        response = message("inference.ModelInferResponse")(id=id, model_name=model)
        raws: list[bytes] = []
        for key, value in content.items():
            if value is None:
                continue
            if key in _RESERVED:
                setattr(response, key, rest_bodies.label(content, key))
                continue
            tensor = known.get(key)
            if tensor is None and (not known or isinstance(value, list)):
                datatype = inferred_datatype(flatten(value))
                tensor = None if datatype is None else MetadataTensor(datatype, (-1,))
            if tensor is None:
                set_for_reply(response.parameters[key], key, value)
            else:
                raws.append(_add_tensor(response.outputs, key, tensor, value))
        return raw_contents.joined(response.SerializeToString(), raw_contents.OUTPUT_TAG, raws)


def generate_error(body: bytes) -> str | None:
    """The text of the error that a reply or an event is; None where it is none. Raises: GatewayError(UPSTREAM_PROTOCOL)
    where it is no JSON object."""
    with refusing(ErrorKind.UPSTREAM_PROTOCOL):
        error = rest_bodies.read_object(body).get("error") if b'"error"' in body else None
    return error if isinstance(error, str) else None


# Tensors


def _tensors_of(metadata: bytes) -> Tensors:
    with refusing(ErrorKind.UPSTREAM_PROTOCOL):
        return _parsed(metadata)


@lru_cache(maxsize=256)
def _parsed(metadata: bytes) -> Tensors:
    read = parse("inference.ModelMetadataResponse", metadata)
    return Tensors(
        *(
            {tensor.name: MetadataTensor(tensor.datatype, tuple(tensor.shape)) for tensor in tensors}
            for tensors in (read.inputs, read.outputs)
        )
    )


def _add_tensor(tensors: Any, name: str, tensor: MetadataTensor, value: Any) -> bytes:
    """Add a tensor to a message's inputs or outputs; its data is returned."""
    with about(f"'{name}'"):
        if tensor.datatype in ("FP16", "BF16"):
            raise ValueError(f"{tensor.datatype} data via JSON is not supported")
        elements = flatten(value)
        count = len(value) if isinstance(value, list) else 1
        shape = filled(tensor.shape, count)
        if shape is None or len(elements) != count:
            raise ValueError(f"its {len(elements)} elements cannot be converted to shape {list(tensor.shape)}")
        tensors.add(name=name, datatype=tensor.datatype, shape=shape)
        return raw_of_elements(tensor.datatype, elements)


def filled(shape: Sequence[int], count: int) -> list[int] | None:
    """The shape with its open axes filled: the innermost by what is left of `count`, others by 1; None if none fits."""
    fixed = prod(axis for axis in shape if axis != -1)
    if fixed <= 0 or count % fixed:
        return None
    left, dims = count // fixed, list(shape)
    for index in range(len(dims) - 1, -1, -1):
        if dims[index] == -1:
            dims[index], left = left, 1
    return dims if left == 1 else None


def _flat_json(side: str, tensor: Message | RawTensor, raw: Raw) -> bytes:
    """A tensor's elements as one flat array, or the only one by itself."""
    with about(f"{side} '{tensor.name}'"):
        if tensor.datatype in ("FP16", "BF16"):
            raise unsupported(f"{side} '{tensor.name}': sending {tensor.datatype} data via JSON is not supported")
        count = element_count(tensor.shape)
        written = json_of_raw(tensor.datatype, raw, count)
        return written[1:-1] if count == 1 else written

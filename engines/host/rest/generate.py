"""Generate bodies as inferences and back: one flat JSON object, whose keys are the model's tensors, else parameters.

Source: Triton server `http_server.cc` (GenerateRequestClass); the generate extension.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from engines.core.errors import EngineError, internal, invalid
from engines.core.messages import InferRequest, InferResponse, Scalar, SharedMemory, TensorData
from engines.host.model import HostedModel
from engines.host.rest.requests import read_scalar
from engines.host.rest.responses import write_scalar, write_text
from engines.host.rest.triton_json import has, json_of_output, members, raw_of_json, read_json, string
from gateway.protocol.conversion.generate import filled
from gateway.protocol.conversion.rest_bodies import with_repeated_members
from gateway.protocol.protobuf import Message

_PARAMETERS = "parameters"


def read_generate(body: bytes, metadata: Message, model: str, version: str, trace: Mapping[str, str]) -> InferRequest:
    """The inference of a generate body; `metadata` is the model's ModelMetadataResponse. Raises: EngineError."""
    content = read_json(body)
    id = string(content["id"], "Unable to parse 'id'") if has(content, "id") else ""
    declared = {tensor.name: (tensor.datatype, tuple(tensor.shape)) for tensor in metadata.inputs}
    content = with_repeated_members(body, content, declared)
    inputs: dict[str, TensorData] = {}
    parameters: dict[str, Scalar] = {}
    for key, value in members(content).items():
        if key != _PARAMETERS:
            _add_field(key, value, declared, inputs, parameters)
            continue
        if _PARAMETERS in declared:
            raise invalid("Keyword 'parameters' for nested schema also given as input tensor name")
        if not isinstance(value, dict):
            raise internal(
                "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object"
            )
        try:
            for nested, nested_value in value.items():
                _add_field(nested, nested_value, declared, inputs, parameters)
        except EngineError as error:
            raise EngineError(error.code, f"Converting keyword: 'parameters': {error.message}") from None
    return InferRequest(model, version, id, parameters, tuple(inputs.values()), trace=trace)


def write_generate(model: HostedModel, id: str, response: InferResponse) -> bytes:
    """The JSON object of a response: reserved keys, parameters and outputs, sorted.

    Raises: EngineError for an output that JSON does not hold.
    """
    values: dict[str, bytes] = {}
    reserved = (("id", id), ("model_name", model.name), ("model_version", model.version))
    for name, text in reserved:
        if text:
            values[name] = write_text(text)
    for name, value in response.parameters.items():
        values.setdefault(name, write_scalar(value))
    for output in response.outputs:
        if output.name not in values:
            values[output.name] = _flat(output)
    names = sorted(values, key=lambda name: name.encode("utf-8", "surrogateescape"))
    return b"{" + b",".join([b"%b:%b" % (write_text(name), values[name]) for name in names]) + b"}"


def _add_field(
    key: str,
    value: Any,
    declared: Mapping[str, tuple[str, tuple[int, ...]]],
    inputs: dict[str, TensorData],
    parameters: dict[str, Scalar],
) -> None:
    if key not in declared:
        parameters[key] = read_scalar(key, value)
        return
    if key in inputs:
        raise invalid(f"[request id: <id_unknown>] input '{key}' already exists in request")
    datatype, open_shape = declared[key]
    data = value if isinstance(value, list) else [value]
    count = len(data)
    if datatype == "BYTES":
        raw = raw_of_json(key, datatype, data, count)
    shape = filled(open_shape, count)
    if shape is None:
        raise invalid(f"The schema can not convert input '{key}' to tensor with proper shape")
    if datatype != "BYTES":
        raw = raw_of_json(key, datatype, data, count)
    inputs[key] = TensorData(key, datatype, tuple(shape), raw)


def _flat(output: TensorData) -> bytes:
    """An output's values as a flat array; a single value without one."""
    data = output.data
    if isinstance(data, SharedMemory):
        raise internal(f"non-JSON output response type is requested for '{output.name}'")
    written = json_of_output(output.name, output.datatype, output.shape, data)
    return written[1:-1] if prod(output.shape) == 1 else written

"""Inference requests and replies: REST's JSON with raw tensors behind it, gRPC's protobuf with raw contents.

Data crosses as raw bytes wherever both sides can: REST is asked in binary tensors and for binary tensors. REST names
model and version in the path, not in the body.
Source: Triton server `http_server.cc` (ParseJsonTritonIO, InferRequestClass::FinalizeResponse) and
`grpc/infer_handler.cc`; the binary tensor data, shared memory, classification and parameters extensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import orjson

from gateway.protocol.conversion import raw_contents, rest_bodies, triton_json
from gateway.protocol.conversion.errors import about, refusing, unsupported
from gateway.protocol.conversion.messages import SHARED_MEMORY, read_request, read_response
from gateway.protocol.conversion.parameters import (
    BINARY_DATA_OUTPUT,
    IS_FINAL,
    TRANSPORT,
    json_of,
    json_of_request,
    set_for_reply,
    set_for_request,
)
from gateway.protocol.conversion.rest_bodies import Tail
from gateway.protocol.conversion.tensors import Raw, element_count, flatten, json_of_raw, raw_of_elements
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.protobuf import Message, message
from gateway.protocol.translator import RestBody

_ONLY_BINARY = ("FP16", "BF16")


class OutputForm(Enum):
    """How an output's data reaches a REST client."""

    JSON = "json"
    BINARY = "binary"
    SHARED_MEMORY = "shared_memory"


@dataclass(frozen=True, slots=True)
class WantedOutputs:
    """What a REST client asked of the reply's form: `default` is for outputs that it did not name."""

    default: OutputForm = OutputForm.JSON
    by_name: Mapping[str, OutputForm] = field(default_factory=dict)

    def form(self, output: str) -> OutputForm:
        return self.by_name.get(output, self.default)


def rest_of_infer_request(message: bytes) -> RestBody:
    """The REST body of a serialised ModelInferRequest: every tensor binary, and every output asked for in binary.
    Raises: GatewayError, BAD_REQUEST where the request is malformed, UNSUPPORTED where REST would read it otherwise."""
    with refusing(ErrorKind.BAD_REQUEST):
        request, data = read_request(message)
        head: dict[str, Any] = {"id": request.id} if request.id else {}
        parameters = json_of_request(request.parameters)
        if not request.outputs:
            parameters[BINARY_DATA_OUTPUT] = True
        if parameters:
            head["parameters"] = parameters
        head["inputs"] = [_rest_tensor(tensor, raw) for tensor, raw in zip(request.inputs, data, strict=True)]
        if request.outputs:
            head["outputs"] = [_rest_request_for(output) for output in request.outputs]
        return _body(head, [raw for raw in data if raw is not None])


def infer_response_of_rest(body: bytes, head_bytes: int | None) -> bytes:
    """A serialised ModelInferResponse of a REST reply: raw contents of every output, empty for one in shared memory.
    Raises: GatewayError(UPSTREAM_PROTOCOL) where the reply is malformed."""
    with refusing(ErrorKind.UPSTREAM_PROTOCOL):
        reply, tail = rest_bodies.cut(body, head_bytes)
        response = message("inference.ModelInferResponse")()
        response.id = rest_bodies.label(reply, "id")
        response.model_name = rest_bodies.label(reply, "model_name")
        response.model_version = rest_bodies.label(reply, "model_version")
        for name, value in rest_bodies.parameters(reply).items():
            set_for_reply(response.parameters[name], name, value)
        raws = [_add_output(response, tensor, tail) for tensor in rest_bodies.array(reply, "outputs")]
        tail.close()
        return raw_contents.joined(response.SerializeToString(), raw_contents.OUTPUT_TAG, raws)


def infer_request_of_rest(body: bytes, head_bytes: int | None, model: str, version: str) -> tuple[bytes, WantedOutputs]:
    """A serialised ModelInferRequest of a REST body, with raw contents, and the form that its reply must have.

    Raises: GatewayError, BAD_REQUEST where the body is malformed, UNSUPPORTED for a raw binary request
    (`head_bytes` 0), whose input only the model's configuration names.
    """
    if head_bytes == 0:
        what = "a raw binary request (Inference-Header-Content-Length: 0) names no input, as this engine needs it"
        raise unsupported(f"{what}: name the input in a JSON header")
    with refusing(ErrorKind.BAD_REQUEST):
        content, tail = rest_bodies.cut(body, head_bytes)
        request = message("inference.ModelInferRequest")(model_name=model, model_version=version)
        if "id" in content:
            request.id = rest_bodies.string(content, "id")
        default = _set_parameters(request, rest_bodies.parameters(content))
        data = [_add_input(request, tensor, tail) for tensor in rest_bodies.array(content, "inputs")]
        tail.close()
        forms: dict[str, OutputForm] = {}
        for output in rest_bodies.array(content, "outputs") if "outputs" in content else ():
            name, form = _add_requested_output(request, output)
            forms.setdefault(name, form)
        raws = [raw for raw in data if raw is not None]
        return raw_contents.joined(request.SerializeToString(), raw_contents.INPUT_TAG, raws), WantedOutputs(
            default, forms
        )


def rest_of_infer_response(message: bytes, wanted: WantedOutputs) -> RestBody:
    """The REST body of a serialised ModelInferResponse, with the members that Triton writes, in its order.

    Raises: GatewayError, UPSTREAM_PROTOCOL where the response is malformed, BAD_REQUEST where the client wants in JSON
    what only binary data holds.
    """
    with refusing(ErrorKind.UPSTREAM_PROTOCOL):
        response, data = read_response(message)
        head: dict[str, Any] = {"id": response.id} if response.id else {}
        head |= {"model_name": response.model_name, "model_version": response.model_version}
        if parameters := json_of(response.parameters, (IS_FINAL,)):
            head["parameters"] = parameters
        head["outputs"] = outputs = []
        binary: list[Raw] = []
        for tensor, raw in zip(response.outputs, data, strict=True):
            form = wanted.form(tensor.name)
            outputs.append(_rest_tensor(tensor, raw if form is OutputForm.BINARY else None))
            if form is OutputForm.BINARY:
                binary.append(raw)
            elif form is OutputForm.JSON:
                outputs[-1]["data"] = _json_data(tensor, raw)
        return _body(head, binary)


# gRPC to REST


def _rest_tensor(tensor: Message, raw: Raw | None) -> dict[str, Any]:
    """A tensor as JSON declares it, with the size of its data where that follows as raw bytes."""
    declared = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
    with about(f"tensor '{tensor.name}'"):
        parameters = json_of(tensor.parameters, TRANSPORT)
    if raw is not None:
        parameters["binary_data_size"] = len(raw)
    return declared | {"parameters": parameters} if parameters else declared


def _rest_request_for(output: Message) -> dict[str, Any]:
    with about(f"output '{output.name}'"):
        parameters = json_of(output.parameters, TRANSPORT)
    if SHARED_MEMORY not in parameters:
        parameters["binary_data"] = True
    return {"name": output.name, "parameters": parameters}


def _json_data(output: Message, raw: Raw) -> orjson.Fragment:
    if output.datatype in _ONLY_BINARY:
        raise GatewayError(
            ErrorKind.BAD_REQUEST,
            f"sending {output.datatype} data via JSON is not supported. "
            f"Please use the binary data format for output '{output.name}'",
        )
    with about(f"output '{output.name}'"):
        count = element_count(output.shape) if output.shape or raw else 0
        return orjson.Fragment(json_of_raw(output.datatype, raw, count))


def _body(head: dict[str, Any], raws: list[Raw]) -> RestBody:
    """JSON with raw tensors behind it. Triton tells the length of the JSON only where there are any bytes behind."""
    written = triton_json.write(head)
    if not any(raws):
        return RestBody(written)
    return RestBody(b"".join((written, *raws)), len(written))


# REST to gRPC


def _set_parameters(request: Message, values: Mapping[str, Any]) -> OutputForm:
    """Set a request's parameters; the one that is REST's own is returned as what it means."""
    default = OutputForm.JSON
    for name, value in values.items():
        if name == BINARY_DATA_OUTPUT:
            default = OutputForm.BINARY if rest_bodies.flag(value, name) else OutputForm.JSON
        elif name.startswith("triton_"):
            raise ValueError(
                f"parameter '{name}': keys starting with 'triton_' are reserved for Triton usage "
                "and should not be specified"
            )
        else:
            set_for_request(request.parameters[name], name, value)
    return default


def _add_input(request: Message, declared: Any, tail: Tail) -> Raw | None:
    """Add an input; its data is returned, None where it is in shared memory."""
    name = rest_bodies.string(declared, "name")
    with about(f"input '{name}'"):
        parameters = rest_bodies.parameters(declared)
        sources = [key for key in ("binary_data_size", SHARED_MEMORY) if key in parameters]
        sources += ["data"] if "data" in declared else []
        if len(sources) != 1:
            raise ValueError(
                "it must set one of 'data', 'binary_data_size' in 'parameters' and 'shared_memory_region' in "
                f"'parameters', but sets {' and '.join(sources) or 'none'}"
            )
        tensor = request.inputs.add(name=name, datatype=rest_bodies.string(declared, "datatype"))
        tensor.shape.extend(rest_bodies.shape(declared))
        _set_tensor_parameters(tensor, parameters)
        if SHARED_MEMORY in parameters:
            return None
        if "data" in declared:
            return _raw_of_json(tensor, rest_bodies.array(declared, "data"), _ONLY_BINARY)
        return tail.take(rest_bodies.size(parameters["binary_data_size"], "binary_data_size"))


def _add_requested_output(request: Message, declared: Any) -> tuple[str, OutputForm]:
    name = rest_bodies.string(declared, "name")
    with about(f"output '{name}'"):
        parameters = rest_bodies.parameters(declared)
        binary = rest_bodies.flag(parameters.get("binary_data", False), "binary_data")
        _set_tensor_parameters(request.outputs.add(name=name), parameters)
        if SHARED_MEMORY not in parameters:
            return name, OutputForm.BINARY if binary else OutputForm.JSON
        if binary or "classification" in parameters:
            other = "binary_data" if binary else "classification"
            raise ValueError(f"it can't set both '{SHARED_MEMORY}' and '{other}'")
        return name, OutputForm.SHARED_MEMORY


def _set_tensor_parameters(tensor: Message, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict | list):
            raise unsupported(f"parameter '{key}' of tensor '{tensor.name}' is an object or an array; gRPC has scalars")
        if key not in TRANSPORT and value is not None:
            set_for_request(tensor.parameters[key], key, value)


def _add_output(response: Message, declared: Any, tail: Tail) -> Raw:
    """Add an output of an engine's reply; its data is returned, none where it is in shared memory."""
    name = rest_bodies.string(declared, "name")
    with about(f"output '{name}'"):
        tensor = response.outputs.add(name=name, datatype=rest_bodies.string(declared, "datatype"))
        tensor.shape.extend(rest_bodies.shape(declared))
        parameters = rest_bodies.parameters(declared)
        for key, value in parameters.items():
            if key not in TRANSPORT and value is not None:
                set_for_reply(tensor.parameters[key], key, value)
        if "binary_data_size" in parameters:
            return tail.take(rest_bodies.size(parameters["binary_data_size"], "binary_data_size"))
        return _raw_of_json(tensor, declared["data"]) if "data" in declared else b""


def _raw_of_json(tensor: Message, data: Any, only_binary: tuple[str, ...] = ()) -> bytes:
    """The raw form of a tensor's `data`. Triton does not look at it where the shape has no elements."""
    count = element_count(tensor.shape)
    if count == 0:
        return b""
    if tensor.datatype in only_binary:
        raise ValueError(
            f"receiving {tensor.datatype} data via JSON is not supported. Please use the binary data format"
        )
    elements = flatten(data)
    if not tensor.shape and not elements:
        return b""
    if len(elements) != count:
        raise ValueError(f"its data has {len(elements)} elements, its shape {list(tensor.shape)} has {count}")
    return raw_of_elements(tensor.datatype, elements)

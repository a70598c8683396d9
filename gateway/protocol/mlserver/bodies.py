"""MLServer's JSON, and what Triton has in its place.

Source: MLServer 1.7.1 `rest/endpoints.py`, `types/dataplane.py`; the generate extension.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.protocol.conversion import triton_json
from gateway.protocol.conversion.errors import about, error_json, read_error, refusing, unsupported
from gateway.protocol.conversion.messages import read_tensors, refuse_output_options
from gateway.protocol.conversion.parameters import json_of_request
from gateway.protocol.conversion.rest_bodies import parameters, read_object
from gateway.protocol.conversion.tensors import element_count, flatten, inferred_datatype, json_of_raw
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.translator import Reply

_TEXT_INPUT, _TEXT_OUTPUT = "text_input", "text_output"


def inference_of_generate(body: bytes) -> tuple[bytes, bool]:
    """Infer's JSON of a generate body, and whether the answer is a text: it was asked by `text_input`.

    `text_input` and arrays are inputs, all other members are parameters, since nothing declares them. A body that is
    infer's JSON already, as MLServer's own clients send it, stays as it is.
    Raises: GatewayError(BAD_REQUEST) where it is malformed.
    """
    with refusing(ErrorKind.BAD_REQUEST):
        content = read_object(body)
        if isinstance(content.get("inputs"), list) and _TEXT_INPUT not in content:
            return body, False
        members = parameters(content)
        inputs: list[dict[str, Any]] = []
        others: dict[str, Any] = {}
        for key, value in [*content.items(), *members.items()]:
            if key in ("id", "parameters"):
                continue
            if key == _TEXT_INPUT or isinstance(value, list):
                inputs.append(_input(key, value))
            elif isinstance(value, str | int | float):
                others[key] = value
            elif value is not None:
                raise ValueError(f"'{key}' must be a number, a boolean, a string or an array of these")
        infer_request: dict[str, Any] = {"id": content["id"]} if "id" in content else {}
        if others:
            infer_request["parameters"] = others
        return orjson.dumps(infer_request | {"inputs": inputs}), _TEXT_INPUT in content or _TEXT_INPUT in members


def generate_of_inference(data: bytes, *, is_text: bool = False) -> bytes:
    """A generate reply, or an event of its stream, of MLServer's: an output by its name, the only element by itself.

    `is_text`: the only output, if it is BYTES, is `text_output` whatever its name is. What is no inference response is
    returned as it is.
    Raises: GatewayError(UPSTREAM_PROTOCOL) where it is malformed.
    """
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError:
        with refusing(ErrorKind.UPSTREAM_PROTOCOL):
            content = read_object(data)
    if not isinstance(content, dict) or not isinstance(content.get("outputs"), list):
        return data
    members = {key: content[key] for key in ("id", "model_name", "model_version") if key in content}
    outputs = content["outputs"]
    try:
        for output in outputs:
            elements = output["data"]
            if type(elements) is not list or (elements and type(elements[0]) is list):
                elements = flatten(elements)
            is_only_text = is_text and len(outputs) == 1 and output["datatype"] == "BYTES"
            members[_TEXT_OUTPUT if is_only_text else output["name"]] = elements[0] if len(elements) == 1 else elements
    except (KeyError, TypeError):
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the engine's reply has an output without data") from None
    for key, value in (content.get("parameters") or {}).items():
        if key not in ("headers", "content_type") and isinstance(value, str | int | float):
            members.setdefault(key, value)
    return orjson.dumps(members)


def json_infer_request(message: bytes) -> bytes:
    """Infer's JSON of a serialised ModelInferRequest, with no tensor in binary. Raises: GatewayError, BAD_REQUEST where
    it is malformed, UNSUPPORTED for what JSON, or MLServer, has no place for."""
    with refusing(ErrorKind.BAD_REQUEST):
        request, tensors = read_tensors(message, "MLServer")
        infer_request: dict[str, Any] = {"id": request.id} if request.id else {}
        if members := json_of_request(request.parameters):
            infer_request["parameters"] = members
        inputs = infer_request["inputs"] = []
        for tensor in tensors:
            with about(f"input '{tensor.name}'"):
                written = json_of_raw(tensor.datatype, tensor.raw, element_count(tensor.shape))
            if not triton_json.is_utf8(written):
                raise unsupported(f"input '{tensor.name}' has bytes that are not UTF-8, which JSON does not hold")
            declared = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
            inputs.append(declared | {"data": orjson.Fragment(written)})
        refuse_output_options(request, "MLServer")
        if request.outputs:
            infer_request["outputs"] = [{"name": output.name} for output in request.outputs]
        return triton_json.write(infer_request)


def error_of(reply: Reply) -> Reply:
    """The V2 reply for one with a status of 400 or above: {"error": "..."}, and 400 for 422."""
    message, _ = read_error(reply.body)
    status = 400 if reply.status == 422 else reply.status
    return Reply(status, error_json(message or f"MLServer answered with status {reply.status}"))


def _input(name: str, value: Any) -> dict[str, Any]:
    elements = flatten(value)
    datatype = inferred_datatype(elements)
    if datatype is None:
        raise ValueError(f"'{name}' must be of numbers, of booleans or of strings")
    return {"name": name, "shape": [len(elements)], "datatype": datatype, "data": elements}

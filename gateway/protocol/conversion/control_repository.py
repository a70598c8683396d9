"""Control of models and of shared memory: the repository's index, load, unload, and regions (system and CUDA) in gRPC's
messages and in the JSON of Triton's REST.

Source: Triton's model repository and shared memory extensions; server `src/grpc/grpc_server.cc` RegisterRepository*,
`src/http_server.cc` HandleRepository*, HandleSystemSharedMemory, HandleCudaSharedMemory.
"""

from __future__ import annotations

from base64 import b64encode
from binascii import a2b_base64
from contextlib import suppress

from gateway.protocol.conversion.control_messages import Form, Json, read_fields, write_fields
from gateway.protocol.errors import ErrorKind, GatewayError, bad_request
from gateway.protocol.protobuf import Message

_INDEX_OPTIONAL = ("version", "state", "reason")


def _write_index_body(message: Message) -> Json:
    if message.repository_name:  # Triton's gRPC refuses it, and its REST would answer for all of them
        raise GatewayError(ErrorKind.UNSUPPORTED, "'repository_name' specification is not supported")
    return {"ready": message.ready}


def _read_index_body(message: Message, body: Json) -> None:
    ready = body.get("ready", False)
    if not isinstance(ready, bool):
        raise bad_request("Invalid value for 'ready': expected a boolean")
    message.ready = ready


def _write_index_reply(message: Message) -> Json:
    """An array of models; a model without a version (it was never loaded) has only its name."""
    models = write_fields(message)["models"]
    return [{key: text for key, text in model.items() if text or key not in _INDEX_OPTIONAL} for model in models]


def _read_index_reply(message: Message, reply: Json) -> None:
    read_fields(message, {"models": reply})


def _write_load_body(message: Message) -> Json:
    """`config` is text, and a `file:...` is bytes, which JSON holds as base64."""
    parameters = {name: _load_parameter(name, message.parameters[name]) for name in sorted(message.parameters)}
    return {"parameters": parameters} if parameters else {}


def _read_load_body(message: Message, body: Json) -> None:
    for name, value in _parameters(body).items():
        if not isinstance(value, str):
            raise bad_request(f"load parameter '{name}' must be a string")
        if name == "config":
            message.parameters[name].string_param = value
        elif name.startswith("file:"):
            message.parameters[name].bytes_param = read_base64(name, value)
        else:
            raise bad_request(f"unrecognized load parameter '{name}'.")


def _write_unload_body(message: Message) -> Json:
    parameters = {name: _unload_parameter(name, message.parameters[name]) for name in sorted(message.parameters)}
    return {"parameters": parameters} if parameters else {}


def _read_unload_body(message: Message, body: Json) -> None:
    for name, value in _parameters(body).items():
        if isinstance(value, bool):
            message.parameters[name].bool_param = value
        elif isinstance(value, str):
            message.parameters[name].string_param = value
        elif isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
            message.parameters[name].int64_param = value
        else:
            raise bad_request(f"unload parameter '{name}' must be a boolean, a string or a whole number of 64 bits")


def read_base64(name: str, text: str) -> bytes:
    """Raises: GatewayError(BAD_REQUEST) where the text is no base64; line breaks in it are none of its business."""
    try:
        return a2b_base64(text, strict_mode=True)
    except ValueError:
        with suppress(ValueError):
            return a2b_base64("".join(text.split()), strict_mode=True)
    raise bad_request(f"'{name}' must be base64")


def _parameters(body: Json) -> dict[str, Json]:
    parameters = body.get("parameters", {})
    if not isinstance(parameters, dict):
        raise bad_request("'parameters' must be an object")
    return parameters


def _load_parameter(name: str, parameter: Message) -> Json:
    if name == "config":
        expected = "string_param"
    elif name.startswith("file:"):
        expected = "bytes_param"
    else:
        raise bad_request(f"unrecognized load parameter '{name}'.")
    if parameter.WhichOneof("parameter_choice") != expected:
        raise bad_request(f"invalid value type for load parameter '{name}', expected {expected}.")
    return parameter.string_param if name == "config" else b64encode(parameter.bytes_param).decode("ascii")


def _unload_parameter(name: str, parameter: Message) -> Json:
    choice = parameter.WhichOneof("parameter_choice")
    if name == "unload_dependents" and choice != "bool_param":
        raise bad_request("invalid value type for 'unload_dependents' parameter, expected bool_param.")
    if choice is None or choice == "bytes_param":
        raise bad_request(f"unload parameter '{name}' must be a boolean, a string or a number")
    return getattr(parameter, choice)


def _write_regions_reply(message: Message) -> Json:
    """An array of regions, by their names."""
    regions = write_fields(message)["regions"]
    return [regions[name] for name in sorted(regions)]


def _read_regions_reply(message: Message, reply: Json) -> None:
    if not isinstance(reply, list) or not all(isinstance(region, dict) for region in reply):
        raise ValueError("it is no array of regions")
    read_fields(message, {"regions": {str(region.get("name", "")): region for region in reply}})


def _write_system_body(message: Message) -> Json:
    return {"key": message.key, "offset": message.offset, "byte_size": message.byte_size}


def _read_system_body(message: Message, body: Json) -> None:
    read_fields(message, _members(body, ("key", "byte_size"), ("offset",)))


def _write_cuda_body(message: Message) -> Json:
    handle = {"b64": b64encode(message.raw_handle).decode("ascii")}
    return {"raw_handle": handle, "device_id": message.device_id, "byte_size": message.byte_size}


def _read_cuda_body(message: Message, body: Json) -> None:
    members = _members(body, ("raw_handle", "device_id", "byte_size"))
    handle = members.pop("raw_handle")
    encoded = handle.get("b64") if isinstance(handle, dict) else None
    if not isinstance(encoded, str):
        raise bad_request("'raw_handle' must be an object with a string 'b64'")
    message.raw_handle = read_base64("raw_handle", encoded)
    read_fields(message, members)


def _members(body: Json, needed: tuple[str, ...], others: tuple[str, ...] = ()) -> dict[str, Json]:
    for name in needed:
        if name not in body:
            raise bad_request(f"Shared memory register request has no '{name}' field")
    return {name: body[name] for name in (*needed, *others) if name in body}


INDEX_BODY = Form(_write_index_body, _read_index_body)
INDEX_REPLY = Form(_write_index_reply, _read_index_reply)
LOAD_BODY = Form(_write_load_body, _read_load_body)
UNLOAD_BODY = Form(_write_unload_body, _read_unload_body)
REGIONS_REPLY = Form(_write_regions_reply, _read_regions_reply)
SYSTEM_BODY = Form(_write_system_body, _read_system_body)
CUDA_BODY = Form(_write_cuda_body, _read_cuda_body)

"""Shared memory, system and CUDA: gRPC's messages and the JSON of Triton's REST.

Source: Triton's shared memory extensions; server `src/http_server.cc` HandleSystemSharedMemory, HandleCudaSharedMemory.
"""

from __future__ import annotations

from gateway.protocol.conversion.control_errors import malformed
from gateway.protocol.conversion.control_messages import Json, read_fields, write_fields
from gateway.protocol.conversion.control_repository import read_base64, write_base64
from gateway.protocol.protobuf import Message


def write_status_reply(message: Message) -> Json:
    """An array of regions, by their names."""
    regions = write_fields(message)["regions"]
    return [regions[name] for name in sorted(regions)]


def read_status_reply(message: Message, reply: Json) -> None:
    if not isinstance(reply, list) or not all(isinstance(region, dict) for region in reply):
        raise ValueError("it is no array of regions")
    read_fields(message, {"regions": {str(region.get("name", "")): region for region in reply}})


def write_system_body(message: Message) -> Json:
    _check_region(message, "system")
    return {"key": message.key, "offset": message.offset, "byte_size": message.byte_size}


def read_system_body(message: Message, body: Json) -> None:
    _check_region(message, "system")
    read_fields(message, _members(body, ("key", "byte_size"), ("offset",)))


def write_cuda_body(message: Message) -> Json:
    _check_region(message, "cuda")
    handle = {"b64": write_base64(message.raw_handle)}
    return {"raw_handle": handle, "device_id": message.device_id, "byte_size": message.byte_size}


def read_cuda_body(message: Message, body: Json) -> None:
    _check_region(message, "cuda")
    members = _members(body, ("raw_handle", "device_id", "byte_size"))
    handle = members.pop("raw_handle")
    encoded = handle.get("b64") if isinstance(handle, dict) else None
    if not isinstance(encoded, str):
        raise malformed("'raw_handle' must be an object with a string 'b64'")
    message.raw_handle = read_base64("raw_handle", encoded)
    read_fields(message, members)


def _check_region(message: Message, memory: str) -> None:
    if not message.name:
        raise malformed(f"'region name' is necessary to register {memory} shared memory region")


def _members(body: Json, needed: tuple[str, ...], others: tuple[str, ...] = ()) -> dict[str, Json]:
    for name in needed:
        if name not in body:
            raise malformed(f"Shared memory register request has no '{name}' field")
    return {name: body[name] for name in (*needed, *others) if name in body}

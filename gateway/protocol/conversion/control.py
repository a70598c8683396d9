"""Control calls, by REST or by gRPC: every RPC but the inferences, as the request and the reply of Triton's REST that
say the same, and back. What is particular to an RPC stands in `control_table`.

Raises, wherever not said otherwise: KeyError for an RPC that is none of these.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from gateway.protocol import protobuf
from gateway.protocol.conversion.control_errors import (
    bad_answer,
    rpc_error,
)
from gateway.protocol.conversion.control_messages import Json
from gateway.protocol.conversion.control_table import CONTROLS, ControlRpc
from gateway.protocol.errors import ErrorKind, GatewayError, bad_request
from gateway.protocol.protobuf import Message
from gateway.protocol.translator import Reply, RestBody, RestRequest

# Triton reads a version as an int64.
_MAX_VERSION = (1 << 63) - 1
_VERSION = re.compile("0*([0-9]{1,19})")

_NOT_READY = orjson.dumps({"error": "Model version not ready"})


def rest_request(rpc: str, message: bytes) -> RestRequest:
    """The REST request that asks what a serialised request message asks.

    Raises: GatewayError: BAD_REQUEST where the message is its version is no number, or it names nobody
    where it must; UNSUPPORTED where REST has no way to ask it.
    """
    control = CONTROLS[rpc]
    try:
        parsed = protobuf.parse(f"inference.{rpc}Request", message)
    except ValueError as error:
        raise bad_request(str(error)) from error
    _check_version(getattr(parsed, "version", ""))
    path = control.path.fill(lambda name: str(getattr(parsed, name)))
    if path is None:
        raise bad_request(f"the {rpc} request names no model")
    if _find(path)[0] is not control:
        raise GatewayError(ErrorKind.UNSUPPORTED, f"REST has no path for this {rpc}: {path} asks for something else")
    body = control.body.write(parsed)
    if body is None:
        return RestRequest(control.verbs[0], path)
    return RestRequest(control.verbs[-1], path, RestBody(orjson.dumps(body)))


def rpc_response(rpc: str, status: int, body: bytes) -> bytes:
    """The serialised response message that says what a REST reply says. Raises: RpcError where the reply is a refusal,
    GatewayError(UPSTREAM_PROTOCOL) where it cannot be understood."""
    control = CONTROLS[rpc]
    response = _new(f"{rpc}Response")
    if control.health and status in (200, 400):
        setattr(response, control.health, status == 200 and not _denies(body, control.health))
    elif not 200 <= status < 300:
        raise rpc_error(status, body)
    else:
        try:
            return response_of_json(rpc, orjson.loads(body or b"{}"))
        except orjson.JSONDecodeError as error:
            raise bad_answer(rpc, str(error)) from error
    return _serialised(response)


def response_of_json(rpc: str, value: Any) -> bytes:
    """The serialised response message of a REST reply's JSON. Raises: GatewayError(UPSTREAM_PROTOCOL) where it cannot
    be understood."""
    response = _new(f"{rpc}Response")
    try:
        CONTROLS[rpc].reply.read(response, value)
    except ValueError as error:
        raise bad_answer(rpc, str(error)) from error
    return _serialised(response)


def json_of_response(rpc: str, message: bytes) -> Any:
    """The JSON of the REST reply for a serialised response message, in Triton's own form. Raises:
    GatewayError(UPSTREAM_PROTOCOL) where the message is malformed."""
    return CONTROLS[rpc].reply.write(_parsed(rpc, message))


def rpc_request(method: str, target: str, body: bytes, *, of_rpc: bool = False) -> tuple[str, bytes]:
    """The RPC, and its serialised request message, that ask what a REST request asks; `of_rpc`: which was an RPC
    itself. Raises: as `read_request`."""
    rpc, message = read_request(method, target, body, of_rpc=of_rpc)
    return rpc, _serialised(message)


def read_request(method: str, target: str, body: bytes, *, of_rpc: bool = False) -> tuple[str, Message]:
    """The RPC and its request message that ask what a REST request asks. Raises: GatewayError: NOT_FOUND where no
    control RPC has such a path, METHOD_NOT_ALLOWED, BAD_REQUEST where the body is malformed."""
    control, fields = _find(target.partition("?")[0])
    if control is None:
        raise GatewayError(ErrorKind.NOT_FOUND, "Not Found")
    if method not in control.verbs:
        raise GatewayError(ErrorKind.METHOD_NOT_ALLOWED, "Method Not Allowed")
    _check_version(fields.get("version", ""))
    if control.memory and not fields["name"] and not of_rpc:
        raise no_region_name(control.memory)
    message = _new(f"{control.rpc}Request")
    try:
        for name, text in fields.items():
            setattr(message, name, text)
        if method == "POST":
            control.body.read(message, _object(body))
    except ValueError as error:  # text that is no Unicode too
        raise bad_request(f"failed to read the {control.rpc} request: {error}") from error
    return control.rpc, message


def no_region_name(memory: str) -> GatewayError:
    """Triton's REST says this of a path without a region; `memory` is `system` or `cuda`."""
    return bad_request(f"'region name' is necessary to register {memory} shared memory region")


def rest_response(rpc: str, message: bytes) -> Reply:
    """The REST reply, in Triton's own form, that says what a serialised response message says. Raises:
    GatewayError(UPSTREAM_PROTOCOL) where the message is malformed."""
    return write_reply(rpc, _parsed(rpc, message))


def write_reply(rpc: str, message_reply: Message) -> Reply:
    """The REST reply, in Triton's own form, that says what a response message says."""
    control = CONTROLS[rpc]
    if control.health:
        if getattr(message_reply, control.health):
            return Reply(200, b"")
        return Reply(400, _NOT_READY if rpc == "ModelReady" else b"")
    reply = control.reply.write(message_reply)
    return Reply(200, b"" if reply is None else orjson.dumps(reply))


def _find(path: str) -> tuple[ControlRpc | None, dict[str, str]]:
    for control in CONTROLS.values():
        fields = control.path.read(path)
        if fields is not None:
            return control, fields
    return None, {}


def _check_version(version: str) -> None:
    """A path takes no other versions, and of these Triton refuses what is too long (`GetModelVersionFromString`)."""
    if not version:
        return
    found = _VERSION.fullmatch(version)
    if found is None or int(found[1]) > _MAX_VERSION:
        text = f"failed to get model version from specified version string '{version[:80]}'"
        raise bad_request(f"{text}, version should be an integral value > 0")


def _denies(body: bytes, field: str) -> bool:
    """Whether a server of the Open Inference Protocol says no in its JSON: Triton says it by the status alone."""
    try:
        message_reply = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(message_reply, dict) and message_reply.get(field) is False


def _object(body: bytes) -> Json:
    """Raises: ValueError."""
    value = orjson.loads(body or b"{}")
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    return value


def _parsed(rpc: str, message: bytes) -> Message:
    try:
        return protobuf.parse(f"inference.{rpc}Response", message)
    except ValueError as error:
        raise bad_answer(rpc, str(error)) from error


def _new(name: str) -> Message:
    return protobuf.message(f"inference.{name}")()


def _serialised(message: Message) -> bytes:
    data: bytes = message.SerializeToString(deterministic=True)
    return data

"""TorchServe's errors, {"code", "type", "message"}, as a V2 client reads them.

Two of its statuses say something else than they do elsewhere: a wrong token is 400 there, and a handler that failed is
503, as a queue that is full is. Both are told apart by the type of the exception.
Source: TorchServe 0.12 `TokenAuthorizationHandler.java`, `NettyUtils.java`, `GRPCUtils.java`, `InferenceImpl.java`.
"""

from __future__ import annotations

import orjson

from gateway.protocol.conversion.errors import read_error
from gateway.protocol.translator import Reply

_STATUSES = {
    (400, "InvalidKeyException"): 401,
    (503, "InternalServerException"): 500,  # the handler failed: another try would fail too
}
_GRPC_INTERNAL, _GRPC_NOT_FOUND, _GRPC_UNAVAILABLE, _GRPC_INVALID = 13, 5, 14, 3
_EXCEPTIONS = {
    "ModelNotFoundException": _GRPC_NOT_FOUND,
    "ModelVersionNotFoundException": _GRPC_NOT_FOUND,
    "BadRequestException": _GRPC_INVALID,
}


def error_of(reply: Reply) -> Reply:
    """The V2 reply for one of TorchServe's with a status of 400 or above."""
    message, _ = read_error(reply.body)
    status = _STATUSES.get((reply.status, _type(reply.body)), reply.status)
    return Reply(status, error_body(message or f"TorchServe answered with status {reply.status}"))


def error_body(message: str) -> bytes:
    return orjson.dumps({"error": message})


def grpc_error(status: int, message: str) -> tuple[int, str]:
    """The status and text of a failed call, as a V2 client reads them: TorchServe calls most of it INTERNAL, and tells
    the class of its exception in a second line."""
    text, _, exception = message.partition("\n")
    name = exception.rpartition(".")[2] if not exception.endswith(".()") else exception.removesuffix(".()")
    if status == _GRPC_INTERNAL:
        status = _EXCEPTIONS.get(name, status)
    elif status == _GRPC_UNAVAILABLE and name == "InternalServerException":
        status = _GRPC_INTERNAL
    return status, text


def _type(body: bytes) -> str:
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    found = told.get("type") if isinstance(told, dict) else None
    return found if isinstance(found, str) else ""

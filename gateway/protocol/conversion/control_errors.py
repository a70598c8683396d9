"""Failures of control calls, in the words of either protocol.

Source: Triton's status tables (server `src/http_server.cc` HttpCodeFromError, `src/grpc/grpc_utils.cc`); where Triton
has no answer, google/rpc/code.proto.
"""

from __future__ import annotations

from gateway.protocol.conversion.errors import error_json, read_error
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_status import INTERNAL, INVALID_ARGUMENT, UNKNOWN, http_status
from gateway.protocol.translator import Reply

# gRPC sends a message in a header field, whose readers allow 8 KiB for all fields; three bytes stand for an odd one.
_MAX_MESSAGE_CHARACTERS = 1000

_CODES = {
    400: INVALID_ARGUMENT,
    401: 16,  # UNAUTHENTICATED
    403: 7,  # PERMISSION_DENIED
    404: 5,  # NOT_FOUND
    405: 12,  # UNIMPLEMENTED
    408: 4,  # DEADLINE_EXCEEDED
    409: 10,  # ABORTED
    413: 8,  # RESOURCE_EXHAUSTED
    422: INVALID_ARGUMENT,
    429: 8,
    431: 8,
    499: 1,  # CANCELLED
    500: INTERNAL,
    501: 12,
    502: 14,  # UNAVAILABLE
    503: 14,
    504: 4,
}
# CANCELLED, UNKNOWN and ALREADY_EXISTS are 400 to Triton.
_TRITON_STATUSES = {1: 400, 2: 400, 6: 400}


class RpcError(Exception):
    """An engine's refusal: `code` is the number of google.rpc.Code, the message is what the engine said."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def rpc_error(status: int, body: bytes) -> RpcError:
    """A REST refusal as a gRPC status: the message is the `error` of a JSON body, else the body's text, else the
    status."""
    default = INVALID_ARGUMENT if 400 <= status < 500 else INTERNAL if status >= 500 else UNKNOWN
    return RpcError(
        _CODES.get(status, default), (read_error(body)[0] or f"HTTP status {status}")[:_MAX_MESSAGE_CHARACTERS]
    )


def rest_error(code: int, message: str) -> Reply:
    """A gRPC status as Triton's REST would tell it: `{"error": message}`."""
    return Reply(_TRITON_STATUSES.get(code) or http_status(code), error_json(message))


def bad_answer(rpc: str, reason: str) -> GatewayError:
    """What an engine answered cannot be understood."""
    return GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"the engine's answer to {rpc} cannot be read: {reason}")

"""Errors of the engine host: Triton's error codes, and one table of how each looks on HTTP and on gRPC.

Source: Triton core `tritonserver.h` (TRITONSERVER_Error_Code), server `http_server.cc` and `grpc/grpc_utils.cc`.
"""

from __future__ import annotations

from enum import IntEnum

from gateway.protocol.errors import Status


class ErrorCode(IntEnum):
    """TRITONSERVER_Error_Code, by its number; also the codes of `pb_utils.TritonError`."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


STATUSES: dict[ErrorCode, Status] = {
    ErrorCode.UNKNOWN: Status(400, 2),
    ErrorCode.INTERNAL: Status(500, 13),
    ErrorCode.NOT_FOUND: Status(404, 5),
    ErrorCode.INVALID_ARG: Status(400, 3),
    ErrorCode.UNAVAILABLE: Status(503, 14),
    ErrorCode.UNSUPPORTED: Status(501, 12),
    ErrorCode.ALREADY_EXISTS: Status(400, 6),
    ErrorCode.CANCELLED: Status(400, 1),
}


class EngineError(Exception):
    """A failure that the caller receives: `code` selects the status, `message` is the text for the caller."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> Status:
        return STATUSES[self.code]


def invalid(message: str) -> EngineError:
    """A request that is wrong."""
    return EngineError(ErrorCode.INVALID_ARG, message)


def internal(message: str) -> EngineError:
    """A failure of a model or of the host."""
    return EngineError(ErrorCode.INTERNAL, message)


def unavailable(message: str) -> EngineError:
    """A request that would do at another time."""
    return EngineError(ErrorCode.UNAVAILABLE, message)

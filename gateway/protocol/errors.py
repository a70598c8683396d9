"""Errors as kinds: one table says how each kind looks on HTTP and on gRPC.

Source: Triton's HTTP and gRPC status tables (../shared/PROTOCOL.md a.2); gateway kinds follow the same style.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ErrorKind(Enum):
    """What went wrong, as `x-pointsman-reason` names it."""

    BAD_REQUEST = "bad_request"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    NO_ROUTE = "no_route"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    HEADERS_TOO_LARGE = "headers_too_large"
    BODY_TOO_LARGE = "body_too_large"
    REQUEST_TIMEOUT = "request_timeout"
    NO_HEALTHY_ENDPOINT = "no_healthy_endpoint"
    SEQUENCE_LOST = "sequence_lost"
    OVERLOADED = "overloaded"
    RATE_LIMITED = "rate_limited"
    DEADLINE = "deadline"
    UPSTREAM_CONNECT = "upstream_connect"
    UPSTREAM_RESET = "upstream_reset"
    UPSTREAM_PROTOCOL = "upstream_protocol"
    NOT_READY = "not_ready"
    UNSUPPORTED = "unsupported"
    HISTORY_MISSING = "history_missing"
    CONVERSATION_FULL = "conversation_full"
    CANCELLED = "cancelled"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Status:
    """How a kind is told: an HTTP status and a gRPC status code (the number of google.rpc.Code)."""

    http: int
    grpc: int


STATUSES: dict[ErrorKind, Status] = {
    ErrorKind.BAD_REQUEST: Status(400, 3),  # INVALID_ARGUMENT
    ErrorKind.FORBIDDEN: Status(403, 7),  # PERMISSION_DENIED
    ErrorKind.NOT_FOUND: Status(404, 5),  # NOT_FOUND
    ErrorKind.NO_ROUTE: Status(404, 5),
    ErrorKind.METHOD_NOT_ALLOWED: Status(405, 12),  # UNIMPLEMENTED
    ErrorKind.HEADERS_TOO_LARGE: Status(431, 8),  # RESOURCE_EXHAUSTED
    ErrorKind.BODY_TOO_LARGE: Status(413, 8),
    ErrorKind.REQUEST_TIMEOUT: Status(408, 4),  # DEADLINE_EXCEEDED
    ErrorKind.NO_HEALTHY_ENDPOINT: Status(503, 14),  # UNAVAILABLE
    ErrorKind.SEQUENCE_LOST: Status(503, 14),
    ErrorKind.OVERLOADED: Status(503, 14),
    ErrorKind.RATE_LIMITED: Status(429, 8),
    ErrorKind.DEADLINE: Status(504, 4),
    ErrorKind.UPSTREAM_CONNECT: Status(502, 14),
    ErrorKind.UPSTREAM_RESET: Status(502, 14),
    ErrorKind.UPSTREAM_PROTOCOL: Status(502, 14),
    ErrorKind.NOT_READY: Status(400, 14),
    ErrorKind.UNSUPPORTED: Status(501, 12),
    ErrorKind.HISTORY_MISSING: Status(503, 14),
    ErrorKind.CONVERSATION_FULL: Status(400, 3),  # as OpenAI's API says of a context that is full
    ErrorKind.CANCELLED: Status(499, 1),  # by an operator: who reads 503 would ask again
    ErrorKind.INTERNAL: Status(500, 13),  # INTERNAL
}


class GatewayError(Exception):
    """A failure that the caller is told of: `kind` chooses the status, the message is what the caller may read, and
    `fields` (of the head, or trailers) tell it to programs."""

    def __init__(self, kind: ErrorKind, message: str, fields: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.fields = fields

    @property
    def status(self) -> Status:
        return STATUSES[self.kind]

    def at(self, where: str) -> GatewayError:
        """The same, with where it happened."""
        return GatewayError(self.kind, self.message + where, self.fields)

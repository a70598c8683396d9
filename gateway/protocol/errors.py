"""Errors as kinds: one table says how each kind looks on HTTP and on gRPC.

Source: Triton's HTTP and gRPC status tables (../shared/PROTOCOL.md a.2); gateway kinds follow the same style.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Status:
    """How a kind is told: an HTTP status and a gRPC status code (the number of google.rpc.Code)."""

    http: int
    grpc: int


class ErrorKind(Enum):
    """What went wrong, as `x-pointsman-reason` names it, and its HTTP and gRPC status."""

    BAD_REQUEST = "bad_request", 400, 3  # INVALID_ARGUMENT
    UNAUTHENTICATED = "unauthenticated", 401, 16  # UNAUTHENTICATED
    FORBIDDEN = "forbidden", 403, 7  # PERMISSION_DENIED
    RESTRICTED = "restricted", 403, 14  # UNAVAILABLE, as Triton
    NOT_FOUND = "not_found", 404, 5  # NOT_FOUND
    NO_ROUTE = "no_route", 404, 5
    METHOD_NOT_ALLOWED = "method_not_allowed", 405, 12  # UNIMPLEMENTED
    HEADERS_TOO_LARGE = "headers_too_large", 431, 8  # RESOURCE_EXHAUSTED
    BODY_TOO_LARGE = "body_too_large", 413, 8
    UNSUPPORTED_CODING = "unsupported_coding", 415, 12
    REQUEST_TIMEOUT = "request_timeout", 408, 4  # DEADLINE_EXCEEDED
    NO_HEALTHY_ENDPOINT = "no_healthy_endpoint", 503, 14  # UNAVAILABLE
    SEQUENCE_LOST = "sequence_lost", 503, 14
    OVERLOADED = "overloaded", 503, 14
    OUT_OF_BUFFERS = "out_of_buffers", 503, 8
    RATE_LIMITED = "rate_limited", 429, 8
    BUDGET_EXHAUSTED = "budget_exhausted", 429, 8
    DEADLINE = "deadline", 504, 4
    UPSTREAM_CONNECT = "upstream_connect", 502, 14
    UPSTREAM_RESET = "upstream_reset", 502, 14
    UPSTREAM_PROTOCOL = "upstream_protocol", 502, 14
    LOOP = "loop", 508, 9  # FAILED_PRECONDITION
    UNSUPPORTED = "unsupported", 501, 12
    HISTORY_MISSING = "history_missing", 503, 14
    CONVERSATION_FULL = "conversation_full", 400, 3  # as OpenAI's API says of a context that is full
    CANCELLED = "cancelled", 499, 1  # by an operator: who reads 503 would ask again
    HOOK_FAILED = "hook_failed", 500, 13  # INTERNAL
    INTERNAL = "internal", 500, 13

    _value_: str
    status: Status

    def __new__(cls, word: str, http: int = 0, grpc: int = 0) -> ErrorKind:
        """`word` is the member's value, so that `ErrorKind("deadline")` finds it."""
        member = object.__new__(cls)
        member._value_ = word
        member.status = Status(http, grpc)
        return member


# What is said of a failure where engines and their addresses are not named.
_NAMELESS = {
    ErrorKind.UPSTREAM_CONNECT: "the engine cannot be reached",
    ErrorKind.UPSTREAM_RESET: "the engine broke off",
    ErrorKind.UPSTREAM_PROTOCOL: "the engine's reply cannot be understood",
    ErrorKind.NO_HEALTHY_ENDPOINT: "no endpoint is healthy",
    ErrorKind.SEQUENCE_LOST: "the sequence is lost: start it anew",
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
        return self.kind.status

    def without_names(self, engine: str) -> GatewayError:
        """The same for callers who may not know what engines there are; `engine` is the name of the one that it is
        about."""
        text = _NAMELESS.get(self.kind) or self.message.replace(f"engine '{engine}'", "the engine")
        return GatewayError(self.kind, text, self.fields)

    def again(self) -> GatewayError:
        """The same, to be raised: one that is kept would keep the frames of all that raised it, with their bodies."""
        return self.at("")

    def at(self, where: str) -> GatewayError:
        """The same, with where it happened."""
        return GatewayError(self.kind, self.message + where, self.fields)


def bad_request(message: str) -> GatewayError:
    """What the client sent cannot be understood."""
    return GatewayError(ErrorKind.BAD_REQUEST, message)

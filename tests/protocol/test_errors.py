"""Error kinds and their status codes."""

import pytest

from gateway.protocol.errors import ErrorKind, GatewayError


@pytest.mark.parametrize(
    "kind, reason, http, grpc",
    [
        (ErrorKind.BAD_REQUEST, "bad_request", 400, 3),
        (ErrorKind.NOT_FOUND, "not_found", 404, 5),
        (ErrorKind.NO_ROUTE, "no_route", 404, 5),
        (ErrorKind.METHOD_NOT_ALLOWED, "method_not_allowed", 405, 12),
        (ErrorKind.HEADERS_TOO_LARGE, "headers_too_large", 431, 8),
        (ErrorKind.BODY_TOO_LARGE, "body_too_large", 413, 8),
        (ErrorKind.REQUEST_TIMEOUT, "request_timeout", 408, 4),
        (ErrorKind.NO_HEALTHY_ENDPOINT, "no_healthy_endpoint", 503, 14),
        (ErrorKind.OVERLOADED, "overloaded", 503, 14),
        (ErrorKind.DEADLINE, "deadline", 504, 4),
        (ErrorKind.UPSTREAM_CONNECT, "upstream_connect", 502, 14),
        (ErrorKind.UPSTREAM_RESET, "upstream_reset", 502, 14),
        (ErrorKind.UPSTREAM_PROTOCOL, "upstream_protocol", 502, 14),
        (ErrorKind.UNSUPPORTED, "unsupported", 501, 12),
        (ErrorKind.HISTORY_MISSING, "history_missing", 503, 14),
        (ErrorKind.CONVERSATION_FULL, "conversation_full", 400, 3),
        (ErrorKind.INTERNAL, "internal", 500, 13),
    ],
)
def test_how_a_kind_is_told(kind: ErrorKind, reason: str, http: int, grpc: int) -> None:
    """Each kind has a reason code and the HTTP and gRPC status that Triton uses."""
    error = GatewayError(kind, "what the caller may read")
    assert (kind.value, error.status.http, error.status.grpc) == (reason, http, grpc)
    assert (str(error), error.message) == ("what the caller may read", "what the caller may read")


def test_every_kind_has_a_status() -> None:
    """Every kind has an HTTP and a gRPC error status."""
    assert all(400 <= kind.status.http < 600 and 1 <= kind.status.grpc <= 16 for kind in ErrorKind)

"""gRPC's health protocol: whom a check asks about, and the answers, which never change and so are bytes.

Source: grpc/grpc `doc/health-checking.md`, grpc/health/v1/health.proto.
"""

from __future__ import annotations

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_methods import SERVICE
from gateway.protocol.infer_message_head import fields

HEALTH_SERVICE = "grpc.health.v1.Health"
CHECK_PATH = f"/{HEALTH_SERVICE}/Check".encode("ascii")
WATCH_PATH = f"/{HEALTH_SERVICE}/Watch".encode("ascii")

# HealthCheckResponse: field 1, the status, as a varint.
SERVING = b"\x08\x01"
NOT_SERVING = b"\x08\x02"
SERVICE_UNKNOWN = b"\x08\x03"  # Watch alone says it; Check fails with NOT_FOUND

# The empty name is the whole server.
SERVICES = frozenset({"", SERVICE, HEALTH_SERVICE})


def read_service(message: bytes) -> str:
    """The service that a HealthCheckRequest asks about.

    Raises: GatewayError(BAD_REQUEST) where the message is malformed.
    """
    name = b""
    for number, _, value in fields(message):
        if number == 1 and isinstance(value, bytes):
            name = value
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        raise GatewayError(ErrorKind.BAD_REQUEST, "the service's name is no UTF-8") from None


def is_known(service: str) -> bool:
    """Whether the gateway speaks for a service of this name."""
    return service in SERVICES


def write_status(is_serving: bool) -> bytes:
    """A HealthCheckResponse about a known service."""
    return SERVING if is_serving else NOT_SERVING


def unknown_service(service: str) -> GatewayError:
    """What a Check of a service that nobody knows fails with: NOT_FOUND."""
    return GatewayError(ErrorKind.NOT_FOUND, f"no service named '{service}' is known here")

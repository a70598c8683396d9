"""Fields for which a request is refused, whatever its route."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gateway.protocol.errors import ErrorKind, GatewayError, bad_request
from gateway.wire.http1.head import Field

# Gateways behind each other that a request passes through. More are one: an endpoint leads back to it.
_MAX_HOPS = 8
_NAME = b"pointsman"


def find_refusal(fields: Iterable[Field], deciding: Collection[bytes]) -> GatewayError | None:
    """Why a head is refused: one of the `deciding` fields stands twice with different values, of which the engine would
    get both; or the request goes in a circle."""
    known: dict[bytes, bytes] = {}
    hops = 0
    for name, value in fields:
        if name in deciding and known.setdefault(name, value) != value:
            return contradiction(name)
        if name == b"via":
            hops += value.count(_NAME)
    if hops > _MAX_HOPS:
        what = f"the request has passed through {hops} gateways (via): an endpoint leads back to one of them"
        return GatewayError(ErrorKind.LOOP, what)
    return None


def contradiction(name: bytes) -> GatewayError:
    return bad_request(f"the field {name.decode('latin-1')} stands twice with different values")

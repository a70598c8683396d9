"""The header fields that the gateway adds to replies, in one table for both fronts.

The writers of HTTP/1.1 (`local_replies`), of REST on HTTP/2 (`protocol_bridge.rest_over_http2`) and of gRPC
(`grpc.reply_headers`) send them: a field for every reply is added here, and nowhere else.
"""

from __future__ import annotations

from gateway.protocol.errors import GatewayError
from gateway.routing.decision import Target
from gateway.wire.http1.head import Field

# Of every reply of either front: relayed, streamed or local, an error or not. Names are in lower case.
EVERY_REPLY: list[Field] = []
# Of REST replies that an engine has a part in.
VIA = (b"via", b"1.1 pointsman")


def decision_fields(target: Target) -> list[Field]:
    """The fields that say where the rules have sent a request."""
    named = {b"x-pointsman-route": target.route, b"x-pointsman-engine": target.engine, b"x-pointsman-arm": target.arm}
    if target.stands_in_for is not None:
        named[b"x-pointsman-fallback"] = target.stands_in_for.value
    if target.hedge is not None:
        named[b"x-pointsman-hedge"] = target.hedge.value
    return [(name, value.encode("latin-1", "replace")) for name, value in named.items() if value]


def lines_of(fields: list[Field]) -> bytes:
    """The fields as lines of HTTP/1.1."""
    return b"".join([b"%b: %b\r\n" % field for field in fields])


def reason_fields(error: GatewayError) -> list[Field]:
    """The fields by which programs recognise a failure: its kind, and what the error adds."""
    return [(b"x-pointsman-reason", error.kind.value.encode("ascii")), *error.fields]

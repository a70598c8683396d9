"""The head of a request as an engine gets it that declares some of the gateway's own fields."""

from __future__ import annotations

from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.prepared_head import PreparedHead
from gateway.upstream.engine import Engine


def overridden_head(
    client: Client, plan: PreparedHead, engine: Engine, beginning: bytes, framing_line: bytes, request_id: bytes
) -> bytes:
    """The head without those of the gateway's fields that the engine declares; `beginning` has the request's lines."""
    names = engine.extra_names
    pieces = [beginning]
    if b"x-forwarded-for" not in names:
        pieces.append(client.forwarded_for_line)
    if b"x-forwarded-proto" not in names and not plan.keeps_forwarded_proto:
        pieces.append(client.forwarded_proto_line)
    pieces += (engine.extra_lines, framing_line)
    if b"x-request-id" not in names:
        pieces.append(b"x-request-id: %b\r\n" % request_id)
    return b"".join([*pieces, b"\r\n"])

"""A handler between a client and another handler: the client of that one, and the handler of the client."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.local_handler import ForwardingHandler
from gateway.dataplane.context.local_replies import JSON
from gateway.dataplane.context.route_target import RouteTarget
from gateway.protocol.errors import GatewayError
from gateway.wire.http1.head import Field, ResponseHead


class InterposedHandler(ForwardingHandler):
    """Passes the reply on; see `interfaces.Client`. What the client does, subclasses pass on."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.plane = client.plane
        self.peer = client.peer
        self.forwarded_for_line = client.forwarded_for_line
        self.forwarded_proto_line = client.forwarded_proto_line
        self.is_tls = client.is_tls
        self.takes_payload = client.takes_payload
        self.shared_connection = client.shared_connection
        self.trace = client.trace

    @property
    def is_paused(self) -> bool:
        return self._client.is_paused

    def relay(
        self, head: ResponseHead, route_target: RouteTarget, added: Sequence[Field], request_id: bytes, data: bytes
    ) -> None:
        self._client.relay(head, route_target, added, request_id, data)

    def write(self, data: bytes) -> None:
        self._client.write(data)

    def read_ahead(self, size: int) -> bool:
        return self._client.read_ahead(size)

    def start_stream(self, content_type: str, fields: Sequence[Field], data: bytes) -> None:
        self._client.start_stream(content_type, fields, data)

    def write_piece(self, data: bytes, ended: bool = False) -> None:
        self._client.write_piece(data, ended)

    def write_at_once(self) -> None:
        self._client.write_at_once()

    def expect_body(self) -> None:
        self._client.expect_body()

    def hold_body(self) -> None:
        self._client.hold_body()

    def pause_body(self) -> None:
        self._client.pause_body()

    def resume_body(self) -> None:
        self._client.resume_body()

    def reply_ended(self) -> None:
        self._client.reply_ended()

    def respond(self, status: int, body: bytes, fields: Sequence[Field] = (), content_type: str = JSON) -> None:
        self._client.respond(status, body, fields, content_type)

    def refuse(self, error: GatewayError, fields: Sequence[Field] = ()) -> None:
        self._client.refuse(error, fields)

    def break_off(self, event: bytes = b"") -> None:
        self._client.break_off(event)

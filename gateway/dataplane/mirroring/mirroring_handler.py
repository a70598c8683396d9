"""A mirrored REST request: `MirroringHandler` stands between its client and its handler, and copies both bodies.

It is the client of the handler, and the handler of the client. The copies go to the shadow process once the reply has
ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from gateway.dataplane.context.active_requests import Progress
from gateway.dataplane.context.capture import BoundedCopy
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client, Handler, Serve
from gateway.dataplane.context.interposed_handler import InterposedHandler
from gateway.dataplane.context.local_replies import (
    CHUNKS,
    JSON,
    KEEP_ALIVE_END,
    error_reply,
    lines_of,
    relayed,
    reply,
    stream_head,
)
from gateway.dataplane.context.prepared_head import FORWARDED
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.context.server_timing import REQUEST_FIELD
from gateway.dataplane.mirroring.reply_capture import UNMIRRORED, ReplyCapture, start_capture
from gateway.protocol.errors import GatewayError
from gateway.protocol.sequence import AnySession
from gateway.wire.http1.head import Field, ResponseHead

# Written for the candidate.
_OWN = frozenset({b"content-length", b"expect", b"host", b"x-request-id", b"x-pointsman-shadow", REQUEST_FIELD})
# And those that only another proxy may send.
_FOREIGN = _OWN | FORWARDED


def mirrored(
    client: Client, request: Request, route_target: RouteTarget, session: AnySession | None, serve: Serve
) -> Handler:
    """The handler of a request whose target has a shadow; `serve` makes the one that answers."""
    plan = request.plan
    if not plan.is_inference or plan.without_body:
        return serve(client, request, route_target, session)
    capture = start_capture(client.plane.tap, route_target, request.id or b"", monotonic())
    if capture is None:
        return serve(client, request, route_target, session)
    if request.id is None:  # both engines get the same
        request = request.of(plan)
        request.id = capture.request_id = client.plane.new_request_id()
    return MirroringHandler(client, request, route_target, session, serve, capture)


class MirroringHandler(InterposedHandler):
    """Copies what passes."""

    _handler: Handler

    def __init__(
        self,
        client: Client,
        request: Request,
        route_target: RouteTarget,
        session: AnySession | None,
        serve: Serve,
        capture: ReplyCapture,
    ) -> None:
        super().__init__(client)
        self._request = request
        self._route = route_target.spec.route
        self._capture = capture
        capture.trace = client.trace
        self._body = BoundedCopy(capture.max_bytes)
        self._handler = serve(self, request, route_target, session)

    # As the handler

    def body_received(self, data: bytes, ended: bool) -> None:
        if data:
            self._body.add(data)
        self._handler.body_received(data, ended)

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        self._capture.drop("client_gone")
        self._handler.client_gone(reason, status)

    def progress(self) -> Progress:
        return self._handler.progress()

    # As the client

    def relay(
        self, head: ResponseHead, route_target: RouteTarget, added: Sequence[Field], request_id: bytes, data: bytes
    ) -> None:
        # Without framing, the copy's body ends with the copy.
        is_framed = head.is_chunked and not self.takes_payload and not self._request.plan.head.is_http_10
        ending = CHUNKS + KEEP_ALIVE_END if is_framed else KEEP_ALIVE_END
        self._capture.add(relayed(head, route_target, added, request_id, ending, data))
        self._client.relay(head, route_target, added, request_id, data)

    def write(self, data: bytes) -> None:
        self._capture.add(data)
        self._client.write(data)

    def start_stream(self, content_type: str, fields: Sequence[Field], data: bytes) -> None:
        self._capture.add(stream_head(content_type, fields, KEEP_ALIVE_END) + data)
        self._client.start_stream(content_type, fields, data)

    def write_piece(self, data: bytes, ended: bool = False) -> None:
        self._capture.add(data)
        self._client.write_piece(data, ended)

    def reply_ended(self) -> None:
        self._client.reply_ended()
        self._hand_over()

    def respond(self, status: int, body: bytes, fields: Sequence[Field] = (), content_type: str = JSON) -> None:
        self._client.respond(status, body, fields, content_type)
        self._capture.add(reply(status, body, content_type, fields, KEEP_ALIVE_END, without_body=False))
        self._hand_over(status)

    def refuse(self, error: GatewayError, fields: Sequence[Field] = ()) -> None:
        self._client.refuse(error, fields)
        if error.kind in UNMIRRORED:
            self._capture.drop("refused")
            return
        status, body, fields = error_reply(error, self._request.plan.api, fields)
        self._capture.add(reply(status, body, JSON, fields, KEEP_ALIVE_END, without_body=False))
        self._hand_over(status)

    def break_off(self, event: bytes = b"") -> None:
        self._client.break_off(event)
        self._capture.drop("broken_off")

    def _hand_over(self, status: int = 0) -> None:
        request, body = self._request, self._body
        head = _head(request, self._route, body.size, _OWN if self.plane.settings.trust_forwarded else _FOREIGN)
        self._capture.hand_over(head, body.pieces if body.is_whole else None, status)


def _head(request: Request, route: str, size: int, dropped: frozenset[bytes]) -> str:
    """The head of the candidate's request: the client's without the `dropped` fields, and the route."""
    head = request.plan.head
    fields = [field for field in (*head.fields, *request.fields) if field[0] not in dropped]
    fields += [(b"x-request-id", request.id or b""), (b"x-pointsman-shadow", route.encode("latin-1"))]
    opening = f"{head.method} {head.target.decode('latin-1')} HTTP/1.1\r\nhost: pointsman\r\ncontent-length: {size}\r\n"
    return f"{opening}{lines_of(fields).decode('latin-1')}\r\n"

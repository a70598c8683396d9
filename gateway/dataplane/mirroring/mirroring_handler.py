"""A REST request that is mirrored: between its client and its handler stands one who copies what passes.

It is the client of the handler, and the handler of the client. When the reply has ended the copies are handed over;
whoever waits for the reply has it by then.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from time import monotonic

from gateway.config.experiment_specs import ShadowSpec
from gateway.dataplane.context.active_requests import Progress
from gateway.dataplane.context.capture import CapturedFacts, Copy
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client, Handler
from gateway.dataplane.context.local_replies import (
    CHUNKS,
    JSON,
    KEEP_ALIVE_END,
    error_reply,
    relayed,
    reply,
    stream_head,
)
from gateway.dataplane.context.prepared_head import FORWARDED
from gateway.dataplane.context.server_timing import REQUEST_FIELD
from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.context.tap import Tap
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.wire.http1.head import Field, ResponseHead

# What the gateway refuses so as to be asked less: a candidate would get what limits keep from the route's own engine.
UNMIRRORED = (ErrorKind.RATE_LIMITED, ErrorKind.OVERLOADED)
# Told anew for the candidate.
_OWN = frozenset({b"content-length", b"expect", b"host", b"x-request-id", b"x-pointsman-shadow", REQUEST_FIELD})
# And those that only another proxy may say.
_FOREIGN = _OWN | FORWARDED

Serve = Callable[[Client, Request, Lane, str | None], Handler]


def is_drawn(shadow: ShadowSpec, tap: Tap, route: str) -> bool:
    """Whether this request is of the sample, and can be captured."""
    return random.random() < shadow.sample and tap.is_open_for(route, shadow.max_in_flight)


def mirrored(client: Client, request: Request, lane: Lane, session: str | None, serve: Serve) -> Handler:
    """The handler of a request whose lane has a shadow; `serve` makes the one that answers."""
    shadow, plan = lane.shadow, request.plan
    assert shadow is not None
    if not plan.is_inference or plan.without_body or not is_drawn(shadow, client.plane.tap, lane.target.route):
        return serve(client, request, lane, session)
    if request.id is None:  # both engines are asked by one
        request = request.of(plan)
        request.id = client.plane.new_request_id()
    return MirroringHandler(client, request, lane, session, serve)


class MirroringHandler(Handler):
    """See `seams.Client` and `seams.Handler` for what is asked of it."""

    __slots__ = (
        "_answer",
        "_body",
        "_client",
        "_first_at",
        "_handler",
        "_lane",
        "_request",
        "_started_at",
        "forwarded_for_line",
        "forwarded_proto_line",
        "is_tls",
        "peer",
        "plane",
    )

    def __init__(self, client: Client, request: Request, lane: Lane, session: str | None, serve: Serve) -> None:
        assert lane.shadow is not None
        self._client = client
        self._request = request
        self._lane = lane
        self._body = Copy(lane.shadow.max_bytes)
        self._answer = Copy(lane.shadow.max_bytes)
        self._started_at = monotonic()
        self._first_at = 0.0
        self.plane = client.plane
        self.peer = client.peer
        self.forwarded_for_line = client.forwarded_for_line
        self.forwarded_proto_line = client.forwarded_proto_line
        self.is_tls = client.is_tls
        self._handler = serve(self, request, lane, session)

    # As the handler

    def body_received(self, data: bytes, ended: bool) -> None:
        if data:
            self._body.add(data)
        self._handler.body_received(data, ended)

    @property
    def begun(self) -> bool:
        return self._handler.begun

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        self.plane.tap.drop(self._lane.target.route, "client_gone")
        self._handler.client_gone(reason, status)

    def client_paused(self) -> None:
        self._handler.client_paused()

    def client_resumed(self) -> None:
        self._handler.client_resumed()

    def sweep(self, now: float) -> None:
        self._handler.sweep(now)

    def progress(self) -> Progress:
        return self._handler.progress()

    # As the client

    @property
    def is_paused(self) -> bool:
        return self._client.is_paused

    @property
    def takes_payload(self) -> bool:
        return self._client.takes_payload

    def relay(self, head: ResponseHead, lane: Lane, added: Sequence[Field], request_id: bytes, data: bytes) -> None:
        self._first_at = monotonic()
        # Without framing, the copy's body ends with the copy.
        is_framed = head.is_chunked and not self.takes_payload and not self._request.plan.head.is_http_10
        ending = CHUNKS + KEEP_ALIVE_END if is_framed else KEEP_ALIVE_END
        self._answer.add(relayed(head, lane, added, request_id, ending, data))
        self._client.relay(head, lane, added, request_id, data)

    def write(self, data: bytes) -> None:
        self._answer.add(data)
        self._client.write(data)

    def start_stream(self, content_type: str, fields: Sequence[Field], data: bytes) -> None:
        self._first_at = monotonic()
        self._answer.add(stream_head(content_type, fields, KEEP_ALIVE_END) + data)
        self._client.start_stream(content_type, fields, data)

    def write_piece(self, data: bytes, ended: bool = False) -> None:
        self._answer.add(data)
        self._client.write_piece(data, ended)

    def write_at_once(self) -> None:
        self._client.write_at_once()

    def expect_body(self) -> None:
        self._client.expect_body()

    def pause_body(self) -> None:
        self._client.pause_body()

    def resume_body(self) -> None:
        self._client.resume_body()

    def reply_ended(self) -> None:
        self._client.reply_ended()
        self._hand_over()

    def respond(self, status: int, body: bytes, fields: Sequence[Field] = (), content_type: str = JSON) -> None:
        self._client.respond(status, body, fields, content_type)
        self._answer.add(reply(status, body, content_type, fields, KEEP_ALIVE_END, without_body=False))
        self._hand_over(status)

    def refuse(self, error: GatewayError, fields: Sequence[Field] = ()) -> None:
        self._client.refuse(error, fields)
        if error.kind in UNMIRRORED:
            self.plane.tap.drop(self._lane.target.route, "refused")
            return
        status, body, fields = error_reply(error, self._request.plan.api, fields)
        self._answer.add(reply(status, body, JSON, fields, KEEP_ALIVE_END, without_body=False))
        self._hand_over(status)

    def break_off(self, event: bytes = b"") -> None:
        self._client.break_off(event)
        self.plane.tap.drop(self._lane.target.route, "broken_off")

    # Handing over

    def _hand_over(self, status: int = 0) -> None:
        """The reply has ended; its status stands in it where it is not told here."""
        route, tap, body, answer = self._lane.target.route, self.plane.tap, self._body, self._answer
        if not (body.is_whole and answer.is_whole):
            tap.drop(route, "too_long")
            return
        now = monotonic()
        request, target = self._request, self._lane.target
        facts = CapturedFacts(
            route=route,
            engine=target.engine,
            model=target.model,
            request_id=(request.id or b"").decode("latin-1"),
            head=_head(request, route, body.size, _OWN if self.plane.settings.trust_forwarded else _FOREIGN),
            is_call=False,
            answer_encoding="",
            status=status,
            seconds=now - self._started_at,
            first_seconds=(self._first_at or now) - self._started_at,
        )
        assert self._lane.shadow is not None
        tap.give(facts, body.pieces, answer.pieces, self._lane.shadow.max_in_flight)


def _head(request: Request, route: str, size: int, dropped: frozenset[bytes]) -> str:
    """The head that a candidate is asked by: the client's but for some fields, and which route's shadow it is."""
    head = request.plan.head
    fields = [field for field in (*head.fields, *request.volatile) if field[0] not in dropped]
    fields += [(b"x-request-id", request.id or b""), (b"x-pointsman-shadow", route.encode("latin-1"))]
    lines = b"".join([b"%b: %b\r\n" % field for field in fields])
    opening = f"{head.method} {head.target.decode('latin-1')} HTTP/1.1\r\nhost: pointsman\r\ncontent-length: {size}\r\n"
    return f"{opening}{lines.decode('latin-1')}\r\n"

"""A client's HTTP/1.1 connection: requests to handlers, and their replies as HTTP/1.1 writes them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from gateway.dataplane.context.active_requests import ActiveRequest
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.ended_request import UNREAD, EndedRequest
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Handler
from gateway.dataplane.context.local_replies import (
    CHUNKS,
    CLOSE_END,
    JSON,
    KEEP_ALIVE_END,
    KEEP_ALIVE_END_10,
    NOT_MODIFIED,
    error_event,
    error_reply,
    relayed,
    reply,
    stream_head,
)
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.dispatch.rest import handler_for, handler_of_whole
from gateway.net.client_certificate import ClientCertificate, certificate_of
from gateway.net.http1_server import Http1Server, Owed, ParserState, Rejection
from gateway.observability.request_trace import RequestTrace
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.operations import INFERENCE_OPERATIONS, Operation
from gateway.wire.http1.body import LAST_CHUNK, encode_chunk
from gateway.wire.http1.head import HEAD_END, Field, ResponseHead

_REJECTIONS = {
    Rejection.HEAD_TOO_LONG: (
        ErrorKind.HEADERS_TOO_LARGE,
        "the request's head is longer than {limits.max_header_bytes} bytes (--max-header-bytes)",
    ),
    Rejection.MALFORMED: (ErrorKind.BAD_REQUEST, "malformed request: {detail}"),
    Rejection.HEAD_TIMEOUT: (
        ErrorKind.REQUEST_TIMEOUT,
        "the request's head did not come within {limits.header_timeout:g} s",
    ),
    Rejection.BODY_TIMEOUT: (
        ErrorKind.REQUEST_TIMEOUT,
        "no more of the request's body came for {limits.body_timeout:g} s",
    ),
    Rejection.BODY_TOO_SLOW: (
        ErrorKind.REQUEST_TIMEOUT,
        "the request's body comes slower than {limits.min_rate} bytes a second (--min-rate)",
    ),
}


class Http1ServerConnection(Http1Server):
    """The front of HTTP/1.1: reads each request by the rules in force and hands it to a handler."""

    takes_payload = False
    shared_connection: object | None = None  # one request at a time

    __slots__ = (
        "_handler",
        "_head_end",
        "_request",
        "_streams_events",
        "_writes_at_once",
        "certificate",
        "forwarded_for_line",
        "forwarded_proto_line",
        "is_tls",
        "peer",
        "plane",
        "spans",
        "trace",
        "write",
    )

    def __init__(self, plane: DataPlane) -> None:
        limits = plane.settings.limits
        super().__init__(plane.loop, limits.max_header_bytes, limits.max_body_bytes)
        self.plane = plane
        self.spans = plane.spans
        self.trace: RequestTrace | None = None
        self._handler: Handler | None = None
        self._request: Request | None = None
        self._head_end = KEEP_ALIVE_END
        self.is_tls = False
        self.certificate: ClientCertificate | None = None
        self._writes_at_once = False
        self._streams_events = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.write = self._transport.write
        limits = self.plane.settings.limits
        self._transport.set_write_buffer_limits(high=limits.high_water_bytes)
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if address else "-"
        self.forwarded_for_line = b"x-forwarded-for: %b\r\n" % self.peer.encode("ascii", "replace")
        self.is_tls = transport.get_extra_info("sslcontext") is not None
        self.certificate = certificate_of(transport) if self.is_tls else None
        self.forwarded_proto_line = b"x-forwarded-proto: %b\r\n" % (b"https" if self.is_tls else b"http")
        full = self.plane.too_many_connections(self.peer)
        if full is not None:
            self._give_up(full)
        self.plane.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.plane.connections.discard(self)
        self.plane.held.release(self)
        self.plane.read_ahead.release(self)
        self.plane.num_lingering -= self._state is ParserState.LINGER
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.client_gone()

    def eof_received(self) -> bool:
        """The client sends no more: it may read on, or have left, which only a write shows."""
        self._has_eof = True
        return not self.is_tls and self._answers_half_closed()

    def _answers_half_closed(self) -> bool:
        """Generations are cancelled at once: without a client, they are the most expensive work."""
        request = self._request
        if self._state is ParserState.HEAD:
            return HEAD_END in self._buffer  # `_read_waiting` goes on with it
        if self._state is not ParserState.REPLY or request is None:
            return False
        operation = request.plan.call.operation
        if operation in INFERENCE_OPERATIONS:
            timeout = self.plane.settings.limits.half_close_timeout
            if operation is not Operation.INFER or not timeout:
                return False
            self.loop.call_later(timeout, self._leave, self._handler)
        if not self._buffer:
            self.close_after_reply()
        return True

    def _leave(self, handler: Handler | None) -> None:
        if self._handler is handler:
            self._transport.close()

    def pause_writing(self) -> None:
        self.is_paused = True
        if self._handler is not None:
            self._handler.client_paused()

    def resume_writing(self) -> None:
        self.plane.read_ahead.release(self)
        super().resume_writing()
        if self._handler is not None:
            self._handler.client_resumed()

    # Reading requests

    def _head_received(self, head: bytes, body: bytes) -> None:
        try:
            request = self.plane.read(head, self)
        except GatewayError as error:
            self._give_up(error)
            return
        self._request = request
        if self.spans is not None:
            self.trace = self.spans.begin(request.traceparent)
        plan = request.plan
        prepared = plan.head
        self._expects_continue = prepared.expects_continue
        if not prepared.keep_alive or self.plane.is_draining:
            self.close_after_reply()
        elif prepared.is_http_10:
            self._head_end = KEEP_ALIVE_END_10
        length = request.length
        if length == len(body) <= plan.max_body_bytes:  # nearly always: the whole request, and nothing else
            self._state = ParserState.REPLY
            self._buffer = b""
            self._handler, body = handler_of_whole(self, request, body)
            self._handler.body_received(body, True)
            return
        self._max_body_bytes = float(plan.max_body_bytes)
        self._begin_body(length, expects_continue=prepared.expects_continue)
        if length is not None and length > self._max_body_bytes:
            self._reject(Rejection.BODY_TOO_LONG)
            return
        self._handler = handler = handler_for(self, request)
        if body:
            self._read_body(body)
        else:
            handler.body_received(b"", False)

    def _body_received(self, data: bytes, ended: bool) -> None:
        if ended:
            self.plane.held.release(self)
        if (data or ended) and self._handler is not None:
            self._handler.body_received(data, ended)

    def _reject(self, rejection: Rejection, detail: str = "") -> None:
        limits = self.plane.settings.limits
        if rejection is Rejection.BODY_TOO_LONG and self._request is not None:
            self._give_up(self._request.plan.body_too_long(limits))
            return
        kind, text = _REJECTIONS[rejection]
        self._give_up(GatewayError(kind, text.format(limits=limits, detail=detail)))

    def _seconds(self, owed: Owed) -> float:
        limits = self.plane.settings.limits
        if owed is Owed.HEAD:
            return limits.header_timeout
        return limits.idle_timeout if owed in (Owed.FIRST_HEAD, Owed.NEXT_HEAD) else limits.body_timeout

    def _least_rate(self) -> int:
        return self.plane.settings.limits.min_rate

    # Called by handlers

    def replace_handler(self, handler: Handler) -> None:
        """The request's handler stands behind this one from now on."""
        self._handler = handler

    def hold_body(self) -> None:
        self.expect_body()
        self.plane.held.hold(self, self._body.num_bytes, self)

    def relay(
        self, head: ResponseHead, route_target: RouteTarget, added: Sequence[Field], request_id: bytes, data: bytes
    ) -> None:
        ending = self._head_end
        if head.length is None:
            ending = self._framed_ending()
            if head.ends_at_close and ending.startswith(CHUNKS):
                data = encode_chunk(data)
        self.write(relayed(head, route_target, added, request_id, ending, data))

    def read_ahead(self, size: int) -> bool:
        return self.plane.read_ahead.take(self, size)

    def start_stream(self, content_type: str, fields: Sequence[Field], data: bytes) -> None:
        ending = self._framed_ending()
        if ending.startswith(CHUNKS):
            data = encode_chunk(data)
        self.write(stream_head(content_type, fields, ending) + data)

    def write_piece(self, data: bytes, ended: bool = False) -> None:
        if self._request is not None and self._request.plan.head.is_http_10:
            self.write(data)
        else:
            self.write(encode_chunk(data) + LAST_CHUNK if ended else encode_chunk(data))

    def _framed_ending(self) -> bytes:
        """What ends the head of a reply of unknown length; HTTP/1.0 has no chunks, so the connection ends it."""
        if self._request is not None and self._request.plan.head.is_http_10:
            self.close_after_reply()
            return self._head_end
        return CHUNKS + self._head_end

    def _has_begun_reply(self) -> bool:
        return self._handler is not None and self._handler.begun

    def close_after_reply(self) -> None:
        super().close_after_reply()
        self._head_end = CLOSE_END

    def write_at_once(self) -> None:
        """The reply comes in small pieces: each goes to the kernel at once, and what that does not take pauses the
        engine. uvloop otherwise queues writes for the end of the event loop's turn, at a price that a token notices.
        """
        self._streams_events = True
        if not self.is_tls:  # there a mark of zero would pause for ever
            self._writes_at_once = True
            self._transport.set_write_buffer_limits(high=0)

    def reply_ended(self) -> None:
        self._handler = None
        self._request = None
        if self._head_end is KEEP_ALIVE_END_10:
            self._head_end = KEEP_ALIVE_END
        self._streams_events = False
        if self._writes_at_once:
            self._writes_at_once = False
            self._transport.set_write_buffer_limits(high=self.plane.settings.limits.high_water_bytes)
        self._end_reply()

    def refuse(self, error: GatewayError, fields: Sequence[Field] = ()) -> None:
        """Answer the request under way with an error; the connection goes on where the request is read whole."""
        api = self._request.plan.api if self._request is not None else None
        self.respond(*error_reply(error, api, fields))

    def respond(self, status: int, body: bytes, fields: Sequence[Field] = (), content_type: str = JSON) -> None:
        """Answer the request under way with a complete reply of the gateway."""
        if self._state is ParserState.BODY:
            self.close_after_reply()
        without_body = status == NOT_MODIFIED or (self._request is not None and self._request.plan.without_body)
        self.write(reply(status, body, content_type, fields, self._head_end, without_body=without_body))
        self.reply_ended()

    def _give_up(self, error: GatewayError) -> None:
        """Answer what cannot be read on, and close the connection."""
        self._state = ParserState.BODY
        self.plane.held.release(self)
        handler, self._handler = self._handler, None
        if handler is None:
            self.plane.metrics.unrouted.count_error(error.kind.value)
            self.plane.metrics.unrouted.count_failure(error.status.http, 0.0)
            request_line = self._request.plan.request_line if self._request is not None else UNREAD
            trace = self.trace if self._request is not None else None
            ended = EndedRequest(self.peer, request_line, error.status.http, error.kind.value, 0.0, trace=trace)
            self.plane.request_log.add(ended)
        else:
            has_begun = handler.begun
            handler.client_gone(error.kind.value, error.status.http)
            if has_begun:
                self.break_off()
                return
        self.refuse(error, self._named())

    def _named(self) -> Sequence[Field]:
        """The field that names the request under way."""
        request = self._request
        return [(b"x-request-id", request.id or self.plane.new_request_id())] if request is not None else ()

    def live(self) -> list[ActiveRequest]:
        handler = self._handler
        return [ActiveRequest(handler.progress(), id(handler), self.cancel)] if handler is not None else []

    def cancel(self, error: GatewayError) -> None:
        """End the request under way with an error, for the engine and the client."""
        handler, self._handler = self._handler, None
        if handler is None:
            return
        self.plane.held.release(self)
        has_begun = handler.begun
        handler.client_gone(error.kind.value, error.status.http)
        if not has_begun:
            self.refuse(error, self._named())
            return
        api = self._request.plan.api if self._request is not None else None
        self.break_off(error_event(error, api) if self._streams_events else b"")

    def break_off(self, event: bytes = b"") -> None:
        """Close in the middle of a reply, so that the client sees it as incomplete; what is written is still sent."""
        self._handler = None
        if event and self._request is not None:
            self.write(event if self._request.plan.head.is_http_10 else encode_chunk(event))
        self._transport.close()

    # Closing

    def sweep(self, now: float) -> None:
        if self._handler is not None:
            self._handler.sweep(now)
        if self.certificate is not None and self.certificate.is_over:
            self.drain()
        super().sweep(now)

    def _close_gently(self) -> None:
        super()._close_gently()
        self.plane.num_lingering += self._state is ParserState.LINGER

"""One client's connection: bytes in, requests one after another, replies out in the same order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum
from time import monotonic
from typing import cast

from gateway.dataplane.context.active_request import ActiveRequest
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Handler
from gateway.dataplane.context.local_replies import (
    CHUNKS,
    CLOSE_END,
    CONTINUE,
    JSON,
    KEEP_ALIVE_END,
    KEEP_ALIVE_END_10,
    body_too_long,
    error_told,
    event_told,
    reason_fields,
    relayed,
    reply,
    status_told,
    stream_head,
)
from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.dispatch.rest import handler_for, handler_of_whole
from gateway.net.sockets import has_hung_up
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.wire.http1.body import LAST_CHUNK, ChunkedDecoder, encode_chunk
from gateway.wire.http1.head import CHUNKED, HEAD_END, UNTIL_CLOSE, Field, ResponseHead

# How long a connection is still read after its last reply: until the client has been silent for the first time, or for
# the second in all. Closing under a client that writes would reset the connection, and could destroy the reply before
# it is read; most clients read nothing until their body is sent whole, and bodies that are refused are long.
_LINGER_SECONDS = 2.0
_LINGER_SECONDS_IN_ALL = 30.0
# How long an idle connection stays open when the worker drains: a request that is on its way already is answered, with
# a word that it was the last one, where a connection closed under it would look to its client like a crash.
_LEAVE_SECONDS = 0.25


class State(Enum):
    """What the next bytes are."""

    HEAD = "a request's head"
    BODY = "a request's body"
    REPLY = "the next request, while this one is answered"
    LINGER = "nothing any more: the last reply is being read"


class Http1ServerConnection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive and pipelining: a request that comes early waits until those before it are answered."""

    takes_payload = False

    __slots__ = (
        "_active_at",
        "_buffer",
        "_closes_after_reply",
        "_decoder",
        "_expects_continue",
        "_handler",
        "_head_end",
        "_is_reading",
        "_is_tls",
        "_lingers_until",
        "_pauses_body",
        "_received",
        "_remaining",
        "_request",
        "_state",
        "_streams_events",
        "_transport",
        "_unsent",
        "_writes_at_once",
        "forwarded_for_line",
        "forwarded_proto_line",
        "is_paused",
        "peer",
        "plane",
        "write",
    )

    def __init__(self, plane: DataPlane) -> None:
        self.plane = plane
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)  # set before anything else happens
        self._state = State.HEAD
        self._buffer = b""  # an incomplete head, or requests that wait
        self._handler: Handler | None = None
        self._request: Request | None = None
        # The body of the request under way
        self._decoder: ChunkedDecoder | None = None
        self._remaining = 0
        self._received = 0
        self._expects_continue = False
        self._pauses_body = False
        self._closes_after_reply = False
        self._head_end = KEEP_ALIVE_END
        # Flow and time
        self._is_reading = True
        self.is_paused = False
        self._is_tls = False
        self._writes_at_once = False
        self._streams_events = False
        self._unsent = 0
        self._lingers_until = 0.0
        self._active_at = 0.0  # when it became idle, or when the last part of a head or body came

    def __repr__(self) -> str:
        return f"<Http1ServerConnection {self.peer} expects {self._state.value}>"

    # What the event loop tells it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.write = self._transport.write
        limits = self.plane.settings.limits
        self._transport.set_write_buffer_limits(high=limits.high_water_bytes)
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if address else "-"
        self.forwarded_for_line = b"x-forwarded-for: %b\r\n" % self.peer.encode("ascii", "replace")
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        self.forwarded_proto_line = b"x-forwarded-proto: %b\r\n" % (b"https" if self._is_tls else b"http")
        self._active_at = monotonic()
        # Those that only linger have given their place back: a crowd that is refused must not keep others out.
        num_served = len(self.plane.connections) - self.plane.num_lingering
        if limits.max_connections and num_served >= limits.max_connections:
            full = GatewayError(ErrorKind.OVERLOADED, f"{limits.max_connections} connections are open already")
            self._give_up(full)
        self.plane.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.plane.connections.discard(self)
        self.plane.num_lingering -= self._state is State.LINGER
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.client_gone()

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state is State.BODY:
            self._read_body(data)
        elif state is State.HEAD and not self.is_paused:
            self._read_head(self._buffer + data if self._buffer else data)
        elif state is not State.LINGER:  # it waits until the reply before is written, and mostly read
            self._buffer += data
            if len(self._buffer) > self.plane.settings.limits.max_header_bytes:
                self._set_reading(False)
        else:
            self._active_at = monotonic()

    def pause_writing(self) -> None:
        self.is_paused = True
        self._active_at = monotonic()
        self._unsent = self._transport.get_write_buffer_size()
        if self._handler is not None:
            self._handler.client_paused()

    def resume_writing(self) -> None:
        self.is_paused = False
        if self._handler is not None:
            self._handler.client_resumed()
        elif self._state is State.HEAD and self._buffer:
            self._set_reading(True)
            self.plane.loop.call_soon(self._read_waiting)

    # Reading requests

    def _read_head(self, data: bytes) -> None:
        """Read the next request, or keep what there is of its head."""
        end = data.find(HEAD_END) + 4
        limits = self.plane.settings.limits
        if end < 4 or end > limits.max_header_bytes:
            self._read_incomplete_head(data, limits.max_header_bytes)
            return
        try:
            request = self.plane.read(data[:end])
        except GatewayError as error:
            self._give_up(error)
            return
        self._request = request
        head = request.plan.head
        if not head.keep_alive or self.plane.is_draining:
            self.close_after_reply()
        elif head.is_http_10:
            self._head_end = KEEP_ALIVE_END_10
        self._expects_continue = head.expects_continue
        length = request.body
        body = data[end:]
        if length == len(body) <= limits.max_body_bytes:  # nearly always: the whole request, and nothing else
            self._state = State.REPLY
            self._buffer = b""
            self._handler, body = handler_of_whole(self, request, body)
            self._handler.body_received(body, True)
            return
        self._received = 0
        self._active_at = monotonic()
        self._buffer = b""
        self._decoder = ChunkedDecoder() if length == CHUNKED else None
        self._remaining = length
        self._state = State.BODY
        if length > limits.max_body_bytes:
            self._give_up(body_too_long(self.plane.settings.limits.max_body_bytes))
            return
        self._handler = handler = handler_for(self, request)
        if body:
            self._read_body(body)
        else:
            handler.body_received(b"", False)

    def _read_incomplete_head(self, data: bytes, limit: int) -> None:
        stripped = data.lstrip(b"\r\n")  # empty lines before a request are ignored (RFC 9112 section 2.2)
        if len(stripped) > limit:
            what = f"the request's head is longer than {limit} bytes (--max-header-bytes)"
            self._give_up(GatewayError(ErrorKind.HEADERS_TOO_LARGE, what))
        elif stripped.count(b"\n") != stripped.count(b"\r\n"):  # it would wait for an end that never comes
            self._give_up(GatewayError(ErrorKind.BAD_REQUEST, "malformed request: a line ends with a bare LF"))
        else:
            if not self._buffer:
                self._active_at = monotonic()
            self._buffer = stripped

    def _read_body(self, data: bytes) -> None:
        self._active_at = monotonic()
        handler = self._handler
        assert handler is not None
        rest = b""
        if self._decoder is None:
            if len(data) > self._remaining:
                data, rest = data[: self._remaining], data[self._remaining :]
            self._remaining -= len(data)
            ended = not self._remaining
        else:
            try:
                data = self._decoder.feed(data)
            except ValueError as error:
                self._give_up(GatewayError(ErrorKind.BAD_REQUEST, f"malformed request: {error}"))
                return
            ended = self._decoder.has_ended
            rest = self._decoder.tail
            self._received += len(data)
            if self._received > self.plane.settings.limits.max_body_bytes:
                self._give_up(body_too_long(self.plane.settings.limits.max_body_bytes))
                return
        if ended:
            self._state = State.REPLY
            self._decoder = None
            self._buffer = rest
            self._expects_continue = False
            self.resume_body()
        if data or ended:
            handler.body_received(data, ended)

    def _read_waiting(self) -> None:
        """Go on with what came while the last request was answered."""
        if self._state is State.HEAD and self._buffer and not self.is_paused and not self._transport.is_closing():
            data, self._buffer = self._buffer, b""
            self._read_head(data)

    # What handlers ask of it

    def relay(self, head: ResponseHead, lane: Lane, added: Sequence[Field], request_id: bytes, data: bytes) -> None:
        ending = self._head_end
        if head.body < 0:
            ending = self._framed_ending()
            if head.body == UNTIL_CLOSE and ending.startswith(CHUNKS):
                data = encode_chunk(data)
        self.write(relayed(head, lane, added, request_id, ending, data))

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

    def close_after_reply(self) -> None:
        self._closes_after_reply = True
        self._head_end = CLOSE_END

    def write_at_once(self) -> None:
        """The reply comes in small pieces: each goes to the kernel at once, and what that does not take pauses the
        engine. uvloop otherwise queues writes for the end of the event loop's turn, at a price that a token notices.
        """
        self._streams_events = True
        if not self._is_tls:  # there a mark of zero would pause for ever
            self._writes_at_once = True
            self._transport.set_write_buffer_limits(high=0)

    def expect_body(self) -> None:
        """The body will be read: a client that waits for leave to send it gets it."""
        if self._expects_continue:
            self._expects_continue = False
            self._transport.write(CONTINUE)

    def pause_body(self) -> None:
        if self._state is State.BODY:
            self._pauses_body = True
            self._set_reading(False)

    def resume_body(self) -> None:
        if self._pauses_body:
            self._pauses_body = False
            self._active_at = monotonic()  # the silence was ours
            self._set_reading(True)

    def reply_ended(self) -> None:
        """The reply is written whole."""
        self._handler = None
        self._request = None
        if self._state is State.BODY or self._closes_after_reply:
            self._close_gently()
            return
        self._state = State.HEAD
        self._active_at = monotonic()
        if self._head_end is KEEP_ALIVE_END_10:
            self._head_end = KEEP_ALIVE_END
        self._streams_events = False
        if self._writes_at_once:
            self._writes_at_once = False
            self._transport.set_write_buffer_limits(high=self.plane.settings.limits.high_water_bytes)
        if self._buffer:
            self._set_reading(True)
            self.plane.loop.call_soon(self._read_waiting)

    def refuse(self, error: GatewayError, fields: Sequence[Field] = ()) -> None:
        """Answer the request under way with an error; the connection goes on where the request is read whole."""
        api = self._request.plan.api if self._request is not None else None
        self.respond(status_told(error, api), error_told(error, api), [*fields, *reason_fields(error)])

    def respond(self, status: int, body: bytes, fields: Sequence[Field] = (), content_type: str = JSON) -> None:
        """Answer the request under way with a whole reply of our own."""
        if self._state is State.BODY:
            self.close_after_reply()
        without_body = self._request is not None and self._request.plan.without_body
        self.write(reply(status, body, content_type, fields, self._head_end, without_body=without_body))
        self.reply_ended()

    def _give_up(self, error: GatewayError) -> None:
        """Answer what cannot be read on: nobody knows, or wants to read, where the next request would start."""
        self._state = State.BODY
        handler, self._handler = self._handler, None
        if handler is None:
            self.plane.metrics.unrouted.count_error(error.kind.value)
            self.plane.metrics.unrouted.count_failure(error.status.http, 0.0)
            head = self._request.plan.head if self._request is not None else None
            self.plane.log(self.peer, head, error.status.http, error.kind.value, 0.0)
        else:
            has_begun = handler.begun
            handler.client_gone(error.kind.value, error.status.http)
            if has_begun:
                self.break_off()
                return
        self.refuse(error)

    def live(self) -> list[ActiveRequest]:
        """The request under way, if there is one."""
        handler = self._handler
        return [ActiveRequest(handler.progress(), id(handler), self.cancel)] if handler is not None else []

    def cancel(self, error: GatewayError) -> None:
        """End the request under way with an error: the engine is told at once, and so is the client."""
        handler, self._handler = self._handler, None
        if handler is None:
            return
        has_begun = handler.begun
        handler.client_gone(error.kind.value, error.status.http)
        if not has_begun:
            self.refuse(error)
            return
        api = self._request.plan.api if self._request is not None else None
        self.break_off(event_told(error, api) if self._streams_events else b"")

    def break_off(self, event: bytes = b"") -> None:
        """Close in the middle of a reply, so that nobody takes it for whole; what is written already still goes out."""
        self._handler = None
        if event and self._request is not None:
            self.write(event if self._request.plan.head.is_http_10 else encode_chunk(event))
        self._transport.close()

    # Closing

    def drain(self) -> None:
        """Close after the reply under way, or else after the next one, where that comes soon."""
        self.close_after_reply()
        self.plane.loop.call_later(_LEAVE_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self._state is State.HEAD and not self._buffer:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def sweep(self, now: float) -> None:
        """Called about once a second: has the client been silent for too long?"""
        limits = self.plane.settings.limits
        silent = now - self._active_at
        if self._handler is not None:
            self._handler.sweep(now)
        unsent = self._transport.get_write_buffer_size()
        is_leaving = self._state is State.LINGER or self._transport.is_closing()
        if not self._is_reading and has_hung_up(self._transport):
            self._transport.abort()
        elif self.is_paused or (is_leaving and unsent):  # closing waits until all is sent: not for ever
            if unsent != self._unsent:
                self._unsent, self._active_at = unsent, now
            elif silent > limits.body_timeout:
                self._transport.abort()
        elif self._state is State.HEAD:
            if self._buffer and silent > limits.header_timeout:
                what = f"the request's head did not come within {limits.header_timeout:g} s"
                self._give_up(GatewayError(ErrorKind.REQUEST_TIMEOUT, what))
            elif not self._buffer and silent > limits.idle_timeout:
                self._transport.close()
        elif self._state is State.BODY and not self._pauses_body and silent > limits.body_timeout:
            what = f"no more of the request's body came for {limits.body_timeout:g} s"
            self._give_up(GatewayError(ErrorKind.REQUEST_TIMEOUT, what))
        elif self._state is State.LINGER and (silent > _LINGER_SECONDS or now > self._lingers_until):
            self._transport.abort()

    def _close_gently(self) -> None:
        """Close, but read on for a moment where the client is still sending."""
        self._handler = None
        if self._state is State.BODY or self._buffer:
            self._state = State.LINGER
            self._buffer = b""
            self._active_at = monotonic()
            self._lingers_until = self._active_at + _LINGER_SECONDS_IN_ALL
            self.plane.num_lingering += 1
            self._set_reading(True)
            if self._transport.can_write_eof():
                try:
                    self._transport.write_eof()
                except OSError:  # asyncio's own loop: the client has reset the connection, and it has not seen that yet
                    self._transport.abort()
        else:
            self._transport.close()

    def _set_reading(self, wanted: bool) -> None:
        if wanted != self._is_reading and not self._transport.is_closing():
            self._is_reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

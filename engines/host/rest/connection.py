"""One client's connection: bytes in, requests one after another, replies out in the same order.

What the application answers directly has no task; the rest goes through it by ASGI.
Source: RFC 9112.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum
from time import monotonic
from typing import cast

from engines.host.asgi_exchange import JSON, Fields, error_json
from engines.host.rest.asgi_request import AsgiRequest
from engines.host.rest.request_head import (
    CLOSE_END,
    CONTINUE,
    KEEP_ALIVE_END,
    KEEP_ALIVE_END_10,
    Answering,
    PreparedRequest,
    reply_head,
)
from engines.host.rest.server_context import RestFront
from gateway.protocol.errors import GatewayError
from gateway.wire.http1.body import BodyReader
from gateway.wire.http1.head import HEAD_END

MAX_HEAD_BYTES = 64 * 1024
# What is left of a body that nobody wants is read past, up to here; from there on the connection closes.
_MAX_SKIPPED_BYTES = 16 << 20
# A reply up to here goes in one piece; larger ones are not copied for that.
_JOIN_BYTES = 64 * 1024
# A connection is read on after its last reply while the client still sends, until it is silent for so long, or so long
# in all: closing at once would destroy the reply.
_LINGER_SECONDS = 2.0
_LINGER_SECONDS_IN_ALL = 30.0


class ParserState(Enum):
    """What the next bytes are."""

    HEAD = "a request's head"
    BODY = "a request's body"
    REPLY = "the next request, while this one is answered"
    LINGER = "nothing any more: the last reply is being read"


class HttpConnection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive and pipelining: a request that comes early waits until those before it are answered."""

    __slots__ = (
        "_answering",
        "_awaited",
        "_awaited_since",
        "_body",
        "_buffer",
        "_closes",
        "_drained",
        "_expects_continue",
        "_is_paused",
        "_is_reading",
        "_lingers_until",
        "_num_pieces",
        "_num_requests",
        "_pieces",
        "_plan",
        "_state",
        "_transport",
        "front",
        "loop",
        "tasks",
    )

    def __init__(self, front: RestFront) -> None:
        self.front = front
        self.loop = front.loop
        self.tasks = front.tasks
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)  # set before anything else happens
        self._state = ParserState.HEAD
        self._buffer = b""  # an incomplete head, or requests that wait
        self._plan: PreparedRequest = cast(PreparedRequest, None)  # of the request under way
        self._answering: Answering | None = None
        # The body of the request under way
        self._body: BodyReader = cast(BodyReader, None)  # set before it is read
        self._pieces: list[bytes] | None = None  # of one that is collected
        self._expects_continue = False
        self._closes = False  # after this reply
        self._is_reading = True
        self._is_paused = False
        self._drained: asyncio.Future[None] | None = None
        # Time
        self._num_requests = self._num_pieces = 0  # heads, and pieces of bodies, that have come
        self._awaited: tuple[str, int] | None = None  # what the last sweep has found it to wait for
        self._awaited_since = 0.0
        self._lingers_until = 0.0

    def __repr__(self) -> str:
        return f"<HttpConnection expects {self._state.value}>"

    # What the event loop tells it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        is_tls = transport.get_extra_info("sslcontext") is not None
        # Zero: what is written goes to the kernel at once; under TLS a mark of zero would stop us for ever.
        self._transport.set_write_buffer_limits(high=_JOIN_BYTES if is_tls else 0)
        self.front.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.front.connections.discard(self)
        self.resume_writing()
        answering, self._answering = self._answering, None
        if answering is not None:
            answering.cancel()

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state is ParserState.HEAD and not self._is_paused:
            self._read_head(self._buffer + data if self._buffer else data)
        elif state is ParserState.BODY:
            self._read_body(data)
        elif state is ParserState.LINGER:
            self._num_pieces += 1
        else:  # it waits until the reply before is written, and mostly read
            self._buffer += data
            if len(self._buffer) > MAX_HEAD_BYTES:
                self.set_reading(False)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self._state is ParserState.HEAD and self._buffer:
            self.set_reading(True)
            self.loop.call_soon(self._read_waiting)

    # Reading requests

    def _read_head(self, data: bytes) -> None:
        """Read the next request, or keep what there is of its head."""
        end = data.find(HEAD_END) + 4
        if end < 4 or end > MAX_HEAD_BYTES:
            self._read_incomplete_head(data)
            return
        try:
            plan = self._plan = self.front.read(data[:end])
        except GatewayError as error:
            self._give_up(400, error.message)
            return
        self._num_requests += 1
        self._closes = not plan.keep_alive or self.front.is_draining
        length = plan.body
        if length == len(data) - end and plan.direct is not None and length <= self.front.limits.max_body_bytes:
            self._buffer = b""
            self._answer_directly(plan, data[end:])
            return
        self._begin_body(plan, data[end:])

    def _begin_body(self, plan: PreparedRequest, body: bytes) -> None:
        length = plan.body
        self._state = ParserState.BODY
        self._buffer = b""
        self._expects_continue = plan.expects_continue
        self._body = BodyReader(length)
        if plan.direct is not None and 0 <= length <= self.front.limits.max_body_bytes:
            self._pieces = []
            if not body:
                self.want_body()
        else:
            self._pieces = None
            self._answering = AsgiRequest(self, plan, self.front.application)
        if body or not length:
            self._read_body(body)

    def _read_incomplete_head(self, data: bytes) -> None:
        stripped = data.lstrip(b"\r\n")  # empty lines before a request are ignored (RFC 9112 section 2.2)
        if len(stripped) > MAX_HEAD_BYTES:
            self._give_up(431, "the request has too many or too long headers")
        elif stripped.count(b"\n") != stripped.count(b"\r\n"):  # it would wait for an end that never comes
            self._give_up(400, "malformed request: a line ends with a bare LF")
        else:
            self._buffer = stripped

    def _read_body(self, data: bytes) -> None:
        self._num_pieces += 1
        reader = self._body
        try:
            data = reader.feed(data)
        except ValueError as error:
            self._give_up(400, f"malformed request: {error}")
            return
        ended = reader.has_ended
        if ended:
            self._state = ParserState.REPLY
            self._buffer = reader.rest
            self._expects_continue = False
        if self._pieces is not None:
            self._pieces.append(data)
            if ended:
                pieces, self._pieces = self._pieces, None
                self._answer_directly(self._plan, b"".join(pieces) if len(pieces) > 1 else pieces[0])
        elif self._answering is not None:
            cast(AsgiRequest, self._answering).body_received(data, ended)
        elif ended:  # of a request that is answered already
            self._go_on()

    def _answer_directly(self, plan: PreparedRequest, body: bytes) -> None:
        assert plan.direct is not None
        self._state = ParserState.REPLY
        answering = plan.direct(plan.headers, body, self.tell)
        if self._state is ParserState.REPLY and not self._transport.is_closing():
            self._answering = answering

    def _read_waiting(self) -> None:
        """Go on with what came while the last request was answered."""
        if (
            self._state is ParserState.HEAD
            and self._buffer
            and not self._is_paused
            and not self._transport.is_closing()
        ):
            data, self._buffer = self._buffer, b""
            self._read_head(data)

    # What those ask of it who answer

    def tell(self, status: int, body: Sequence[bytes | memoryview], fields: Fields) -> None:
        """Send a whole reply."""
        if self._transport.is_closing():
            return
        size = sum(map(len, body))
        head = reply_head(status, (*fields, (b"content-length", b"%d" % size)), self._ending())
        if size < _JOIN_BYTES:
            self._transport.write(b"".join((head, *body)))
        else:
            self._transport.writelines((head, *body))
        self.end_reply()

    def want_body(self) -> None:
        """The body will be read: a client that waits for leave to send it gets it."""
        if self._expects_continue:
            self._expects_continue = False
            self._transport.write(CONTINUE)

    def begin_reply(self, status: int, fields: Fields, *, ends_by_closing: bool) -> None:
        self._closes = self._closes or ends_by_closing
        if not self._transport.is_closing():
            self._transport.write(reply_head(status, fields, self._ending()))

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def end_reply(self) -> None:
        """The reply is written whole."""
        self._answering = None
        self.set_reading(True)
        if self._closes:
            self._close_gently()
        elif self._state is ParserState.REPLY:
            self._go_on()

    def break_off(self) -> None:
        """Close in the middle of a reply, so that nobody takes it for whole."""
        self._answering = None
        self._transport.close()

    async def drained(self) -> None:
        """Wait while the client does not read."""
        if self._is_paused:
            self._drained = self.loop.create_future()
            await self._drained

    def set_reading(self, wanted: bool) -> None:
        if wanted != self._is_reading and not self._transport.is_closing():
            self._is_reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _ending(self) -> bytes:
        """What the reply says of the connection; one whose client sends on for long, or waits for leave, closes."""
        if self._state is ParserState.BODY and (
            self._expects_continue or self._body.is_longer_than(_MAX_SKIPPED_BYTES)
        ):
            self._closes = True
        if self._closes:
            return CLOSE_END
        return KEEP_ALIVE_END_10 if self._plan.is_http_10 else KEEP_ALIVE_END

    def _go_on(self) -> None:
        if self.front.is_draining:
            self._transport.close()
            return
        self._state = ParserState.HEAD
        if self._buffer:
            self.loop.call_soon(self._read_waiting)

    def _give_up(self, status: int, text: str) -> None:
        """Answer what cannot be read on: nobody knows where the next request would start."""
        answering, self._answering = self._answering, None
        self._pieces = None
        self._state = ParserState.BODY
        self._closes = True
        if isinstance(answering, AsgiRequest):
            answering.cancel()
            if answering.has_begun:
                self._transport.close()
                return
        body = error_json(text)
        fields = (JSON, (b"content-length", b"%d" % len(body)))
        self._transport.write(reply_head(status, fields, CLOSE_END) + body)
        self._close_gently()

    # Closing

    def drain(self) -> None:
        """Close after the reply under way, or after the next one."""
        self._closes = True

    def close_if_idle(self) -> None:
        """Close where no request is under way."""
        if self._state is ParserState.HEAD and not self._buffer:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def sweep(self, now: float) -> None:
        """Called about once a second: end it where its client has neither sent nor taken what is its turn to."""
        awaited, limit = self._find_awaited()
        if awaited is None or awaited != self._awaited:
            self._awaited, self._awaited_since = awaited, now
        elif limit is not None and now - self._awaited_since > limit:
            self._lose_patience(awaited[0])
        if self._state is ParserState.LINGER and now > self._lingers_until:
            self._transport.abort()

    def _find_awaited(self) -> tuple[tuple[str, int] | None, float | None]:
        """What the client is to do, with how much of it is done, and the seconds that it has for more."""
        limits = self.front.limits
        if self._is_paused or self._transport.is_closing():
            return ("read", self._transport.get_write_buffer_size()), limits.send_seconds
        if self._state is ParserState.LINGER:
            return ("leave", self._num_pieces), _LINGER_SECONDS
        if self._state is ParserState.HEAD:  # as a whole: a byte now and then buys no time
            if self._buffer or not self._num_requests:
                return ("send a head", self._num_requests), limits.receive_seconds
            return ("ask again", self._num_requests), self.front.idle_seconds
        if self._state is ParserState.BODY and self._is_reading:
            return ("send a body", self._num_pieces), limits.receive_seconds
        return None, None

    def _lose_patience(self, awaited: str) -> None:
        if awaited in ("read", "leave"):
            self._transport.abort()
        elif awaited == "ask again" or (self._state is ParserState.HEAD and not self._buffer):
            self._transport.close()
        else:
            self._give_up(408, "the request did not come in time")

    def _close_gently(self) -> None:
        """Close, but read on for a moment where the client still sends."""
        if self._state is not ParserState.BODY:
            self._transport.close()
            return
        self._state = ParserState.LINGER
        self._lingers_until = monotonic() + _LINGER_SECONDS_IN_ALL
        self.set_reading(True)
        if self._transport.can_write_eof():
            self._transport.write_eof()

"""The REST server: an ASGI application on HTTP/1.1; what it answers directly needs neither task nor messages."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import cast

from engines.host.asgi_exchange import JSON, Application, Fields, error_json
from engines.host.client_limits import ClientLimits
from engines.host.rest.asgi_request import AsgiRequest
from engines.host.rest.request_head import (
    CLOSE_END,
    KEEP_ALIVE_END,
    KEEP_ALIVE_END_10,
    Answering,
    PreparedRequest,
    reply_head,
)
from gateway.net.http1_server import Http1Server, Owed, ParserState, Rejection
from gateway.net.server import ConnectionServer
from gateway.protocol.errors import GatewayError
from gateway.wire.memo import Memo

_POLL_SECONDS = 0.02
MAX_HEAD_BYTES = 64 * 1024
# The rest of a body that a reply came before is read and dropped up to this length; a longer one closes the connection.
_MAX_SKIPPED_BYTES = 16 << 20
# A reply up to this size is written in one piece; larger ones are not copied for that.
_JOIN_BYTES = 64 * 1024

_REJECTIONS = {
    Rejection.HEAD_TOO_LONG: (431, "the request has too many or too long headers"),
    Rejection.MALFORMED: (400, "malformed request: {detail}"),
    Rejection.HEAD_TIMEOUT: (408, "the request did not come in time"),
    Rejection.BODY_TIMEOUT: (408, "the request did not come in time"),
}


class RestServer(ConnectionServer):
    """Serves an ASGI application. A client may be silent for `keepalive_seconds` between two requests."""

    def __init__(
        self, app: Application, limits: ClientLimits | None = None, *, keepalive_seconds: float = 75.0
    ) -> None:
        super().__init__()
        self.application = app
        self.limits = limits or ClientLimits()
        self.keepalive_seconds = keepalive_seconds
        self.read: Memo[PreparedRequest] = Memo(lambda head: PreparedRequest(head, app))
        self.tasks: set[asyncio.Task[None]] = set()

    def new_connection(self) -> HttpConnection:
        return HttpConnection(self)

    async def stop(self, grace_seconds: float = 30.0) -> None:
        await super().stop(grace_seconds)
        while self.tasks:
            for task in list(self.tasks):
                task.cancel()
            await asyncio.sleep(_POLL_SECONDS)


class HttpConnection(Http1Server):
    """The front of REST: requests that the application answers directly, and ASGI for the others."""

    __slots__ = ("_answering", "_drained", "_pieces", "_prepared", "server", "tasks")

    _skips_bodies = True

    def __init__(self, server: RestServer) -> None:
        super().__init__(asyncio.get_running_loop(), MAX_HEAD_BYTES, math.inf)
        self.server = server
        self.tasks = server.tasks
        self._prepared: PreparedRequest = cast(PreparedRequest, None)  # of the request under way
        self._answering: Answering | None = None
        self._pieces: list[bytes] | None = None  # of a body that is collected
        self._drained: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<HttpConnection expects {self._state.value}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        is_tls = transport.get_extra_info("sslcontext") is not None
        # Zero: writes go to the kernel at once. Under TLS a mark of zero would pause for ever.
        self._transport.set_write_buffer_limits(high=_JOIN_BYTES if is_tls else 0)
        self.server.connections.add(self)
        if self.server.is_draining:
            self.drain()

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.discard(self)
        self.resume_writing()
        answering, self._answering = self._answering, None
        if answering is not None:
            answering.cancel()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # Reading requests

    def _head_received(self, head: bytes, body: bytes) -> None:
        try:
            prepared = self._prepared = self.server.read(head)
        except GatewayError as error:
            self._give_up(400, error.message)
            return
        if not prepared.keep_alive or self.server.is_draining:
            self.close_after_reply()
        length = prepared.length
        is_direct = prepared.direct is not None and length is not None and length <= self.server.limits.max_body_bytes
        if is_direct and length == len(body):
            self._state = ParserState.REPLY
            self._buffer = b""
            self._answer_directly(body)
            return
        self._begin_body(length, expects_continue=prepared.expects_continue)
        if is_direct:
            self._pieces = []
            if not body:
                self.expect_body()
        else:
            self._pieces = None
            self._answering = AsgiRequest(self, prepared, self.server.application)
        if body or length == 0:
            self._read_body(body)

    def _body_received(self, data: bytes, ended: bool) -> None:
        if self._pieces is not None:
            self._pieces.append(data)
            if ended:
                pieces, self._pieces = self._pieces, None
                self._answer_directly(b"".join(pieces) if len(pieces) > 1 else pieces[0])
        elif self._answering is not None:
            cast(AsgiRequest, self._answering).body_received(data, ended)
        elif ended:  # the request is answered already
            self._end_reply()

    def _answer_directly(self, body: bytes) -> None:
        prepared = self._prepared
        assert prepared.direct is not None
        answering = prepared.direct(prepared.headers, body, self.send_reply)
        if self._state is ParserState.REPLY and not self._transport.is_closing():
            self._answering = answering

    def _reject(self, rejection: Rejection, detail: str = "") -> None:
        status, text = _REJECTIONS[rejection]
        self._give_up(status, text.format(detail=detail))

    def _seconds(self, owed: Owed) -> float | None:
        limits = self.server.limits
        if owed is Owed.NEXT_HEAD:
            return self.server.keepalive_seconds
        return limits.send_seconds if owed is Owed.READ else limits.receive_seconds

    # Called while a request is answered

    def send_reply(self, status: int, body: Sequence[bytes | memoryview], fields: Fields) -> None:
        """Send a complete reply."""
        if self._transport.is_closing():
            return
        size = sum(map(len, body))
        head = reply_head(status, (*fields, (b"content-length", b"%d" % size)), self._head_end())
        if size < _JOIN_BYTES:
            self._transport.write(b"".join((head, *body)))
        else:
            self._transport.writelines((head, *body))
        self.end_reply()

    def begin_reply(self, status: int, fields: Fields, *, ends_by_closing: bool) -> None:
        if ends_by_closing:
            self.close_after_reply()
        self.write(reply_head(status, fields, self._head_end()))

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def end_reply(self) -> None:
        """The reply is written."""
        self._answering = None
        self._end_reply()

    def break_off(self) -> None:
        """Close in the middle of a reply, which shows the client that it is incomplete."""
        self._answering = None
        self._transport.close()

    async def drained(self) -> None:
        """Wait while the client does not read."""
        if self.is_paused:
            self._drained = self.loop.create_future()
            await self._drained

    def _head_end(self) -> bytes:
        """What ends a reply's head. A connection closes whose client still has much to send, or waits for 100."""
        if self._state is ParserState.BODY and (self._expects_continue or self._body.may_exceed(_MAX_SKIPPED_BYTES)):
            self.close_after_reply()
        if self._closes_after_reply:
            return CLOSE_END
        return KEEP_ALIVE_END_10 if self._prepared.is_http_10 else KEEP_ALIVE_END

    def _give_up(self, status: int, text: str) -> None:
        """Answer what cannot be read on, and close the connection."""
        answering, self._answering = self._answering, None
        self._pieces = None
        self._state = ParserState.BODY
        if isinstance(answering, AsgiRequest):
            answering.cancel()
            if answering.has_begun:
                self._transport.close()
                return
        body = error_json(text)
        fields = (JSON, (b"content-length", b"%d" % len(body)))
        self._transport.write(reply_head(status, fields, CLOSE_END) + body)
        self._close_gently()

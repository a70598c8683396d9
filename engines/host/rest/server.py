"""The REST server: an application on HTTP/1.1. An infer is answered without a task."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import cast

from engines.host.client_limits import ClientLimits
from engines.host.exchange import (
    JSON,
    Application,
    BodyTooLongError,
    Direct,
    Exchange,
    Fields,
    InFlight,
    error_json,
    error_reply,
)
from gateway.net.http1_server import Http1Server, Owed, ParserState, Rejection
from gateway.net.server import ConnectionServer
from gateway.protocol.errors import GatewayError
from gateway.wire.http1.body import LAST_CHUNK, encode_chunk
from gateway.wire.http1.head import read_request_head
from gateway.wire.memo import Memo

_KEEPALIVE_SECONDS = 75.0  # how long a client may be silent between two requests
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

_KEEP_ALIVE_END, _KEEP_ALIVE_END_10 = b"\r\n", b"connection: keep-alive\r\n\r\n"
_CLOSE_END = b"connection: close\r\n\r\n"

# Triton also serves requests without a Host field.
_HOST, _NO_HOST = re.compile(rb"\r\nhost:", re.IGNORECASE), b"host: -\r\n\r\n"

# A chunked body may have a length as well, which does not count; nothing after it is a request (RFC 9112 section 6.3).
_LENGTH = re.compile(rb"(?<=\r\n)content-length:[ \t]*[0-9]+[ \t]*\r\n", re.IGNORECASE)
_CODING = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)

_OPENAI_PATHS = "/v1/"

_STATUS_LINES = {status.value: f"HTTP/1.1 {status} {status.phrase}\r\n".encode() for status in HTTPStatus}


class PreparedRequest:
    """What requests with the same head have in common. `length` is the body's, None where it is chunked."""

    def __init__(self, head: bytes, application: Application) -> None:
        """Raises: GatewayError(BAD_REQUEST)."""
        complete = head if _HOST.search(head) else head[:-2] + _NO_HOST
        length_counts = True
        try:
            read = read_request_head(complete)
        except GatewayError:
            if len(_LENGTH.findall(complete)) != 1 or not _CODING.search(complete):
                raise
            read = read_request_head(_LENGTH.sub(b"", complete))
            length_counts = False
        self.method = read.method
        self.path = read.target.partition(b"?")[0].decode("latin-1")
        self.headers = dict(read.fields)
        self.length = read.length
        self.keep_alive = read.keep_alive and length_counts
        self.expects_continue = read.expects_continue
        self.is_http_10 = read.is_http_10
        direct = getattr(application, "direct", None)
        self.direct: Direct | None = None if direct is None else direct(self.method, self.path, self.headers, head)


def _reply_head(status: int, fields: Fields, ending: bytes) -> bytes:
    """`ending` says how the connection goes on."""
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status
    return b"".join([line, *[b"%b: %b\r\n" % field for field in fields], ending])


class RestServer(ConnectionServer):
    """Serves an application."""

    def __init__(self, app: Application, limits: ClientLimits | None = None) -> None:
        super().__init__()
        self.application = app
        self.limits = limits or ClientLimits()
        self.read: Memo[PreparedRequest] = Memo(lambda head: PreparedRequest(head, app), on_second_sight=True)
        self.tasks: set[asyncio.Task[None]] = set()

    def new_connection(self) -> HttpConnection:
        return HttpConnection(self)

    async def stop(self, grace_seconds: float = 30.0) -> None:
        await super().stop(grace_seconds)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


class HttpConnection(Http1Server):
    """The front of REST: requests that the application answers directly, and an `Exchange` for the others."""

    __slots__ = ("_answering", "_drained", "_is_chunked", "_num_bytes", "_pieces", "_prepared", "server")

    _skips_bodies = True

    def __init__(self, server: RestServer) -> None:
        super().__init__(asyncio.get_running_loop(), MAX_HEAD_BYTES, math.inf)
        self.server = server
        self._prepared: PreparedRequest = cast(PreparedRequest, None)  # of the request under way
        self._answering: InFlight | None = None
        self._pieces: list[bytes] | None = None  # of a body that is collected
        self._num_bytes = 0  # of them
        self._is_chunked = False  # the reply
        self._drained: asyncio.Future[None] | None = None

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

    def eof_received(self) -> bool:
        """The client sends nothing more. It may read on, or have gone: only a write shows which. So requests that are
        whole are answered for a while, but for generations: their clients keep both halves open."""
        answering = self._answering
        is_generation = isinstance(answering, Exchange) and answering.path.startswith(_OPENAI_PATHS)
        if self._state is not ParserState.REPLY or is_generation:
            return False
        if not self._buffer:
            self.close_after_reply()
        self._await_replies()
        return True

    def _await_replies(self) -> None:
        seconds = self.server.limits.half_close_seconds
        if seconds is not None:
            self.loop.call_later(seconds, self._end_half_closed)

    def _has_begun_reply(self) -> bool:
        return isinstance(self._answering, Exchange) and self._answering.has_begun

    def _end_half_closed(self) -> None:
        if self._transport.is_closing():
            return
        if self._has_begun_reply():  # a client that had gone would have reset it
            self._await_replies()
        else:
            self._transport.abort()

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
        length, limit = prepared.length, self.server.limits.max_body_bytes
        if prepared.direct is not None and length == len(body) <= limit:
            self._state = ParserState.REPLY
            self._buffer = b""
            self._answer_directly(body)
            return
        self._begin_body(length, expects_continue=prepared.expects_continue)
        if prepared.direct is None:
            self._begin_exchange()
        elif length is not None and length > limit:
            self._refuse_body(length)
        else:
            self._pieces, self._num_bytes = [], 0
            if not body:
                self.expect_body()
        if self._state is ParserState.BODY and (body or length == 0):
            self._read_body(body)

    def _begin_exchange(self) -> None:
        prepared, server = self._prepared, self.server
        exchange = self._answering = Exchange(self, prepared.method, prepared.path, prepared.headers)
        task = self.loop.create_task(exchange.run(server.application))
        server.tasks.add(task)
        task.add_done_callback(server.tasks.discard)

    def _body_received(self, data: bytes, ended: bool) -> None:
        pieces = self._pieces
        if pieces is not None:
            pieces.append(data)
            self._num_bytes += len(data)
            if self._num_bytes > self.server.limits.max_body_bytes:
                self._refuse_body(self._num_bytes)
            elif ended:
                self._pieces = None
                self._answer_directly(b"".join(pieces))
        elif self._answering is not None:
            cast(Exchange, self._answering).body_received(data, ended)
        elif ended:  # the request is answered already
            self._end_reply()

    def _refuse_body(self, num_bytes: int) -> None:
        self._pieces = None
        status, body, fields = error_reply(BodyTooLongError(num_bytes, self.server.limits.max_body_bytes), "")
        self.send_reply(status, (body,), fields)

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
            return _KEEPALIVE_SECONDS
        return limits.send_seconds if owed is Owed.READ else limits.receive_seconds

    # Called while a request is answered

    def send_reply(self, status: int, body: Sequence[bytes | memoryview], fields: Fields) -> None:
        if self._transport.is_closing():
            return
        size = sum(map(len, body))
        head = _reply_head(status, (*fields, (b"content-length", b"%d" % size)), self._head_end())
        if size < _JOIN_BYTES:
            self._transport.write(b"".join((head, *body)))
        else:
            self._transport.writelines((head, *body))
        self.end_reply()

    def begin_reply(self, status: int, fields: Fields) -> None:
        """Begin a reply whose body follows: until its content-length, in chunks, or until the connection closes."""
        has_length = any(name == b"content-length" for name, _ in fields)
        self._is_chunked = not has_length and not self._prepared.is_http_10
        if self._is_chunked:
            fields = (*fields, (b"transfer-encoding", b"chunked"))
        elif not has_length:
            self.close_after_reply()
        self._write(_reply_head(status, fields, self._head_end()))

    def write_body(self, data: bytes, *, is_last: bool) -> None:
        if self._prepared.method != "HEAD":
            if self._is_chunked:
                data = encode_chunk(data) + (LAST_CHUNK if is_last else b"")
            if data:
                self._write(data)
        if is_last:
            self.end_reply()

    def _write(self, data: bytes) -> None:
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
            return _CLOSE_END
        return _KEEP_ALIVE_END_10 if self._prepared.is_http_10 else _KEEP_ALIVE_END

    def _give_up(self, status: int, text: str) -> None:
        """Answer what cannot be read on, and close the connection."""
        answering, self._answering = self._answering, None
        self._pieces = None
        self._state = ParserState.BODY
        if isinstance(answering, Exchange):
            answering.cancel()
            if answering.has_begun:
                self._transport.close()
                return
        body = error_json(text)
        fields = (JSON, (b"content-length", b"%d" % len(body)))
        self._transport.write(_reply_head(status, fields, _CLOSE_END) + body)
        self._close_gently()

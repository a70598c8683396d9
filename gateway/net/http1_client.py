"""HTTP/1.1 connections to an endpoint, and their pool."""

from __future__ import annotations

import asyncio
import select
import ssl
from math import inf
from time import monotonic
from typing import Protocol, cast

from gateway.net.client_shares import ClientShares
from gateway.net.pool import Pool, PoolLimits, Waiter
from gateway.net.sockets import arrivals_of, reset
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.wire.http1.body import LAST_CHUNK, ChunkedDecoder, encode_chunk, payload_of
from gateway.wire.http1.head import HEAD_END, ResponseHead, read_response_head
from gateway.wire.memo import Memo

_MAX_HEAD_BYTES = 256 * 1024

# A connection that has been idle for longer is looked at before it is used again, which costs a call of the kernel:
# what its engine has sent unasked, or that it has closed, may wait unread behind the request that is to go there.
# Within a shorter time the event loop has hardly gone round.
_LOOK_AFTER_SECONDS = 0.001

_read_head = Memo(read_response_head, on_second_sight=True)


class ReplyReceiver(Protocol):
    """Receives a reply. Calls come in this order: started, continued until ended; or failed, at any time."""

    def reply_started(self, head: ResponseHead, data: bytes, ended: bool) -> None: ...

    def reply_continued(self, data: bytes, ended: bool) -> None: ...

    def reply_failed(self, error: GatewayError) -> None: ...

    def sending_paused(self) -> None:
        """The engine reads more slowly than the request is sent."""
        ...

    def sending_resumed(self) -> None: ...


class Http1ClientConnection(asyncio.Protocol):
    """Serves one request at a time. The receiver gets a chunked reply with its framing, ready to be relayed, unless it
    `wants_payload`. The connection returns to its pool before the receiver gets the end of the reply."""

    __slots__ = (
        "_arrivals",
        "_buffer",
        "_decoder",
        "_head",
        "_pool",
        "_remaining",
        "_transport",
        "_wants_payload",
        "_without_body",
        "idle_since",
        "is_retired",
        "is_used",
        "receiver",
        "request_is_sent",
        "retires_at",
    )

    def __init__(self, pool: Http1Pool, retires_at: float = inf) -> None:
        self._pool = pool
        self.retires_at = retires_at  # by `time.monotonic`
        self.is_retired = False  # it serves no further request
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)  # set before anything else happens
        self._arrivals: select.poll | None = None
        self._buffer = b""
        self._head: ResponseHead | None = None
        self._decoder: ChunkedDecoder | None = None
        self._remaining = 0
        self._wants_payload = False
        self._without_body = False
        self.receiver: ReplyReceiver | None = None
        self.request_is_sent = True
        self.idle_since = 0.0
        self.is_used = False  # whether a request has been sent on it before the present one

    def __repr__(self) -> str:
        state = "idle" if self.receiver is None else "serving" if self._head else "waiting"
        return f"<Http1ClientConnection of {self._pool!r} {state}>"

    # Called by receivers

    def begin(self, receiver: ReplyReceiver, *, without_body: bool = False, wants_payload: bool = False) -> None:
        """Start a request. `without_body`: it is a HEAD, so its reply has no body."""
        self.receiver = receiver
        self.request_is_sent = False
        self._without_body = without_body
        self._wants_payload = wants_payload

    def send(self, data: bytes) -> None:
        self._transport.write(data)

    def send_all(self, pieces: list[bytes]) -> None:
        self._transport.writelines(pieces)

    @property
    def remaining(self) -> int | None:
        """Bytes of the reply that are still to come; None where that is not known."""
        return self._remaining if self._head is not None and self._head.length is not None else None

    def pause_reply(self) -> None:
        """The receiver takes the reply more slowly than the engine sends it."""
        self._transport.pause_reading()

    def resume_reply(self) -> None:
        self._transport.resume_reading()

    def abandon(self) -> None:
        """Cancel the request: HTTP/1.1 has no other way than to close the connection. A reset says
        that the reply is not wanted; a plain close may be that of a client that sends nothing more and still reads."""
        self.receiver = None
        reset(self._transport)

    def has_unread(self) -> bool:
        """Whether the kernel has bytes or an end for an idle connection that the event loop has not read yet."""
        arrivals = self._arrivals
        if arrivals is None:
            arrivals = self._arrivals = arrivals_of(self._transport)
        return bool(arrivals.poll(0))

    def close(self) -> None:
        self._transport.close()

    @property
    def is_closing(self) -> bool:
        return self._transport.is_closing()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        receiver = self.receiver
        if receiver is None:  # no request is under way
            self._transport.abort()
            return
        decoder = self._decoder
        if decoder is not None and decoder.takes_plain_chunk(data):
            # The usual case: one token of a stream, in one chunk, in one read.
            receiver.reply_continued(payload_of(data) if self._wants_payload else data, False)
            return
        try:
            if self._head is None:
                self._read_start(receiver, data)
            else:
                self._read_on(receiver, data)
        except GatewayError as error:
            self._fail(error)
        except ValueError as error:
            self._fail(GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"the engine's reply is malformed: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.discard(self)
        receiver = self.receiver
        if receiver is None:
            return
        self.receiver = None
        if exc is None and self._head is not None and self._head.ends_at_close:
            receiver.reply_continued(b"", True)
            return
        when = "before it answered" if self._head is None else "in the middle of its reply"
        receiver.reply_failed(GatewayError(ErrorKind.UPSTREAM_RESET, f"the engine closed the connection {when}"))

    def pause_writing(self) -> None:
        if self.receiver is not None:
            self.receiver.sending_paused()

    def resume_writing(self) -> None:
        if self.receiver is not None:
            self.receiver.sending_resumed()

    # Reading a reply

    def _read_start(self, receiver: ReplyReceiver, data: bytes) -> None:
        data = self._buffer + data if self._buffer else data
        head = None
        while head is None or head.status < 200:  # interim replies come before the final one
            end = data.find(HEAD_END) + 4
            if end < 4:
                if len(data) > _MAX_HEAD_BYTES:
                    raise ValueError(f"its head is longer than {_MAX_HEAD_BYTES} bytes")
                self._buffer = data
                return
            head = _read_head(data[:end])
            if head.status == 101:
                raise ValueError("it changes the protocol, which nobody asked for")
            data = data[end:]
        self._buffer = b""
        body = data
        length = 0 if self._without_body else head.length
        if length is not None:
            self._remaining = length - len(body)
            if self._remaining > 0:
                self._head = head
                receiver.reply_started(head, body, False)
            else:
                self._end(head)
                receiver.reply_started(head, body if self._remaining == 0 else body[:length], True)
        elif head.is_chunked:
            self._decoder = ChunkedDecoder()
            self._head = head
            body, ended = self._read_chunks(body) if body else (body, False)
            receiver.reply_started(head, body, ended)
        else:
            self._head = head
            receiver.reply_started(head, body, False)

    def _read_on(self, receiver: ReplyReceiver, data: bytes) -> None:
        head = self._head
        assert head is not None
        if head.length is not None:
            self._remaining -= len(data)
            if self._remaining > 0:
                receiver.reply_continued(data, False)
            else:
                self._end(head)
                receiver.reply_continued(data if self._remaining == 0 else data[: self._remaining], True)
        elif head.is_chunked:
            data, ended = self._read_chunks(data)
            if data or ended:
                receiver.reply_continued(data, ended)
        else:
            receiver.reply_continued(data, False)

    def _read_chunks(self, data: bytes) -> tuple[bytes, bool]:
        """The bytes of a chunked body to hand over, and whether the body has ended."""
        decoder = self._decoder
        head = self._head
        assert decoder is not None and head is not None
        if self._wants_payload or not decoder.takes_whole(data):
            data = decoder.feed(data)
            if not self._wants_payload:
                data = encode_chunk(data) + LAST_CHUNK if decoder.has_ended else encode_chunk(data)
        ended = decoder.has_ended
        if ended:
            self._remaining = -len(decoder.tail)
            self._end(head)
        return data, ended

    def _end(self, head: ResponseHead) -> None:
        """The reply is complete: prepare for the next one, or close where the connection cannot be reused."""
        self._head = None
        self._decoder = None
        self.receiver = None
        if not self.request_is_sent or self._transport.get_write_buffer_size():
            # Answered before all of the request was read: a close would wait for the engine to read the rest.
            self._transport.abort()
        elif head.keep_alive and self._remaining >= 0 and not self.is_retired:
            self.is_used = True
            self._pool.release(self)
        else:
            self._transport.close()

    def _fail(self, error: GatewayError) -> None:
        receiver = self.receiver
        self.receiver = None
        self._transport.abort()
        if receiver is not None:
            receiver.reply_failed(error)


class Http1Pool(Pool[Http1ClientConnection]):
    """Hands out idle connections, the most recently used first, and opens new ones up to the limit."""

    __slots__ = ("_shares",)

    def __init__(
        self,
        host: str,
        port: int,
        limits: PoolLimits,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> None:
        super().__init__(host, port, limits, tls, server_name)
        self._shares: ClientShares[Waiter[Http1ClientConnection]] = ClientShares(
            max(1, int(limits.max_connections * limits.max_client_share))
        )

    def __repr__(self) -> str:
        address = f"{self.host}:{self.port}"
        return f"<Http1Pool {address} {self.size} connections, {len(self._idle)} idle, {len(self._waiting)} wait>"

    @property
    def num_busy(self) -> int:
        """Connections that serve a request, or are being established."""
        return self.size - len(self._idle)

    def acquire(self, waiter: Waiter[Http1ClientConnection], now: float = inf) -> Http1ClientConnection | None:
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.is_closing:
                continue
            if now - connection.idle_since > _LOOK_AFTER_SECONDS and connection.has_unread():
                connection.abandon()
                continue
            return connection
        if self.size >= self._limits.max_connections and len(self._waiting) >= self._limits.max_pending:
            raise self._refuse("in use")
        self._waiting.append(waiter)
        self._connect_for_waiters()
        return None

    def acquire_shared(
        self, client: object, waiter: Waiter[Http1ClientConnection], now: float
    ) -> Http1ClientConnection | None:
        """As `acquire`, for a request of a client connection that may send many: it has its share and no more."""
        if not self._shares.enter(client, waiter):
            return None
        try:
            connection = self.acquire(waiter, now)
        except GatewayError:
            self._leave(waiter)
            raise
        if connection is not None:
            self._shares.move(waiter, connection)
        return connection

    def forget(self, waiter: Waiter[Http1ClientConnection]) -> None:
        super().forget(waiter)
        if self._shares:
            self._shares.forget(waiter)
            self._leave(waiter)
            self._connect_for_waiters()

    def _leave(self, place: object) -> None:
        """A place of a client's share is free, for its next waiter."""
        waiter = self._shares.leave(place)
        if waiter is not None:
            self._waiting.append(waiter)

    def release(self, connection: Http1ClientConnection) -> None:
        """A connection whose reply has ended serves the next waiter."""
        if self._shares:
            self._leave(connection)
        if self._waiting:
            waiter = self._waiting.popleft()
            if self._shares:
                self._shares.move(waiter, connection)
            waiter.connected(connection)
        elif not self._idle_timeout:
            connection.close()
        else:
            connection.idle_since = monotonic()
            self._idle.append(connection)

    def discard(self, connection: Http1ClientConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
        self._leave(connection)
        super().discard(connection)

    def close_idle(self, idle_before: float = float("inf")) -> None:
        if self._idle:
            for connection in self._idle:
                if connection.idle_since < idle_before:
                    connection.close()
            self._idle = [connection for connection in self._idle if not connection.is_closing]

    def renew(self, now: float = inf) -> None:
        is_idle = False
        for connection in self._connections:
            if connection.retires_at <= now and not connection.is_retired:
                connection.is_retired = True
                is_idle = is_idle or connection.receiver is None
        if is_idle:
            for connection in self._idle:
                if connection.is_retired:
                    connection.close()
            self._idle = [connection for connection in self._idle if not connection.is_closing]

    def timed_out(self, sent_at: float) -> None:
        self.close_idle(sent_at)

    def _new_connection(self) -> Http1ClientConnection:
        return Http1ClientConnection(self, self._retires_at(monotonic()))

    def _add(self, connection: Http1ClientConnection) -> None:
        self._connections[connection] = None
        self.release(connection)

"""The HTTP/2 connections of one worker to one endpoint: few of them, each with many streams."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from dataclasses import replace
from itertools import islice
from time import monotonic
from typing import Protocol

from gateway.config.specs import ConnectionSpec
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.upstream.connect import connect, connect_error
from gateway.upstream.http2_connection import StreamConnection
from gateway.wire.http2.connection import Http2Limits

# Engines answer with many fields at times, and break off streams as they please.
_LIMITS = Http2Limits(max_header_bytes=256 * 1024)


class StreamWaiter(Protocol):
    """Whoever waits for a stream."""

    def stream_ready(self, connection: StreamConnection) -> None:
        """There is room for a stream, to be opened now."""
        ...

    def connect_failed(self, error: GatewayError) -> None: ...


class StreamPool:
    """Fills a connection up to `max_streams` before another one is made; who comes when all are full waits in line."""

    __slots__ = (
        "_connections",
        "_limits",
        "_num_connecting",
        "_server_name",
        "_spec",
        "_tasks",
        "_tls",
        "_waiting",
        "host",
        "port",
    )

    def __init__(
        self,
        host: str,
        port: int,
        spec: ConnectionSpec,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self._spec = spec
        self._tls = tls
        self._server_name = server_name
        self._limits = replace(_LIMITS, window_bytes=spec.window_bytes)
        self._connections: list[StreamConnection] = []
        self._waiting: deque[StreamWaiter] = deque()
        self._num_connecting = 0
        self._tasks: set[asyncio.Task[None]] = set()  # the attempts: the event loop alone would not keep them alive

    def __repr__(self) -> str:
        streams = sum(connection.num_streams for connection in self._connections)
        return (
            f"<StreamPool {self.host}:{self.port} {len(self._connections)} connections, {streams} streams, "
            f"{len(self._waiting)} wait>"
        )

    @property
    def size(self) -> int:
        """Connections, those being made included."""
        return len(self._connections) + self._num_connecting

    @property
    def num_streams(self) -> int:
        return sum(connection.num_streams for connection in self._connections)

    def acquire(self, waiter: StreamWaiter) -> StreamConnection | None:
        """A connection with room for a stream; or None, and the waiter hears when there is one.

        Raises: GatewayError(OVERLOADED) when the line is full.
        """
        connection = self._with_room()
        if connection is not None:
            return connection
        if len(self._waiting) >= self._spec.max_pending:
            full = f"all {self.size} connections are full, {len(self._waiting)} requests wait already"
            raise GatewayError(ErrorKind.OVERLOADED, full)
        self._waiting.append(waiter)
        self._connect_for_the_line()
        return None

    def forget(self, waiter: StreamWaiter) -> None:
        """The waiter has left the line."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)

    def has_room(self, connection: StreamConnection) -> None:
        """A stream of a connection has ended, or the endpoint has told how many it takes."""
        if self._waiting:
            self._serve_the_line()
            self._connect_for_the_line()
        if not connection.http2.streams:
            self._rest(connection)

    def discard(self, connection: StreamConnection) -> None:
        """A connection takes no more streams."""
        if connection in self._connections:
            self._connections.remove(connection)
        self._connect_for_the_line()

    def close_idle(self, idle_before: float = float("inf")) -> None:
        """Close the connections that nobody has used since `idle_before` (seconds of `monotonic`)."""
        for connection in list(self._connections):
            if not connection.http2.streams and connection.idle_since < idle_before:
                self._close(connection)

    def retire(self) -> None:
        """The rules no longer name this address: streams under way end, nothing is kept for later."""
        self._spec = replace(self._spec, idle_timeout=0.0)
        self.close_idle()
        for connection in self._connections:
            connection.http2.leave()

    def close_stale(self, now: float) -> None:
        """Close what has been idle for longer than the limit; called about once a second."""
        for connection in self._connections:
            connection.http2.tick()
        self.close_idle(now - self._spec.idle_timeout)

    def _rest(self, connection: StreamConnection) -> None:
        """A connection has no stream."""
        connection.idle_since = monotonic()
        if not self._spec.idle_timeout and connection in self._connections:
            self._close(connection)

    def _close(self, connection: StreamConnection) -> None:
        self._connections.remove(connection)
        connection.http2.leave()
        connection.close()

    def _with_room(self) -> StreamConnection | None:
        limit = self._spec.max_streams
        for connection in self._connections:
            http2 = connection.http2
            num_streams = len(http2.streams)
            if num_streams and not connection.has_settings:
                continue  # one may be tried; how many it takes is not known yet
            if num_streams < limit and num_streams < http2.peer_max_streams and not http2.is_leaving:
                return connection
        return None

    def _serve_the_line(self) -> None:
        while self._waiting:
            connection = self._with_room()
            if connection is None:
                return
            self._waiting.popleft().stream_ready(connection)

    def _connect_for_the_line(self) -> None:
        """One attempt for as many waiters as a connection takes, once it is known how many those there are take."""
        if not all(connection.has_settings for connection in self._connections):
            return
        wanted = -(-len(self._waiting) // self._spec.max_streams)
        while self._num_connecting < wanted and self.size < self._spec.max_connections:
            self._num_connecting += 1
            task = asyncio.get_running_loop().create_task(self._make_connection())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _make_connection(self) -> None:
        connection = StreamConnection(self, self._limits)
        try:
            await connect(connection, self.host, self.port, self._spec.connect_timeout, self._tls, self._server_name)
        except (OSError, UnicodeError) as error:
            self._num_connecting -= 1
            failed = connect_error(error, self.host, self.port, self._spec.connect_timeout)
            # The attempt was made for all that one connection would have served.
            for waiter in list(islice(self._waiting, self._spec.max_streams)):
                if waiter in self._waiting:  # else another one's failure has taken it out
                    self._waiting.remove(waiter)
                    waiter.connect_failed(failed)
            self._connect_for_the_line()
            return
        self._num_connecting -= 1
        if connection.is_closing:
            self._connect_for_the_line()
            return
        self._connections.append(connection)
        self._serve_the_line()
        self._connect_for_the_line()
        if not connection.http2.streams:  # who waited for it has left
            self._rest(connection)

"""The connections of one worker to one endpoint."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from dataclasses import replace
from time import monotonic
from typing import Protocol

from gateway.config.specs import ConnectionSpec
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.upstream.connect import connect, connect_error
from gateway.upstream.http1_connection import UpstreamConnection


class ConnectionWaiter(Protocol):
    """Whoever waits for a connection."""

    def connected(self, connection: UpstreamConnection) -> None: ...

    def connect_failed(self, error: GatewayError) -> None: ...


class Pool:
    """Hands out idle connections, newest first, and makes new ones up to the limit; who comes later waits in line.

    Every connection attempt is made for somebody in the line: it serves the first in it when it succeeds and fails the
    first in it when it does not, so nobody waits for an attempt that is over.
    """

    __slots__ = (
        "_idle",
        "_num_connecting",
        "_open",
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
        self._open: set[UpstreamConnection] = set()  # those being made included
        self._idle: list[UpstreamConnection] = []
        self._waiting: deque[ConnectionWaiter] = deque()
        self._num_connecting = 0
        self._tasks: set[asyncio.Task[None]] = set()  # the attempts: the event loop alone would not keep them alive

    def __repr__(self) -> str:
        return (
            f"<Pool {self.host}:{self.port} {self.size} connections, {len(self._idle)} idle, {len(self._waiting)} wait>"
        )

    @property
    def size(self) -> int:
        """Connections, those being made included."""
        return len(self._open)

    @property
    def num_busy(self) -> int:
        """Connections that serve a request, or are being made."""
        return self.size - len(self._idle)

    def acquire(self, waiter: ConnectionWaiter) -> UpstreamConnection | None:
        """An idle connection; or None, and the waiter hears when there is one.

        Raises: GatewayError(OVERLOADED) when the line is full.
        """
        idle = self._idle
        while idle:
            connection = idle.pop()
            if not connection.is_closing:
                return connection
        if self.size < self._spec.max_connections:
            self._connect()
        elif len(self._waiting) >= self._spec.max_pending:
            full = (
                f"all {self._spec.max_connections} connections are in use, {len(self._waiting)} requests wait already"
            )
            raise GatewayError(ErrorKind.OVERLOADED, full)
        self._waiting.append(waiter)
        return None

    def forget(self, waiter: ConnectionWaiter) -> None:
        """The waiter has left the line."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)

    def release(self, connection: UpstreamConnection) -> None:
        """A connection whose reply has ended serves the next in line."""
        if self._waiting:
            self._waiting.popleft().connected(connection)
        else:
            self._keep(connection)

    def discard(self, connection: UpstreamConnection) -> None:
        """A connection is closed."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._connect_for_the_line()

    def close_idle(self, idle_before: float = float("inf")) -> None:
        """Close the connections that nobody has used since `idle_before` (seconds of `monotonic`)."""
        for connection in self._idle:
            if connection.idle_since < idle_before:
                connection.close()
        self._idle = [connection for connection in self._idle if not connection.is_closing]

    def retire(self) -> None:
        """The rules no longer name this address: requests in flight end, nothing is kept for later."""
        self._spec = replace(self._spec, idle_timeout=0.0)
        self.close_idle()

    def close_stale(self, now: float) -> None:
        """Close what has been idle for longer than the limit."""
        if self._idle:
            self.close_idle(now - self._spec.idle_timeout)

    def _connect_for_the_line(self) -> None:
        """There is room again: somebody in the line may have no attempt made for him."""
        if len(self._waiting) > self._num_connecting and self.size < self._spec.max_connections:
            self._connect()

    def _connect(self) -> None:
        connection = UpstreamConnection(self)
        self._open.add(connection)
        self._num_connecting += 1
        task = asyncio.get_running_loop().create_task(self._make_connection(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _make_connection(self, connection: UpstreamConnection) -> None:
        try:
            await connect(connection, self.host, self.port, self._spec.connect_timeout, self._tls, self._server_name)
        except (OSError, UnicodeError) as error:
            self._num_connecting -= 1
            self._open.discard(connection)  # it may have been made just when its time was up, and tell of its end too
            if self._waiting:
                failed = connect_error(error, self.host, self.port, self._spec.connect_timeout)
                self._waiting.popleft().connect_failed(failed)
            self._connect_for_the_line()
            return
        self._num_connecting -= 1
        if self._waiting:
            self._waiting.popleft().connected(connection)
        else:
            self._keep(connection)

    def _keep(self, connection: UpstreamConnection) -> None:
        if not self._spec.idle_timeout:
            connection.close()
            return
        connection.idle_since = monotonic()
        self._idle.append(connection)

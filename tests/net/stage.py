"""The upstream side on loopback: an engine that sends what a test scripts, and callers that record their replies."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any

from gateway.config.engine_specs import ConnectionSpec
from gateway.net.http1_client import Http1ClientConnection, Http1Pool
from gateway.protocol.errors import GatewayError
from gateway.wire.http1.head import HEAD_END, ResponseHead

REQUEST = b"GET / HTTP/1.1\r\nHost: engine\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
DEADLINE = 120.0


class Act(Enum):
    """What an engine does instead of sending bytes."""

    CLOSE = "close"  # orderly, like a process that exits
    RESET = "reset"  # abrupt, like a process that crashes
    WAIT = "wait"  # until the test sets `go_on`


Script = Sequence[bytes | Act]


class Engine:
    """Plays its script for each request that it reads, and records the requests' heads."""

    def __init__(self, *script: bytes | Act, greeting: bytes = b"") -> None:
        self.script: Script = script or (OK,)
        self.greeting = greeting  # sent before any request
        self.heads: list[bytes] = []
        self.go_on = asyncio.Event()
        self.writers: list[asyncio.StreamWriter] = []  # of all connections, in the order of arrival
        self.num_open = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        self.num_open += 1
        writer.write(self.greeting)
        try:
            while True:
                self.heads.append(await reader.readuntil(HEAD_END))
                for step in self.script:
                    await self._play(step, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.num_open -= 1
            writer.close()

    async def _play(self, step: bytes | Act, writer: asyncio.StreamWriter) -> None:
        if step is Act.CLOSE:
            writer.close()
        elif step is Act.RESET:
            linger_not = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_not)
            writer.transport.abort()
        elif step is Act.WAIT:
            await self.go_on.wait()
        elif writer.transport.is_closing():
            raise ConnectionResetError
        else:
            writer.write(step)
            await writer.drain()
            await asyncio.sleep(0)  # so that the next step mostly arrives in a separate read


class Caller:
    """Waits for a connection, sends its request, and records the reply."""

    def __init__(self, *, is_sent: bool = True, **options: bool) -> None:
        self._is_sent = is_sent
        self._options = options
        self.connection: Http1ClientConnection | None = None
        self.head: ResponseHead | None = None
        self.pieces: list[bytes] = []
        self.error: GatewayError | None = None
        self.has_ended = False
        self._is_over = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Caller {self.head} {self.body!r} {self.error}>"

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def ask(self, pool: Http1Pool) -> Caller:
        connection = pool.acquire(self)
        if connection is not None:
            self.connected(connection)
        return self

    async def over(self) -> Caller:
        """Wait for the end of the reply, or for the failure."""
        await asyncio.wait_for(self._is_over.wait(), DEADLINE)
        return self

    # Callbacks of pools and connections

    def connected(self, connection: Http1ClientConnection) -> None:
        self.connection = connection
        connection.begin(self, **self._options)
        connection.request_is_sent = self._is_sent
        connection.send(REQUEST)

    def connect_failed(self, error: GatewayError) -> None:
        self.reply_failed(error)

    def reply_started(self, head: ResponseHead, data: bytes, ended: bool) -> None:
        assert self.head is None, "a reply starts once"
        self.head = head
        self.reply_continued(data, ended)

    def reply_continued(self, data: bytes, ended: bool) -> None:
        assert self.head is not None and not self._is_over.is_set(), "a reply goes on until it has ended"
        self.pieces.append(data)
        if ended:
            self.has_ended = True
            self._is_over.set()

    def reply_failed(self, error: GatewayError) -> None:
        assert not self._is_over.is_set(), "a reply ends once"
        self.error = error
        self._is_over.set()

    def sending_paused(self) -> None: ...

    def sending_resumed(self) -> None: ...


@asynccontextmanager
async def engine(*script: bytes | Act, tls: Any = None, **options: Any) -> AsyncIterator[Engine]:
    """An engine that listens; at the end the loop must not have reported any errors."""
    loop = asyncio.get_running_loop()
    reported: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))
    it = Engine(*script, **options)
    server = await asyncio.start_server(it.serve, "127.0.0.1", 0, ssl=tls)
    it.port = server.sockets[0].getsockname()[1]
    try:
        yield it
    finally:
        server.close()
        for writer in it.writers:
            writer.transport.abort()
        await asyncio.sleep(0)
    assert not reported, reported


def pool_of(it: Engine, **limits: Any) -> Http1Pool:
    """A worker's pool for the engine, with these limits."""
    return Http1Pool("127.0.0.1", it.port, ConnectionSpec(**limits))

"""The data plane on loopback between raw clients and engines that run a test's script."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvloop

from gateway.config.operation_access import OperationAccess, read_allowed
from gateway.config.rules import load_rules
from gateway.config.settings import Limits, Settings
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.http1_server import Http1ServerConnection
from gateway.redis.bounded_client import BoundedRedis

OK = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"ok":true}'
DEADLINE = 120.0


@dataclass
class Reply:
    """A reply as a client reads it; header names in lower case, the body without its framing."""

    status: int
    headers: dict[str, str]
    body: bytes
    chunks: list[bytes] = field(default_factory=list)

    @property
    def reason(self) -> str | None:
        return self.headers.get("x-pointsman-reason")


class Client:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        if self.writer.is_closing():  # writing would be reported as an error on uvloop, and fail silently on asyncio
            raise ConnectionResetError
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        raw = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), DEADLINE)
        first, *lines = raw.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        return int(first.split(" ")[1]), headers

    async def chunk(self) -> bytes:
        """One chunk of a chunked body; empty for the last."""
        size = int(await asyncio.wait_for(self.reader.readuntil(b"\r\n"), DEADLINE), 16)
        data = await asyncio.wait_for(self.reader.readexactly(size + 2), DEADLINE)
        return data[:-2]

    async def reply(self, *, has_body: bool = True) -> Reply:
        status, headers = await self.head()
        if not has_body:
            return Reply(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            chunks = []
            while data := await self.chunk():
                chunks.append(data)
            return Reply(status, headers, b"".join(chunks), chunks)
        if "content-length" in headers:
            length = int(headers["content-length"])
            return Reply(status, headers, await asyncio.wait_for(self.reader.readexactly(length), DEADLINE))
        return Reply(status, headers, await asyncio.wait_for(self.reader.read(), DEADLINE))

    async def ask(self, data: bytes, **options: bool) -> Reply:
        await self.send(data)
        return await self.reply(**options)

    async def at_end(self) -> bool:
        """Whether the gateway closes the connection without sending another byte."""
        try:
            return await asyncio.wait_for(self.reader.read(1), DEADLINE) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        """Leave with a reset: an end of the stream may be that of the requests alone."""
        its = self.writer.get_extra_info("socket")
        if its is None or its.fileno() < 0:  # closed already
            return
        with socket.socket(fileno=os.dup(its.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@dataclass
class ReceivedRequest:
    """A request as an engine got it."""

    head: bytes
    body: bytes

    @property
    def line(self) -> str:
        return self.head.split(b"\r\n")[0].decode()

    def value(self, name: str) -> str | None:
        """A field's value; the values of repeated fields are joined."""
        found = [
            value.decode()
            for key, _, value in (line.partition(b": ") for line in self.head.split(b"\r\n")[1:])
            if key.decode().lower() == name
        ]
        return ", ".join(found) if found else None


Script = Callable[["Engine", ReceivedRequest, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def answer_ok(
    engine: Engine, received: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    writer.write(OK)


class Engine:
    """Reads whole requests, stores them, and answers with its script; without `reads_bodies` the script reads the
    bodies."""

    def __init__(self, script: Script = answer_ok, *, reads_bodies: bool = True) -> None:
        self.script = script
        self.reads_bodies = reads_bodies
        self.received: list[ReceivedRequest] = []
        self.num_connections = 0
        self.num_open = 0
        self.url = ""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, **options: Any) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20, **options)
        scheme = "https" if options.get("ssl") else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        """Refuse new connections and break open ones."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self.num_open += 1
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                received = ReceivedRequest(head, b"")
                if self.reads_bodies:
                    received.body = await _read_body(received, reader)
                self.received.append(received)
                await self.script(self, received, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except RuntimeError:  # uvloop's, where the gateway has reset the connection
            if not writer.is_closing():
                raise
        finally:
            self.num_open -= 1
            self._writers.discard(writer)
            writer.close()


async def _read_body(received: ReceivedRequest, reader: asyncio.StreamReader) -> bytes:
    if received.value("transfer-encoding") == "chunked":
        body = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
        return body
    return await reader.readexactly(int(received.value("content-length") or 0))


class Stage:
    """One data plane, its engines, and clients for it."""

    def __init__(self, plane: DataPlane, port: int, tls: Any = None) -> None:
        self.plane = plane
        self.port = port
        self.clients: list[Client] = []

    async def client(self, **options: Any) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20, **options))
        self.clients.append(client)
        return client

    async def ask(self, data: bytes, **options: bool) -> Reply:
        """Send one request over a new connection."""
        client = await self.client()
        reply = await client.ask(data, **options)
        client.close()
        return reply

    def endpoints(self) -> list[Any]:
        return [endpoint for engine in self.plane.snapshot.engines.values() for endpoint in engine.endpoints]

    def errors(self) -> dict[str, int]:
        """All counted errors by reason."""
        found: dict[str, int] = {}
        for series in self.plane.metrics.by_key.values():
            for reason, number in series.errors.items():
                found[reason] = found.get(reason, 0) + number
        return found


def rules(*engines: Engine, options: str = "", routes: str = "") -> str:
    """Rules with one engine `it` that has all the endpoints, and a route to it; `options` are more of the engine's
    keys."""
    urls = ", ".join(f"'{engine.url}'" for engine in engines)
    routes = routes or "  - {name: all, engine: it}\n"
    extra = f"    {options}\n" if options else ""
    return f"version: 1\nengines:\n  it:\n    endpoints: [{urls}]\n{extra}routes:\n{routes}"


def load(text: str, tmp_path: Any) -> Any:
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    loaded = load_rules([file])
    assert loaded.rules is not None, loaded.problems
    return loaded.rules


@asynccontextmanager
async def stage(
    text: str,
    tmp_path: Any,
    *,
    limits: dict[str, Any] | None = None,
    store: BoundedRedis | None = None,
    **settings: Any,
) -> AsyncIterator[Stage]:
    """The data plane under these rules. When a test ends, nothing may remain: no request counted in flight, no
    deadline, no connection, no error reported to the event loop."""
    loop = asyncio.get_running_loop()
    reported: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))
    tls = settings.pop("listener_ssl", None)
    settings.setdefault("operation_access", OperationAccess(read_allowed(["all"])))
    plane = DataPlane(Settings(limits=Limits(**(limits or {})), **settings), load(text, tmp_path), 1, {}, store)
    snapshot = plane.snapshot
    server = await loop.create_server(lambda: Http1ServerConnection(plane), "127.0.0.1", 0, ssl=tls)
    it = Stage(plane, server.sockets[0].getsockname()[1])
    try:
        yield it
        for client in it.clients:
            client.close()
        await until(lambda: not plane.connections)
        engines = [*snapshot.engines.values(), *plane.snapshot.engines.values()]
        endpoints = [endpoint for engine in engines for endpoint in engine.endpoints]
        assert [endpoint.in_flight for endpoint in endpoints] == [0] * len(endpoints)
        assert all(series.in_flight == 0 for series in plane.metrics.by_key.values())
        plane.wheel.rest()
        assert "0 deadlines" in repr(plane.wheel)
        assert not held_of_limits(plane)
        await until(lambda: all(endpoint.pool.num_busy == 0 for endpoint in endpoints))
        assert not reported, reported
    finally:
        plane.close()
        server.close()


def held_of_limits(plane: DataPlane) -> list[str]:
    """The accounts with slots in use or with waiting requests."""
    accounts = [account for limit in plane.limiter.limits for account in limit.accounts.values()]
    return [
        repr(account)
        for account in accounts
        if account.waiting or account.num_queued or (account.slots and account.slots.in_use)
    ]


async def until(condition: Callable[[], object], deadline: float = DEADLINE) -> None:
    """Wait until the condition holds."""
    end = asyncio.get_running_loop().time() + deadline
    while not condition():
        assert asyncio.get_running_loop().time() < end, "it never became true"
        await asyncio.sleep(0.005)


def run(scene: Awaitable[None], *, plain: bool = False) -> None:
    """Play a scene to its end, on uvloop or on asyncio's own loop."""

    async def bounded() -> None:
        await asyncio.wait_for(scene, 280)

    with asyncio.Runner(loop_factory=None if plain else uvloop.new_event_loop) as runner:
        runner.run(bounded())


def post(path: str = "/v2/models/m/infer", body: bytes = b"{}", *fields: str) -> bytes:
    """A POST request."""
    lines = "".join(f"{field}\r\n" for field in fields)
    return f"POST {path} HTTP/1.1\r\nHost: gateway\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


def get(path: str, *fields: str) -> bytes:
    lines = "".join(f"{field}\r\n" for field in fields)
    return f"GET {path} HTTP/1.1\r\nHost: gateway\r\n{lines}\r\n".encode()

"""The admin port, and clients that hold it without a request."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trustme
from starlette.types import Message

from gateway.admin import json_route, server
from gateway.admin.app import make_app
from gateway.net.listener_tls import ListenerTls, listener_tls
from gateway.net.server import loop_factory
from tests.admin.test_app import ACCESS, KEY, State

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
GET = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
WHOAMI = GET.replace(b"healthz", b"whoami").replace(b"\r\n\r\n", b"\r\nauthorization: Bearer %b\r\n\r\n" % KEY.encode())


def play(
    scene: Callable[[Callable[..., Awaitable[Streams]]], Awaitable[None]],
    *more: socket.socket,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Run a scene with a function that connects to a server of the API, which has `more` sockets."""

    async def whole() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        served = server.admin_server(make_app(State(), ACCESS), tls)
        serving = asyncio.create_task(served.serve([listening, *more]))
        while not served.started:
            await asyncio.sleep(0.01)
        try:
            await asyncio.wait_for(scene(partial(asyncio.open_connection, *listening.getsockname())), 120)
        finally:
            served.stop()
            await serving

    with asyncio.Runner(loop_factory=loop_factory()) as runner:  # as the gateway runs it
        runner.run(whole())


async def ask(streams: Streams, request: bytes = GET) -> bytes:
    reader, writer = streams
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    return head + await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))


def test_whoever_asks_for_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection without a complete head is closed after a time limit, at the first request or a later one; a request
    in time is answered."""
    monkeypatch.setattr(server, "_HEAD_SECONDS", 0.2)

    async def scene(connect: Callable[[], Awaitable[Streams]]) -> None:
        silent, halting, late = [await connect() for _ in range(3)]
        halting[1].write(GET[:20])
        assert b"200 OK" in await ask(late)
        late[1].write(GET[:20])
        for reader, _ in (silent, halting, late):
            assert await reader.read() == b""

    play(scene)


def test_each_reply_has_its_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reply has the date of its request, without a timer."""
    dates = iter(["Sun, 22 Nov 2026 12:00:00 GMT", "Sun, 22 Nov 2026 12:00:07 GMT"])
    monkeypatch.setattr(server, "formatdate", lambda usegmt: next(dates))

    async def scene(connect: Callable[[], Awaitable[Streams]]) -> None:
        streams = await connect()
        for second in (b"00", b"07"):
            assert b"date: Sun, 22 Nov 2026 12:00:%b GMT\r\n" % second in await ask(streams)

    play(scene)


def test_a_head_has_an_end() -> None:
    """A request head is limited in size."""

    async def scene(connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * server._MAX_HEAD_BYTES * 2)
        with suppress(ConnectionResetError):  # unread bytes reset the connection
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")

    play(scene)


def test_admitted_connections_keep_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all connections were admitted by a key, further ones are closed, and a closed one frees its place."""
    monkeypatch.setattr(server, "_MAX_CONNECTIONS", 2)

    async def scene(connect: Callable[[], Awaitable[Streams]]) -> None:
        first, second = await connect(), await connect()
        assert b"200 OK" in await ask(first, WHOAMI)
        assert b"200 OK" in await ask(second, WHOAMI)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await ask(await connect())
        first[1].close()
        await first[1].wait_closed()
        while True:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                assert b"200 OK" in await ask(await connect())
                break

    play(scene)


@pytest.mark.parametrize("bound", ["_MAX_CONNECTIONS", "_MAX_OF_ADDRESS"])
def test_silent_connections_keep_nobody_out(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    """Where there is no place left, or none for the address, the oldest connection without a complete head is closed
    for a new one, else the oldest that no key admitted."""
    monkeypatch.setattr(server, bound, 3)

    async def scene(connect: Callable[[], Awaitable[Streams]]) -> None:
        admitted, open_to_all, silent = await connect(), await connect(), await connect()
        assert b"200 OK" in await ask(admitted, WHOAMI)
        assert b"200 OK" in await ask(open_to_all)
        silent[1].write(GET[:20])
        renewed = await connect()
        assert b"200 OK" in await ask(renewed)
        with suppress(ConnectionResetError):
            assert await silent[0].read() == b""
        assert b"200 OK" in await ask(await connect(), WHOAMI)
        with suppress(ConnectionResetError):
            assert await open_to_all[0].read() == b""
        for streams in (renewed, admitted):
            assert b"200 OK" in await ask(streams)

    play(scene)


def test_the_unix_socket_does_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Connections by the Unix socket are served beside a full port, however many they are."""
    monkeypatch.setattr(server, "_MAX_CONNECTIONS", 1)
    path = str(tmp_path / "admin.sock")

    async def scene(connect: Callable[[], Awaitable[Streams]]) -> None:
        by_port = await connect()
        assert b"200 OK" in await ask(by_port, WHOAMI)
        for each in [await asyncio.open_unix_connection(path) for _ in range(3)]:
            assert b'"local"' in await ask(each, GET.replace(b"healthz", b"whoami"))
        assert b"200 OK" in await ask(by_port, WHOAMI)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        play(scene, listening)


def test_handshakes_count_as_connections(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With TLS a connection counts before its handshake: the oldest without one is closed for a new connection, and a
    client that leaves in its handshake frees its place. A request right behind the handshake is answered."""
    monkeypatch.setattr(server, "_MAX_CONNECTIONS", 2)
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "it.pem")
    pem, trusting = str(tmp_path / "it.pem"), ssl.create_default_context()
    authority.configure_trust(trusting)
    tls = listener_tls(ListenerTls((pem,), (pem,)), ("http/1.1",))

    async def scene(connect: Callable[..., Awaitable[Streams]]) -> None:
        first, second = await connect(), await connect()
        asking = await connect(ssl=trusting)
        with suppress(ConnectionResetError):
            assert await first[0].read() == b""
        assert b"200 OK" in await ask(asking, WHOAMI)
        assert not second[0].at_eof()
        second[1].close()
        assert b"200 OK" in await ask(await connect(ssl=trusting), WHOAMI)
        assert b"200 OK" in await ask(asking)

    play(scene, tls=tls)


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that does not arrive in time is answered 408."""
    monkeypatch.setattr(json_route, "_BODY_SECONDS", 0.01)
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"9")]
    headers.append((b"authorization", f"Bearer {KEY}".encode()))
    scope = {"type": "http", "method": "PUT", "path": "/log-level", "query_string": b"", "headers": headers}
    asyncio.run(make_app(State(), ACCESS)(scope, receive, send))
    assert sent[0]["status"] == 408

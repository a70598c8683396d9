"""Streamed replies, and a slow or disconnected client or engine."""

import asyncio
import hashlib
import socket
from pathlib import Path

import pytest

from tests.dataplane.stage import Engine, ReceivedRequest, get, post, rules, run, stage, until

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
HIGH_WATER = 64 * 1024
# What the kernel may buffer in addition, both ways on both connections, and one read of the event loop.
SLACK = 16 * 1024 * 1024


def test_events_pass_one_by_one(tmp_path: Path) -> None:
    """Each event reaches the client before the engine sends the next one, without buffering."""

    async def scene() -> None:
        seen = asyncio.Event()

        async def events(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
            writer.write(STREAM)
            for number in range(20):
                event = b'data: {"text_output": "%d"}\n\n' % number
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await writer.drain()
                await seen.wait()
                seen.clear()
            writer.write(b"0\r\n\r\n")

        engine = Engine(events)
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            await client.send(post("/v2/models/m/generate_stream"))
            _, headers = await client.head()
            assert headers["content-type"] == "text/event-stream"
            for number in range(20):
                assert await client.chunk() == b'data: {"text_output": "%d"}\n\n' % number
                seen.set()
            assert await client.chunk() == b""
            assert (await client.ask(get("/v2/health/live"))).status == 200  # the connection stays open
        engine.stop()

    run(scene())


@pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("framing", ["length", "chunks", "events", "close"])
def test_a_slow_reader_stops_the_engine(tmp_path: Path, framing: str, plain: bool) -> None:
    """While a client does not read, the gateway buffers at most the high-water mark and pauses the engine; everything
    arrives intact once the client reads again."""
    piece = bytes(range(256)) * 256
    total = 48 * 1024 * 1024

    async def scene() -> None:
        sent = 0

        async def endless(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
            nonlocal sent
            chunked = b"Transfer-Encoding: chunked\r\n"
            head = {
                "length": b"Content-Length: %d\r\n" % total,
                "chunks": chunked,
                "events": chunked + b"Content-Type: text/event-stream\r\n",
                "close": b"",
            }
            writer.write(b"HTTP/1.1 200 OK\r\n" + head[framing] + b"\r\n")
            while sent < total:
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if framing in ("chunks", "events") else piece)
                sent += len(piece)
                await writer.drain()
            if framing in ("chunks", "events"):
                writer.write(b"0\r\n\r\n")
            elif framing == "close":
                await writer.drain()
                writer.close()

        engine = Engine(endless)
        await engine.start()
        async with stage(rules(engine), tmp_path, limits={"high_water_bytes": HIGH_WATER}) as it:
            client = await it.client()
            await client.send(post())
            before = -1
            while before != sent:  # until the engine stops sending
                before = sent
                await asyncio.sleep(0.2)
            assert sent < SLACK < total
            (connection,) = it.plane.connections
            assert connection._transport.get_write_buffer_size() <= HIGH_WATER + 256 * 1024 + 1024  # type: ignore[attr-defined]
            reply = await client.reply()
            assert hashlib.sha256(reply.body).digest() == hashlib.sha256(piece * (total // len(piece))).digest()
        engine.stop()

    run(scene(), plain=plain)


def test_a_reply_that_is_not_read_holds_up_the_next(tmp_path: Path) -> None:
    """The next request of a client that has not read its last reply waits, so that replies do not accumulate in
    memory."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            assert (await client.ask(post())).status == 200
            (connection,) = it.plane.connections
            connection.pause_writing()  # type: ignore[attr-defined]  # as a full transport does after a whole reply
            await client.send(post() + post())
            await until(lambda: connection._buffer)  # type: ignore[attr-defined]
            assert len(engine.received) == 1
            connection.resume_writing()  # type: ignore[attr-defined]
            assert (await client.reply()).status == (await client.reply()).status == 200
            assert len(engine.received) == 3
        engine.stop()

    run(scene())


@pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])
def test_a_slow_engine_stops_the_client(tmp_path: Path, plain: bool) -> None:
    """While an engine does not read, the gateway pauses the client; the upload arrives intact later. The kernel
    takes up to 32 MiB for each receiver (tcp_rmem) on a busy machine, and 4 MiB for each sender."""
    total = 96 * 1024 * 1024
    body = bytes(range(256)) * (total // 256)

    async def scene() -> None:
        may_read = asyncio.Event()
        digest = b""

        async def late(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
            nonlocal digest
            await may_read.wait()
            digest = hashlib.sha256(await reader.readexactly(total)).digest()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        engine = Engine(late, reads_bodies=False)
        await engine.start()
        bounds = {"high_water_bytes": HIGH_WATER, "max_body_bytes": total}
        async with stage(rules(engine), tmp_path, limits=bounds) as it:
            client = await it.client()
            client.writer.transport.set_write_buffer_limits(high=1)
            client.writer.write(post(body=body))
            before = -1
            while before != (left := client.writer.transport.get_write_buffer_size()):
                before = left
                await asyncio.sleep(0.2)
            assert left > 8 * 1024 * 1024
            may_read.set()
            assert (await client.reply()).status == 200
            assert digest == hashlib.sha256(body).digest()
        engine.stop()

    run(scene(), plain=plain)


async def silent(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
    """A busy engine: it sends nothing until the gateway closes the connection."""
    assert await reader.read() == b""
    raise ConnectionError


async def streaming(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
    writer.write(STREAM + b"3\r\nabc\r\n")
    await silent(engine, received, reader, writer)


@pytest.mark.parametrize("script", [silent, streaming])
def test_a_client_that_leaves_cancels_the_engine(tmp_path: Path, script: object) -> None:
    """When a client leaves, before or during the reply, the engine's connection is closed at once."""

    async def scene() -> None:
        engine = Engine(script)  # type: ignore[arg-type]
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            await client.send(post())
            await until(lambda: engine.received)
            if script is streaming:
                await client.head()
            client.close()
            await until(lambda: engine.num_open == 0)
            assert it.errors() == {"client_gone": 1}
        engine.stop()

    run(scene())


def test_a_client_that_leaves_during_its_upload(tmp_path: Path) -> None:
    """When a client leaves in the middle of its body, the engine's connection is closed."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            await client.send(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\nabc")
            await until(lambda: engine.num_open == 1)
            client.close()
            await until(lambda: engine.num_open == 0)
            assert engine.received == []
        engine.stop()

    run(scene())


def test_a_client_that_leaves_while_waiting_for_a_connection(tmp_path: Path) -> None:
    """A request that waits for a connection is removed when its client leaves; the next one in the queue is served."""

    async def scene() -> None:
        answer = asyncio.Event()

        async def slow(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
            await answer.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        engine = Engine(slow)
        await engine.start()
        async with stage(rules(engine, options="connections: {max_connections: 1}"), tmp_path) as it:
            first, leaver, last = [await it.client() for _ in range(3)]
            await first.send(post())
            await until(lambda: engine.received)
            await leaver.send(post())
            await until(lambda: it.endpoints()[0].in_flight == 2)
            await last.send(post())
            await until(lambda: it.endpoints()[0].in_flight == 3)
            leaver.close()
            await until(lambda: it.endpoints()[0].in_flight == 2)
            answer.set()
            assert (await first.reply()).status == (await last.reply()).status == 200
            assert len(engine.received) == 2
        engine.stop()

    run(scene())


@pytest.mark.parametrize(
    "start, reply",
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", b"abc"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", b"3\r\nabc\r\n"),
    ],
)
def test_an_engine_that_dies_in_its_reply(tmp_path: Path, start: bytes, reply: bytes) -> None:
    """An incomplete reply never looks complete: the client's connection is closed after the same bytes."""

    async def half(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        writer.write(start)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()

    async def scene() -> None:
        engine = Engine(half)
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            await client.send(post())
            assert (await client.head())[0] == 200
            assert await client.reader.read() == reply
            assert it.errors() == {"upstream_reset": 1}
        engine.stop()

    run(scene())


def test_a_broken_stream_says_so(tmp_path: Path) -> None:
    """An event stream whose engine dies ends with an error event, and without the last chunk."""

    async def half(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        writer.write(STREAM + b"9\r\ndata: 1\n\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    async def scene() -> None:
        engine = Engine(half)
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            await client.send(post("/v2/models/m/generate_stream"))
            await client.head()
            assert await client.chunk() == b"data: 1\n\n"
            event = await client.chunk()
            assert event.startswith(b'data: {"error":"the engine closed the connection in the middle of its reply')
            assert b"(route 'all', engine 'it', endpoint http://127.0.0.1" in event
            assert await client.at_end()
        engine.stop()

    run(scene())


def test_sockets_do_not_wait_for_more(tmp_path: Path) -> None:
    """Nagle's algorithm is off on both sides, so that a token is not delayed until the previous one is acknowledged."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            assert (await client.ask(post())).status == 200
            (connection,) = it.plane.connections
            (upstream,) = it.endpoints()[0].pool._idle
            for transport in (connection._transport, upstream._transport):  # type: ignore[attr-defined]
                assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        engine.stop()

    run(scene())

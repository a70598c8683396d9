"""Clients that send or read slowly, and those that send much: none of them keeps others from being served."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.dataplane.http1_server import Http1ServerConnection
from gateway.dataplane.http2_server import Http2ServerConnection
from gateway.net.sockets import TURN_BYTES
from gateway.wire.http2.frames import PREFACE
from tests.dataplane.grpc.peers import STREAM, UNARY, GrpcEngine
from tests.dataplane.grpc.stage import grpc_rules, grpc_stage, request
from tests.dataplane.stage import OK, Engine, Stage, post, rules, run, stage, until
from tests.support.turns import turns_during

HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"
MB = 1 << 20


def sweep(it: Stage, seconds: float) -> None:
    """Sweep the connections as if so many seconds passed, one by one."""
    now = it.plane.loop.time()
    for second in range(int(seconds) + 1):
        for connection in list(it.plane.connections):
            connection.sweep(now + second)


@pytest.mark.parametrize("size, min_rate, is_ended", [(10, 240, True), (10, 0, False), (100_000, 240, False)])
def test_a_body_that_comes_too_slowly(size: int, min_rate: int, is_ended: bool, tmp_path: Path) -> None:
    """A body below the least rate is ended with 408 after the first 15 s; 0 allows any, and what comes in time goes on.
    Neither has a connection of the engine meanwhile, since the body is short."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path, limits={"min_rate": min_rate}) as it:
            client = await it.client()
            await client.send(HEAD % 200_000)
            await until(lambda: it.plane.held.num_held)
            sweep(it, 0)
            await client.send(bytes(size))
            await until(lambda: it.plane.held.total == size)
            sweep(it, 17)
            assert engine.num_connections == 0
            if is_ended:
                reply = await client.reply()
                assert (reply.status, reply.reason) == (408, "request_timeout")
                assert b"--min-rate" in reply.body
            else:
                await client.send(bytes(200_000 - size))
                assert (await client.reply()).status == 200
        engine.stop()

    run(scene())


def test_a_short_body_is_held_until_it_is_whole(tmp_path: Path) -> None:
    """An engine's connection is taken once a short body is whole: many clients that send slowly take none of them."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        options = "connections: {max_connections: 1, max_pending: 1}"
        async with stage(rules(engine, options=options), tmp_path) as it:
            slow = [await it.client() for _ in range(5)]
            for client in slow:
                await client.send(HEAD % 1000 + bytes(10))
            await until(lambda: it.plane.held.total == 50)
            assert engine.num_connections == 0
            assert (await it.ask(post())).status == 200
            for client in slow:
                await client.send(bytes(990))
                assert (await client.reply()).status == 200
            assert [len(received.body) for received in engine.received[1:]] == [1000] * 5
            assert not it.plane.held.total
        engine.stop()

    run(scene())


def test_a_long_body_passes_as_it_comes(tmp_path: Path) -> None:
    """A body that is longer than what may be sent again goes on at once."""

    async def scene() -> None:
        engine = Engine(reads_bodies=False)
        begun = asyncio.Event()

        async def script(engine: Engine, received: Any, reader: Any, writer: Any) -> None:
            await reader.readexactly(10)
            begun.set()
            await reader.readexactly(2 * MB - 10)
            writer.write(OK)

        engine.script = script
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            await client.send(HEAD % (2 * MB) + bytes(10))
            await asyncio.wait_for(begun.wait(), 120)
            await client.send(bytes(2 * MB - 10))
            assert (await client.reply()).status == 200
        engine.stop()

    run(scene())


def test_a_client_that_reads_too_slowly(tmp_path: Path) -> None:
    """A client that takes next to nothing of its reply is let go of after the first 15 s; one that reads is not."""

    async def scene() -> None:
        async def script(engine: Engine, received: Any, reader: Any, writer: Any) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (64 * MB) + bytes(64 * MB))

        engine = Engine(script)
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(post())
            (connection,) = await settled(it)
            now = it.plane.loop.time()
            for second in range(14):
                connection.sweep(now + second)
            assert it.plane.connections
            for second in range(14, 20):
                connection.sweep(now + second)
            await until(lambda: not it.plane.connections)
        engine.stop()

    run(scene())


async def settled(it: Stage) -> list[Any]:
    """The connections, once one of them waits for its client."""
    await until(lambda: any(getattr(each, "is_paused", False) for each in it.plane.connections))
    return list(it.plane.connections)


def test_a_message_that_comes_too_slowly(tmp_path: Path) -> None:
    """A gRPC message below the least rate ends with DEADLINE_EXCEEDED, and so does a body over HTTP/2 with 408."""

    async def scene() -> None:
        engine = await GrpcEngine().start()
        async with grpc_stage(grpc_rules(engine), tmp_path) as it:
            client = await it.grpc()
            call = client.call(UNARY)
            await call.send_raw(b"\0\0\0\x10\0")
            await until(lambda: it.plane.held.total)
            sweep(it, 20)
            await call.over()
            assert (call.status, call.value("x-pointsman-reason")) == (4, "request_timeout")
        await engine.stop()

    run(scene())


def test_a_client_that_does_not_read_its_stream(tmp_path: Path) -> None:
    """Replies of REST over HTTP/2 that are not read give their engine's connections back after the first 15 s; those of
    a client that reads go on."""

    async def scene() -> None:
        async def script(engine: Engine, received: Any, reader: Any, writer: Any) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (8 * MB) + bytes(8 * MB))

        engine = Engine(script)
        await engine.start()
        options = "connections: {max_connections: 2, max_pending: 2, max_client_share: 100%}"
        async with grpc_stage(rules(engine, options=options), tmp_path, sweep_seconds=1000) as it:
            client = await it.grpc()
            (endpoint,) = it.endpoints()
            calls = [client.request("GET", "/v2/models/m", ended=True) for _ in range(2)]
            for call in calls:
                call.pause()
            await until(lambda: all(stream.num_waiting for stream in streams(it)) and len(streams(it)) == 2)
            sweep(it, 14)
            assert endpoint.pool.num_busy == 2
            calls[1].resume()
            await calls[1].when(lambda: len(calls[1].data) == 8 * MB)
            sweep(it, 20)
            await until(lambda: not endpoint.pool.num_busy)
            assert (await calls[0].over()).was_reset is not None and calls[1].was_reset is None
        engine.stop()

    run(scene())


def streams(it: Stage) -> list[Any]:
    """The open streams of clients that speak HTTP/2."""
    fronts = [each for each in it.plane.connections if isinstance(each, Http2ServerConnection)]
    return [stream for front in fronts for stream in front.http2.streams.values()]


class RecordingTransport(asyncio.Transport):
    """A transport that records whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def write(self, data: Any) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...

    def abort(self) -> None: ...


@pytest.mark.parametrize("front", [Http1ServerConnection, Http2ServerConnection])
def test_one_connection_yields_to_the_others(front: Any, tmp_path: Path) -> None:
    """After a read that does not empty its socket, a connection is not read until the others have had a turn."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            transport, connection = RecordingTransport(), front(it.plane)
            connection.connection_made(transport)
            beginning = PREFACE + bytes(3) + b"\4" + bytes(5) if front is Http2ServerConnection else HEAD % MB
            connection.data_received(beginning)
            transport.calls.clear()
            piece = (b"\0\x40\0\xfe" + bytes(5 + 0x4000)) * 20  # frames of an unknown type
            assert len(piece) >= TURN_BYTES
            connection.data_received(piece)
            assert transport.calls == ["pause"]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert transport.calls == ["pause", "resume"]
            connection.data_received(piece[:1000])
            assert transport.calls == ["pause", "resume"]
            connection.connection_lost(None)
        engine.stop()

    run(scene())


def test_a_stream_of_many_messages_yields_to_the_others(tmp_path: Path) -> None:
    """Thousands of messages in one read are handed on in parts, between which other connections have turns."""

    async def scene() -> None:
        engine = await GrpcEngine().start()
        async with grpc_stage(grpc_rules(engine), tmp_path) as it:
            client = await it.grpc()
            call = client.call(STREAM)

            async def send() -> None:
                await call.send(*[request()] * 3000, ended=True)
                await call.over()

            _, turns = await turns_during(send())
            assert len(call.messages) == 3000 and turns > 3000 // 256
        await engine.stop()

    run(scene())

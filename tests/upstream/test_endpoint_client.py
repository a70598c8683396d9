"""The gateway's own gRPC calls: the request sent, and each failure."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from h2.errors import ErrorCodes

from gateway.config.engine_specs import ConnectionSpec, EndpointSpec, EngineSpec
from gateway.net.http2_client import Http2Pool
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.endpoint_client import UnaryReply, call_unary
from gateway.wire.grpc import framed
from tests.dataplane.grpc.peers import OPENING, Call, GrpcEngine
from tests.dataplane.stage import run, until

PATH = "/inference.GRPCInferenceService/ServerReady"


def pool_of(address: str, **limits: Any) -> Http2Pool:
    host, _, port = address.rpartition(":")
    return Http2Pool(host, int(port), ConnectionSpec(**limits))


def endpoint_of(pool: Http2Pool) -> Endpoint:
    """An endpoint `engine:1` behind this pool."""
    engine = EngineSpec("it", (EndpointSpec("grpc://engine:1", "engine:1"),))
    endpoint = Endpoint(engine, engine.endpoints[0], None)
    endpoint.streams = pool
    return endpoint


async def asked(pool: Http2Pool, timeout: float | None = 5.0, message: bytes = b"hello") -> UnaryReply | ErrorKind:
    try:
        fields = [(b"authorization", b"Bearer secret")]
        return await call_unary(endpoint_of(pool), PATH, message, fields=fields, timeout=timeout)
    except GatewayError as error:
        return error.kind


def scene(play: Any, script: Any, **limits: Any) -> None:
    """Play with a pool for an engine; at the end no stream or waiter is left and the loop has reported no errors."""

    async def whole() -> None:
        loop = asyncio.get_running_loop()
        reported: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: reported.append(context))
        engine = await GrpcEngine(script).start()
        pool = pool_of(engine.address, **limits)
        await play(pool, engine)
        assert repr(pool).endswith("0 streams, 0 wait>")
        await engine.stop()
        assert not reported, reported

    run(whole())


async def answer(call: Call) -> None:
    await call.over()
    call.open()
    await call.send(b"there")
    call.end([("grpc-status", "0"), ("grpc-message", "all%20well")])


async def refuse(call: Call) -> None:
    call.refuse(5, "no%20model")


async def no_number(call: Call) -> None:
    call.refuse(5)
    call.reset(ErrorCodes.NO_ERROR)


async def no_status(call: Call) -> None:
    await call.over()
    call.open()
    await call.send(b"there")
    call.end([("x-other", "1")])


async def no_end(call: Call) -> None:
    await call.over()
    call.open()
    await call.send(b"there", ended=True)


async def no_grpc(call: Call) -> None:
    await call.over()
    call.open([(":status", "404")])
    await call.send_raw(b"<html>", ended=True)


async def nonsense(call: Call) -> None:
    await call.over()
    call.open()
    await call.send_raw(b"\x09\0\0\0\0")
    await call.when(lambda: call.was_reset is not None)


async def compressed(call: Call) -> None:
    await call.over()
    call.open([*OPENING, ("grpc-encoding", "gzip")])
    await call.send_raw(b"\x01" + framed(b"there")[1:])
    call.end()


async def broken_off(call: Call) -> None:
    call.reset(ErrorCodes.INTERNAL_ERROR)


async def lost(call: Call) -> None:
    call.peer.abort()


ENDS = [
    (answer, UnaryReply(0, "all well", b"there")),
    (refuse, UnaryReply(5, "no model", b"")),
    (no_number, UnaryReply(5, "", b"")),
    (no_status, UnaryReply(2, "", b"there")),
    (no_end, ErrorKind.UPSTREAM_PROTOCOL),
    (no_grpc, ErrorKind.UPSTREAM_PROTOCOL),
    (nonsense, ErrorKind.UPSTREAM_PROTOCOL),
    (compressed, ErrorKind.UPSTREAM_PROTOCOL),
    (broken_off, ErrorKind.UPSTREAM_RESET),
    (lost, ErrorKind.UPSTREAM_RESET),
]


@pytest.mark.parametrize("script, report", ENDS, ids=lambda it: getattr(it, "__name__", ""))
def test_how_it_ends(script: Any, report: UnaryReply | ErrorKind) -> None:
    """Any gRPC status is a reply; a reply without one is a failure of the endpoint."""

    async def play(pool: Http2Pool, engine: GrpcEngine) -> None:
        assert await asked(pool) == report
        received = engine.calls[0]
        assert (received.value(":path"), received.value(":authority")) == (PATH, "engine:1")
        assert (received.value("authorization"), received.value("te")) == ("Bearer secret", "trailers")

    scene(play, script)


def test_the_message_arrives() -> None:
    """Request and reply messages of any length arrive complete."""

    async def echo(call: Call) -> None:
        await call.over()
        call.open()
        await call.send(*call.messages)
        call.end()

    async def play(pool: Http2Pool, engine: GrpcEngine) -> None:
        for size in (0, 100, 3_000_000):
            found = await asked(pool, message=bytes(size))
            assert isinstance(found, UnaryReply) and found.message == bytes(size)

    scene(play, echo)


def test_its_time() -> None:
    """The timeout includes the time in the queue, and resets the stream when it expires."""

    async def silent(call: Call) -> None:
        await call.when(lambda: call.was_reset is not None)

    async def play(pool: Http2Pool, engine: GrpcEngine) -> None:
        first = asyncio.create_task(asked(pool, timeout=0.2))
        await until(lambda: engine.calls)
        assert await asked(pool, timeout=0.05) is ErrorKind.DEADLINE  # it waited in the queue
        assert await first is ErrorKind.DEADLINE
        await engine.calls[0].when(lambda: engine.calls[0].was_reset is not None)

    scene(play, silent, max_streams=1, max_connections=1)


def test_who_asks_may_leave() -> None:
    async def silent(call: Call) -> None:
        await call.when(lambda: call.was_reset is not None)

    async def play(pool: Http2Pool, engine: GrpcEngine) -> None:
        asking = asyncio.create_task(asked(pool))
        await until(lambda: engine.calls)
        waiting = asyncio.create_task(asked(pool))
        await asyncio.sleep(0)
        for task in (waiting, asking):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await engine.calls[0].when(lambda: engine.calls[0].was_reset is not None)

    scene(play, silent, max_streams=1, max_connections=1)


def test_a_full_line_and_nobody_there() -> None:
    async def whole() -> None:
        assert await asked(pool_of("127.0.0.1:1")) is ErrorKind.UPSTREAM_CONNECT
        assert await asked(pool_of("127.0.0.1:1", max_pending=0)) is ErrorKind.OVERLOADED

    run(whole())

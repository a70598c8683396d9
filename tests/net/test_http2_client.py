"""The HTTP/2 connections to one endpoint: their number, the queue, and connections that close."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from h2.settings import SettingCodes

from gateway.config.engine_specs import ConnectionSpec
from gateway.net.http2_client import Http2ClientConnection, Http2Pool
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.wire.http2.fields import Block
from gateway.wire.http2.frames import ErrorCode
from gateway.wire.http2.hpack import CachedHeaders
from gateway.wire.http2.stream import Stream
from tests.dataplane.grpc.peers import UNARY, Call, GrpcEngine
from tests.dataplane.stage import run, until

OPENING = CachedHeaders(
    [(b":method", b"POST"), (b":scheme", b"http"), (b":path", UNARY.encode()), (b":authority", b"engine")]
)


class Caller:
    """Waits for a stream, opens it, and records its events."""

    def __init__(self, pool: Http2Pool) -> None:
        self.pool = pool
        self.stream: Stream | None = None
        self.connection: Http2ClientConnection | None = None
        self.error: GatewayError | None = None
        self.reset: tuple[int, str] | None = None
        self.has_ended = False
        self.failed: Any = lambda: None  # called when it fails

    def __repr__(self) -> str:
        return f"<Caller {self.stream} {self.error} {self.reset}>"

    def ask(self) -> Caller:
        connection = self.pool.acquire(self)
        if connection is not None:
            self.connected(connection)
        return self

    def end(self) -> None:
        assert self.stream is not None
        self.stream.reset()

    def connected(self, connection: Http2ClientConnection) -> None:
        assert self.stream is None, "a waiter is served once"
        self.connection = connection
        self.stream = connection.open_stream(self)
        self.stream.send_headers(OPENING)

    def connect_failed(self, error: GatewayError) -> None:
        assert self.error is None, "a waiter hears of a failure once"
        self.error = error
        self.failed()

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None:
        self.has_ended = ended

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None: ...

    def trailers_received(self, stream: Stream, block: Block) -> None: ...

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        self.reset = (code, why)

    def drained(self, stream: Stream) -> None: ...


async def waits(call: Call) -> None:
    await call.when(lambda: call.is_over)


def scene(play: Any, settings: Any = None, **limits: Any) -> None:
    """Play with a pool for an engine; the loop must not report any errors."""

    async def whole() -> None:
        loop = asyncio.get_running_loop()
        reported: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: reported.append(context))
        engine = await GrpcEngine(waits, settings=settings).start()
        host, _, port = engine.address.rpartition(":")
        pool = Http2Pool(host, int(port), ConnectionSpec(**limits))
        await play(pool, engine)
        await engine.stop()
        assert not reported, reported

    run(whole())


def served(callers: list[Caller]) -> list[Caller]:
    return [caller for caller in callers if caller.stream is not None]


def test_a_connection_is_filled_before_the_next() -> None:
    """Up to `max_streams` calls share a connection; with `max_connections` full, further calls wait in the queue."""

    async def play(pool: Http2Pool, engine: GrpcEngine) -> None:
        callers = [Caller(pool).ask() for _ in range(8)]
        await until(lambda: len(served(callers)) == 6)
        assert (pool.size, pool.num_streams) == (2, 6)
        assert [caller.stream is not None for caller in callers] == [True] * 6 + [False] * 2
        await until(lambda: len(engine.calls) == 6)
        assert [len(peer.calls) for peer in engine.peers] == [3, 3]
        callers[1].end()
        assert callers[6].stream is not None and callers[7].stream is None
        assert callers[6].connection is callers[1].connection
        callers[5].end()
        assert len(served(callers)) == 8 and pool.size == 2

    scene(play, max_streams=3, max_connections=2)


def test_a_full_line() -> None:
    """A full queue rejects further callers, and a caller that leaves it makes room."""

    async def play(pool: Http2Pool, engine: GrpcEngine) -> None:
        callers = [Caller(pool).ask()]
        await until(lambda: served(callers))
        callers += [Caller(pool).ask(), Caller(pool).ask()]
        with pytest.raises(GatewayError) as refused:
            Caller(pool).ask()
        assert refused.value.kind is ErrorKind.OVERLOADED
        pool.forget(callers[1])
        pool.forget(callers[1])
        last = Caller(pool).ask()
        callers[0].end()
        assert callers[1].stream is None and callers[2].stream is not None
        callers[2].end()
        assert last.stream is not None
        assert repr(pool) == f"<Http2Pool {engine.address} 1 connections, 1 streams, 0 wait>"

    scene(play, max_streams=1, max_connections=1, max_pending=2)


def test_what_the_engine_allows() -> None:
    """The engine's MAX_CONCURRENT_STREAMS applies where it is lower, and a change takes effect."""

    async def play(pool: Http2Pool, engine: GrpcEngine) -> None:
        first = Caller(pool).ask()
        await until(lambda: first.stream and first.connection.http2.peer_max_streams == 2)
        callers = [Caller(pool).ask() for _ in range(3)]
        assert len(served(callers)) == 1
        peer = engine.peers[0]
        peer.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 4})
        peer.flush()
        await until(lambda: len(served(callers)) == 3)
        assert pool.size == 1

    scene(play, {SettingCodes.MAX_CONCURRENT_STREAMS: 2}, max_connections=1)


def test_what_the_engine_allows_from_the_first() -> None:
    """Callers wait for a new connection until its SETTINGS state how many streams it accepts."""

    async def play(pool: Http2Pool, engine: GrpcEngine) -> None:
        callers = [Caller(pool).ask() for _ in range(4)]
        await until(lambda: len(served(callers)) == 4)
        await until(lambda: len(engine.calls) == 4 or any(caller.reset for caller in callers))
        assert [len(peer.calls) for peer in engine.peers] == [2, 2]

    scene(play, {SettingCodes.MAX_CONCURRENT_STREAMS: 2})


def test_an_engine_that_allows_nothing() -> None:
    """An engine that accepts no streams, for instance during shutdown, does not cause repeated connects."""

    async def play(pool: Http2Pool, engine: GrpcEngine) -> None:
        callers = [Caller(pool).ask() for _ in range(3)]
        await until(lambda: all(caller.reset for caller in callers))
        late = Caller(pool).ask()
        await until(lambda: late.reset is not None)
        assert len(engine.peers) <= 4  # at most one for each request

    scene(play, {SettingCodes.MAX_CONCURRENT_STREAMS: 0})


def test_an_engine_that_leaves() -> None:
    """After GOAWAY accepted streams finish, others are refused, and later calls get a new connection."""

    async def play(pool: Http2Pool, engine: GrpcEngine) -> None:
        callers = [Caller(pool).ask() for _ in range(3)]
        await until(lambda: len(engine.calls) == 3)
        peer = engine.peers[0]
        peer.leave(last_id=engine.calls[1].id)
        await until(lambda: callers[2].reset is not None)
        assert callers[2].reset is not None and callers[2].reset[0] == ErrorCode.REFUSED_STREAM
        assert callers[0].reset is callers[1].reset is None
        late = Caller(pool).ask()
        await until(lambda: late.stream is not None)
        assert late.connection is not callers[0].connection
        for call in engine.calls[:2]:
            call.open(ended=True)
        await until(lambda: callers[0].has_ended and callers[1].has_ended)
        await until(lambda: peer.is_lost)
        assert not engine.peers[1].is_lost

    scene(play)


def test_an_engine_that_is_lost() -> None:
    """A lost connection resets its streams; queued callers get another connection."""

    async def play(pool: Http2Pool, engine: GrpcEngine) -> None:
        callers = [Caller(pool).ask() for _ in range(2)]
        await until(lambda: len(engine.calls) == 2)
        waiting = Caller(pool).ask()
        engine.peers[0].abort()
        await until(lambda: waiting.stream is not None)
        assert all(caller.reset and caller.reset[0] == ErrorCode.INTERNAL_ERROR for caller in callers)
        assert pool.size == 1

    scene(play, max_streams=2, max_connections=1)


# Failed connects


def nobody(**limits: Any) -> Http2Pool:
    return Http2Pool("127.0.0.1", 1, ConnectionSpec(**limits))


def test_a_failed_attempt_is_told_to_all_it_was_made_for() -> None:
    """One failed attempt fails as many callers as a connection takes; the next attempt serves the rest."""

    async def whole() -> None:
        pool = nobody(max_streams=2, max_connections=1)
        callers = [Caller(pool).ask() for _ in range(5)]
        await until(lambda: all(caller.error for caller in callers))
        assert {caller.error.kind for caller in callers if caller.error} == {ErrorKind.UPSTREAM_CONNECT}
        assert repr(pool).endswith("0 connections, 0 streams, 0 wait>") and pool.size == 0

    run(whole())


def test_a_failure_that_others_answer_by_leaving() -> None:
    """A caller whose attempt failed may remove others from the queue (the streams of one call): those get no
    callback."""

    async def whole() -> None:
        loop = asyncio.get_running_loop()
        reported: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: reported.append(context))
        pool = nobody()
        callers = [Caller(pool).ask() for _ in range(4)]
        callers[0].failed = lambda: [pool.forget(caller) for caller in callers[1:3]]
        await until(lambda: callers[3].error)
        assert [caller.error is not None for caller in callers] == [True, False, False, True]
        await until(lambda: pool.size == 0)
        assert not reported, reported

    run(whole())


def test_a_failure_that_is_answered_by_asking_again() -> None:
    """A caller that retries after a failure waits for another attempt."""

    async def whole() -> None:
        pool = nobody()
        first, second = Caller(pool), Caller(pool)
        first.failed = lambda: second.ask()
        first.ask()
        await until(lambda: second.error)
        assert first.error is not second.error
        await until(lambda: pool.size == 0)

    run(whole())


# Closing


def test_idle_connections() -> None:
    """A connection unused for `idle_timeout` is closed with GOAWAY; one with a stream is never closed."""

    async def play(pool: Http2Pool, engine: GrpcEngine) -> None:
        busy, idle = Caller(pool).ask(), Caller(pool).ask()
        await until(lambda: busy.stream and idle.stream)
        idle.end()
        assert idle.connection is not None
        pool.close_stale(idle.connection.idle_since + 9)
        assert pool.size == 2
        pool.close_stale(idle.connection.idle_since + 11)
        assert pool.size == 1 and busy.connection is not None and not busy.connection.is_closing
        await until(lambda: engine.peers[1].is_lost)
        assert engine.peers[1].goaways

    scene(play, max_streams=1, idle_timeout=10.0)


def test_a_pool_that_is_retired() -> None:
    """Idle connections close at once, busy ones when their streams have ended."""

    async def play(pool: Http2Pool, engine: GrpcEngine) -> None:
        busy, idle = Caller(pool).ask(), Caller(pool).ask()
        await until(lambda: busy.stream and idle.stream)
        idle.end()
        pool.retire()
        await until(lambda: engine.peers[1].is_lost)
        assert not engine.peers[0].is_lost
        busy.end()
        await until(lambda: engine.peers[0].is_lost)
        await until(lambda: pool.size == 0)

    scene(play, max_streams=1)


def test_what_comes_after_a_pool_is_retired() -> None:
    """A request that began under the old rules is still served, and its connection is closed afterwards."""

    async def play(pool: Http2Pool, engine: GrpcEngine) -> None:
        early = Caller(pool).ask()
        pool.retire()  # while it connects
        late = Caller(pool).ask()
        await until(lambda: early.stream and late.stream)
        early.end()
        late.end()
        await until(lambda: pool.size == 0)
        again = Caller(pool).ask()
        await until(lambda: again.stream is not None)
        again.end()
        await until(lambda: pool.size == 0)
        gone = Caller(pool).ask()
        pool.forget(gone)
        await until(lambda: pool.size == 0)
        await until(lambda: all(peer.is_lost for peer in engine.peers))

    scene(play)


def test_a_pool_that_keeps_nothing() -> None:
    """`idle_timeout: 0` closes a connection when its last stream has ended."""

    async def play(pool: Http2Pool, engine: GrpcEngine) -> None:
        caller = Caller(pool).ask()
        await until(lambda: caller.stream is not None)
        caller.end()
        await until(lambda: pool.size == 0)

    scene(play, idle_timeout=0.0)

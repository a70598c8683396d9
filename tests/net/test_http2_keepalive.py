"""PINGs on HTTP/2 connections to engines, and connections that end: by silence, by age, with their endpoint."""

from __future__ import annotations

import asyncio
import socket
import sys
from math import inf
from time import monotonic
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from gateway.config.engine_specs import ConnectionSpec, EndpointSpec, EngineSpec
from gateway.demo.triton import TritonProcess
from gateway.net.http1_client import Http1Pool
from gateway.net.http2_client import Http2Pool
from gateway.net.http2_keepalive import Keepalive, KeepaliveAction
from gateway.protocol.engine_load import Readiness
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.endpoint_client import UnaryReply, call_unary
from gateway.upstream.engine import Engine
from tests.dataplane.grpc.peers import UNARY, GrpcEngine
from tests.dataplane.stage import run, until
from tests.net import stage as rest
from tests.net.test_http2_client import Caller, scene, waits
from tests.support.slow_proxy import SlowProxy

ALIVE, PING, DEAD = KeepaliveAction.ALIVE, KeepaliveAction.PING, KeepaliveAction.DEAD
LIMITS = ConnectionSpec()  # a PING after 10 s of silence, 20 s to answer it


def checks(keepalive: Keepalive, seconds: range, *, answers: bool = True, **options: Any) -> list[int]:
    """Check at each second of a connection with calls that brings nothing but, where it `answers`, answers to PINGs;
    returns the seconds of PINGs."""
    read_at, pinged = float(seconds.start), []
    for now in seconds:
        action = keepalive.check(now, read_at, 0, **{"is_busy": True, **options})
        assert action is not DEAD
        if action is PING:
            pinged.append(now)
            read_at = now + 0.5 if answers else read_at
    return pinged


def test_pings_follow_silence() -> None:
    """A connection with calls that brings nothing for the interval gets a PING; an idle one gets none."""
    assert checks(Keepalive(LIMITS), range(20)) == [10]
    assert checks(Keepalive(LIMITS), range(20), is_busy=False) == []
    assert checks(Keepalive(LIMITS), range(25), factor=2) == [20]
    assert checks(Keepalive(ConnectionSpec(keepalive_interval=0)), range(100)) == []


def test_pings_without_data_are_few() -> None:
    """After two PINGs without data further ones follow at an interval that gRPC's servers permit; data ends that."""
    keepalive = Keepalive(LIMITS)
    assert checks(keepalive, range(1000)) == [10, 21, 351, 681]
    assert keepalive.check(1000, 1000, 1, is_busy=True) is ALIVE
    assert [keepalive.check(now, now - 10.5, 1, is_busy=True) for now in (1011, 1022, 1033)] == [PING, PING, ALIVE]
    unlimited = Keepalive(ConnectionSpec(max_pings_without_data=0))
    assert checks(unlimited, range(50)) == [10, 21, 32, 43]


def test_a_ping_that_crosses_data_counts() -> None:
    """Data that comes before the answer to a PING may have been sent before it: servers count the PING after it."""
    keepalive = Keepalive(LIMITS)
    assert keepalive.check(10, 0, 0, is_busy=True) is PING
    assert keepalive.check(11, 10.5, 1, is_busy=True) is ALIVE
    assert [keepalive.check(now, now - 10.5, 1, is_busy=True) for now in (21, 32)] == [PING, ALIVE]


def test_an_unanswered_ping() -> None:
    """A connection that brings nothing after a PING is dead once the timeout is over, with calls or without."""
    keepalive = Keepalive(LIMITS)
    assert keepalive.check(10, 0, 0, is_busy=True) is PING
    assert keepalive.check(29, 0, 0, is_busy=True) is ALIVE
    assert keepalive.check(30, 0, 0, is_busy=False) is DEAD


def test_a_connection_that_does_not_answer_is_closed() -> None:
    """The calls of a connection without an answer to its PING are reset, and later ones get another connection."""

    async def whole() -> None:
        engine = await GrpcEngine(waits).start()
        with SlowProxy(int(engine.address.rpartition(":")[2])) as proxy:
            pool = Http2Pool("127.0.0.1", proxy.port, LIMITS)
            callers = [Caller(pool).ask() for _ in range(2)]
            await until(lambda: len(engine.calls) == 2)
            proxy.fall_silent()
            now = monotonic()
            pool.close_stale(now + 11)
            assert callers[0].reset is None
            pool.close_stale(now + 32)
            assert [caller.reset and caller.reset[1] for caller in callers] == [
                "it has not answered a PING within 20 s"
            ] * 2
            late = Caller(pool).ask()
            await until(lambda: len(engine.calls) == 3)
            late.end()
            pool.retire()
        await engine.stop()

    run(whole())


def test_a_connection_that_answers_stays() -> None:
    """An engine that computes for long and answers PINGs keeps its connection."""

    async def play(pool: Http2Pool, engine: GrpcEngine) -> None:
        caller = Caller(pool).ask()
        await until(lambda: engine.calls)
        assert caller.connection is not None
        for _ in range(2):
            before = caller.connection.read_at
            pool.close_stale(monotonic() + 11)
            await until(lambda before=before: caller.connection.read_at > before)  # type: ignore[misc, union-attr]
        pool.close_stale(monotonic() + 40)
        assert caller.reset is None and pool.num_streams == 1

    scene(play)


def test_old_connections_end() -> None:
    """A connection beyond its age gets no new call; it closes when its last call ends."""

    async def play(pool: Http2Pool, engine: GrpcEngine) -> None:
        first = Caller(pool).ask()
        await until(lambda: engine.calls)
        assert first.connection is not None and 80 <= first.connection.retires_at - monotonic() <= 100
        pool.close_stale(monotonic() + 5)
        second = Caller(pool).ask()
        assert second.connection is first.connection
        pool.close_stale(monotonic() + 101)
        third = Caller(pool).ask()
        await until(lambda: len(engine.peers) == 2 and third.stream)
        first.end()
        assert not engine.peers[0].is_lost
        second.end()
        await until(lambda: engine.peers[0].is_lost)
        third.end()
        pool.close_stale(monotonic() + 101)  # idle, and too old
        assert pool.size == 0

    scene(play, max_age=100.0)


def test_old_rest_connections_end() -> None:
    """A connection beyond its age closes after the reply under way, an idle one at once."""

    async def whole() -> None:
        async with rest.engine(rest.Act.WAIT, rest.OK) as engine:
            pool = rest.pool_of(engine, max_age=100.0)
            busy, idle = rest.Caller().ask(pool), rest.Caller().ask(pool)
            await until(lambda: len(engine.heads) == 2)
            pool.close_stale(monotonic() + 101)
            engine.go_on.set()
            assert (await busy.over()).body == (await idle.over()).body == b"ok"
            await until(lambda: pool.size == 0)
            await (later := rest.Caller().ask(pool)).over()
            pool.close_stale(monotonic() + 10)
            assert pool.size == 1
            pool.close_stale(monotonic() + 101)
            await until(lambda: pool.size == 0)
            assert later.error is None and busy.error is None

    run(whole())


def test_connections_without_an_age() -> None:
    """`max_age: 0` keeps connections until they are idle for too long; `renew` ends these, too."""

    async def whole() -> None:
        async with rest.engine() as engine:
            pool = rest.pool_of(engine, max_age=0.0, idle_timeout=1e9)
            await (caller := rest.Caller().ask(pool)).over()
            assert caller.connection is not None and caller.connection.retires_at == inf
            pool.close_stale(monotonic() + 1e8)
            assert pool.size == 1
            pool.renew()
            await until(lambda: pool.size == 0)

    run(whole())


def test_an_endpoint_that_goes_down() -> None:
    """The connections of an endpoint that goes down close; one that stays down or is only not ready keeps its own."""

    async def whole() -> None:
        async with rest.engine() as server:
            url = f"http://127.0.0.1:{server.port}"
            it = Engine(EngineSpec("it", (EndpointSpec(url),)))
            pool = it.endpoints[0].pool
            assert pool is not None
            for before, after, num_left in (("ready", "unready", 1), ("unready", "down", 0), ("down", "down", 1)):
                it.set_health({("it", url): Readiness(before)}, {})
                await rest.Caller().ask(pool).over()
                it.set_health({("it", url): Readiness(after)}, {})
                await until(lambda num_left=num_left: pool.size == num_left)  # type: ignore[misc]
            it.close_idle_connections()

    run(whole())


@pytest.mark.skipif(sys.platform != "linux", reason="the names of the options differ")
def test_the_kernel_looks_after_connections() -> None:
    """TCP probes silent engines; a gRPC server that does not acknowledge what is sent is gone, a REST server may leave
    a request unread."""

    async def whole() -> None:
        async with rest.engine(rest.Act.WAIT) as engine:
            pools = [kind("127.0.0.1", engine.port, ConnectionSpec()) for kind in (Http1Pool, Http2Pool)]
            found = []
            for pool in pools:
                caller: Any = rest.Caller() if isinstance(pool, Http1Pool) else Caller(pool)
                pool.acquire(caller)
                await until(lambda caller=caller: caller.connection is not None)  # type: ignore[misc]
                its = caller.connection._transport.get_extra_info("socket")
                options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
                alive = its.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                found.append((alive, *[its.getsockopt(socket.IPPROTO_TCP, option) for option in options]))
                caller.connection._transport.abort()
            assert found == [(1, 10, 5, 4, 0), (1, 10, 5, 4, 30_000)]
            await asyncio.sleep(0)

    run(whole())


async def slow_call_of_triton(triton: TritonProcess, num_pings: int, **limits: Any) -> tuple[Endpoint, UnaryReply]:
    """A call that sends nothing for a second, while time seems to pass until so many PINGs were sent, or until no
    further one is due for five minutes."""
    address = triton.grpc_url.rpartition("/")[2]
    spec = EndpointSpec(f"grpc://{address}", address)
    endpoint = Endpoint(EngineSpec("it", (spec,), connections=ConnectionSpec(**limits)), spec, None)
    pool = endpoint.streams
    assert pool is not None
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="seconds", datatype="FP32", shape=[1])
    tensor.contents.fp32_contents.append(1.0)
    message = service_pb2.ModelInferRequest(model_name="sleeper", inputs=[tensor]).SerializeToString()
    call = asyncio.ensure_future(call_unary(endpoint, UNARY, message, timeout=120))
    await until(lambda: pool.num_streams == 1 and next(iter(pool._connections)).has_settings)
    connection, now = next(iter(pool._connections)), monotonic()
    while num_pings and now < monotonic() + 300 and not call.done():
        now += 11
        before, pinged_at = connection.read_at, connection.keepalive._pinged_at
        pool.close_stale(now)
        if connection.keepalive._pinged_at != pinged_at:
            num_pings -= 1
            await until(lambda before=before: connection.read_at > before or call.done())  # type: ignore[misc]
    try:
        return endpoint, await call
    finally:
        endpoint.retire()


@pytest.mark.triton
def test_triton_permits_the_pings(triton: TritonProcess, caplog: pytest.LogCaptureFixture) -> None:
    """Triton's own defaults permit the gateway's PINGs. Where PINGs do not stop it closes the connection, and the
    gateway halves their rate, as gRPC's clients do."""
    assert run_for(slow_call_of_triton(triton, 9))[1].is_good
    assert caplog.text == ""
    run_for(slow_call_of_triton(triton, 9, max_pings_without_data=0))
    assert "has closed a connection for its PINGs: from now on every 20 s" in caplog.text


def run_for(scene: Any) -> Any:
    """The result of a scene."""
    found: list[Any] = []

    async def whole() -> None:
        found.append(await scene)

    run(whole())
    return found[0]

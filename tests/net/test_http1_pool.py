"""The connections of one worker to one endpoint: reused, shared, limited."""

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme

from gateway.config.engine_specs import ConnectionSpec
from gateway.net.http1_client import Http1Pool
from gateway.protocol.errors import ErrorKind, GatewayError
from tests.dataplane.stage import run, until
from tests.net.stage import OK, Act, Caller, engine, pool_of
from tests.support.ports import free_port

WAIT = Act.WAIT


@pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])
def test_connections_are_used_again(plain: bool) -> None:
    """Sequential requests share one connection; the most recently used one is taken first, so that the others
    expire."""

    async def scene() -> None:
        async with engine() as it:
            pool = pool_of(it)
            for _ in range(10):
                assert (await Caller().ask(pool).over()).body == b"ok"
            assert (len(it.writers), len(it.heads)) == (1, 10)
            it.script = (WAIT, OK)
            one, two = [Caller().ask(pool) for _ in range(2)]
            await until(lambda: len(it.heads) == 12)
            assert repr(pool) == f"<Http1Pool 127.0.0.1:{it.port} 2 connections, 0 idle, 0 wait>"
            it.go_on.set()
            connections = [(await caller.over()).connection for caller in (one, two)]
            assert repr(pool) == f"<Http1Pool 127.0.0.1:{it.port} 2 connections, 2 idle, 0 wait>"
            newest = max(connections, key=lambda connection: connection.idle_since if connection else 0.0)
            assert pool.acquire(Caller()) is newest
            pool.close_idle()
            assert newest is not None
            newest.close()
            await until(lambda: it.num_open == 0)

    run(scene(), plain=plain)


@pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])
def test_the_line(plain: bool) -> None:
    """Above the limit callers wait in a queue, first come first served; a full queue fails at once."""

    async def scene() -> None:
        async with engine(WAIT, OK) as it:
            pool = pool_of(it, max_connections=2, max_pending=2)
            callers = [Caller().ask(pool) for _ in range(2)]
            await until(lambda: len(it.heads) == 2)
            callers += [Caller().ask(pool) for _ in range(2)]
            assert repr(pool) == f"<Http1Pool 127.0.0.1:{it.port} 2 connections, 0 idle, 2 wait>"
            with pytest.raises(GatewayError, match="all 2 connections are in use, 2 requests wait already") as full:
                Caller().ask(pool)
            assert full.value.kind is ErrorKind.OVERLOADED
            it.go_on.set()
            for caller in callers:
                assert (await caller.over()).body == b"ok"
            assert (len(it.writers), pool.size, pool.num_busy) == (2, 2, 0)
            pool.close_idle()

    run(scene(), plain=plain)


def test_a_client_has_its_share() -> None:
    """A client's requests beyond its share wait apart and take no place in the queue; a place that is free, by a reply,
    by a request that leaves or by a failure to connect, goes to its next request."""

    async def scene() -> None:
        async with engine(WAIT, OK) as it:
            pool, client = pool_of(it, max_connections=4, max_pending=1, max_client_share=0.5), object()
            callers = [Caller() for _ in range(5)]
            for caller in callers:
                assert pool.acquire_shared(client, caller, 0.0) is None
            await until(lambda: pool.num_busy == 2)
            pool.forget(callers[4])
            other = Caller().ask(pool)
            await until(lambda: pool.num_busy == 3)
            it.go_on.set()
            assert (await other.over()).body == b"ok"
            for caller in callers[:4]:
                assert (await caller.over()).body == b"ok"
            assert not pool._shares and not pool._shares.num_waiting
            pool.close_idle()
        limits = ConnectionSpec(max_connections=4, max_client_share=0.25)
        gone = Http1Pool("127.0.0.1", free_port(), limits)
        callers = [Caller() for _ in range(3)]
        for caller in callers:
            gone.acquire_shared(client, caller, 0.0)
        for caller in callers:
            await caller.over()
            gone.forget(caller)
        assert not gone._shares

    run(scene())


def test_whoever_leaves_the_line_is_not_called() -> None:
    """A caller that leaves the queue gets no connection; the next one does."""

    async def scene() -> None:
        async with engine(WAIT, OK) as it:
            pool = pool_of(it, max_connections=1)
            first, second, third = [Caller().ask(pool) for _ in range(3)]
            pool.forget(second)
            pool.forget(second)  # repeating it is harmless
            it.go_on.set()
            await first.over()
            await third.over()
            assert (second.connection, second.error) == (None, None)
            pool.close_idle()

    run(scene())


def test_an_attempt_that_nobody_waits_for_any_more() -> None:
    """A connection opened for a caller that left is kept for the next one."""

    async def scene() -> None:
        async with engine() as it:
            pool = pool_of(it)
            gone = Caller().ask(pool)
            pool.forget(gone)
            await until(lambda: "1 idle" in repr(pool))
            assert (await Caller().ask(pool).over()).body == b"ok"
            assert len(it.writers) == 1
            pool.close_idle()

    run(scene())


@pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])
def test_connect_refused(plain: bool) -> None:
    """A refused connection fails every caller, including those in the queue beyond the connection limit."""

    async def scene() -> None:
        port = free_port()
        pool = Http1Pool("127.0.0.1", port, ConnectionSpec(max_connections=2))
        callers = [Caller().ask(pool) for _ in range(7)]
        for caller in callers:
            await caller.over()
            assert caller.error is not None
            assert caller.error.kind is ErrorKind.UPSTREAM_CONNECT
            assert f"cannot connect to 127.0.0.1:{port}: " in caller.error.message
        assert repr(pool) == f"<Http1Pool 127.0.0.1:{port} 0 connections, 0 idle, 0 wait>"

    run(scene(), plain=plain)


@pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("host", ["no..name", "a" * 64], ids=["an empty label", "a long label"])
def test_a_name_that_nobody_can_look_up(host: str, plain: bool) -> None:
    """A host that cannot be resolved fails like an endpoint that refuses connections."""

    async def scene() -> None:
        pool = Http1Pool(host, 80, ConnectionSpec())
        caller = await Caller().ask(pool).over()
        assert caller.error is not None
        assert caller.error.kind is ErrorKind.UPSTREAM_CONNECT
        assert pool.size == 0

    run(scene(), plain=plain)


@pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])
def test_connect_timeout(plain: bool) -> None:
    """An endpoint that accepts the connection but never finishes the TLS handshake fails within the connect timeout."""

    async def scene() -> None:
        async with engine() as silent:
            tls = ssl.create_default_context()
            pool = Http1Pool("127.0.0.1", silent.port, ConnectionSpec(connect_timeout=0.05), tls, "localhost")
            caller = await Caller().ask(pool).over()
            assert caller.error is not None
            assert caller.error.kind is ErrorKind.UPSTREAM_CONNECT
            assert caller.error.message.endswith(": it did not answer within 0.05 s")
            assert pool.size == 0

    run(scene(), plain=plain)


@pytest.mark.parametrize(
    "trusted, name, message",
    [
        (True, "localhost", None),
        (False, "localhost", "the TLS handshake failed: CERTIFICATE_VERIFY_FAILED"),
        (True, "elsewhere", "the TLS handshake failed: CERTIFICATE_VERIFY_FAILED"),
    ],
)
def test_tls(tmp_path: Path, trusted: bool, name: str, message: str | None) -> None:
    """An https endpoint gets a request only if its certificate is trusted and matches its name."""
    authority = trustme.CA()
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(serving)
    asking = ssl.create_default_context()
    if trusted:
        authority.configure_trust(asking)

    async def scene() -> None:
        async with engine(tls=serving) as it:
            pool = Http1Pool("127.0.0.1", it.port, ConnectionSpec(), asking, name)
            caller = await Caller().ask(pool).over()
            if message is None:
                assert caller.body == b"ok"
            else:
                assert caller.error is not None
                assert message in caller.error.message
            pool.close_idle()
            await until(lambda: pool.size == 0)

    run(scene())


@pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])
def test_an_engine_closes_idle_connections(plain: bool) -> None:
    """A connection that the engine has closed is not reused: the next request opens a new one."""

    async def scene() -> None:
        async with engine() as it:
            pool = pool_of(it)
            await Caller().ask(pool).over()
            it.writers[0].close()
            await until(lambda: pool.size == 0)
            assert (await Caller().ask(pool).over()).body == b"ok"
            assert len(it.writers) == 2
            pool.close_idle()

    run(scene(), plain=plain)


def test_a_connection_about_to_close_is_not_handed_out() -> None:
    """A closing connection takes no request; if it occupies the only slot, the caller waits."""

    async def scene() -> None:
        async with engine() as it:
            pool = pool_of(it, max_connections=1)
            first = await Caller().ask(pool).over()
            assert first.connection is not None
            first.connection.close()
            second = Caller().ask(pool)
            assert second.connection is None
            assert (await second.over()).body == b"ok"
            assert len(it.writers) == 2
            pool.close_idle()

    run(scene())


@pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])
def test_a_lost_connection_makes_room(plain: bool) -> None:
    """When a busy connection breaks, the next caller in the queue gets a new one."""

    async def scene() -> None:
        async with engine(WAIT, OK) as it:
            pool = pool_of(it, max_connections=1)
            first, second = [Caller().ask(pool) for _ in range(2)]
            await until(lambda: it.heads)
            it.writers[0].transport.abort()
            assert (await first.over()).error is not None
            it.go_on.set()
            assert (await second.over()).body == b"ok"
            pool.close_idle()

    run(scene(), plain=plain)


def test_idle_connections_grow_old() -> None:
    """A connection idle for longer than the limit is closed, one used since is kept."""

    async def scene() -> None:
        async with engine(WAIT, OK) as it:
            pool = pool_of(it, idle_timeout=55.0)
            old, new = [Caller().ask(pool) for _ in range(2)]
            await until(lambda: len(it.heads) == 2)
            it.go_on.set()
            await old.over()
            await new.over()
            assert old.connection is not None and new.connection is not None
            old.connection.idle_since, new.connection.idle_since = 1000.0, 1010.0
            pool.close_stale(1055.0)
            assert repr(pool).endswith("2 connections, 2 idle, 0 wait>")
            pool.close_stale(1056.0)
            await until(lambda: pool.size == 1)
            assert Caller().ask(pool).connection is new.connection
            pool.close_idle()

    run(scene())


def test_nothing_need_be_kept() -> None:
    """With `idle_timeout: 0` every connection is closed after its reply."""

    async def scene() -> None:
        async with engine() as it:
            pool = pool_of(it, idle_timeout=0.0)
            await Caller().ask(pool).over()
            await Caller().ask(pool).over()
            await until(lambda: pool.size == 0)
            assert len(it.writers) == 2

    run(scene())


def test_a_retired_pool() -> None:
    """When the rules no longer name an address its idle connections close, requests in flight end, and nothing is
    kept."""

    async def scene() -> None:
        async with engine(WAIT, OK) as it:
            pool = pool_of(it)
            first, second = [Caller().ask(pool) for _ in range(2)]
            await until(lambda: len(it.heads) == 2)
            it.go_on.set()
            await first.over()
            await second.over()
            it.go_on.clear()
            in_flight = Caller().ask(pool)
            pool.retire()
            await until(lambda: pool.size == 1)
            it.go_on.set()
            assert (await in_flight.over()).body == b"ok"
            await until(lambda: pool.size == 0)

    run(scene())


@pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])
def test_a_crowd(plain: bool) -> None:
    """300 callers at an engine that breaks every third connection: each one's request ends, and no slot is lost."""

    async def scene() -> None:
        async with engine() as it:
            pool = pool_of(it, max_connections=5)
            callers = [Caller().ask(pool) for _ in range(300)]
            while any(not caller.has_ended and caller.error is None for caller in callers):
                await asyncio.sleep(0)
                for writer in it.writers[::3]:
                    writer.transport.abort()
            assert sum(caller.has_ended for caller in callers) > 0
            assert sum(caller.error is not None for caller in callers) > 0
            assert pool.num_busy == 0
            pool.close_idle()
            await until(lambda: pool.size == 0)

    run(scene(), plain=plain)

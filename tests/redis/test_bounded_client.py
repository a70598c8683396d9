"""The bounded Redis client with a real redis-server that is killed, paused, slow, full, demoted or replaced."""

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trustme

from gateway.redis.address import read_address
from gateway.redis.bounded_client import BoundedRedis
from gateway.redis.command import Script, StoreError
from tests.support.redis_server import RedisServer, cluster, program, watched
from tests.support.slow_proxy import SlowProxy

ADD = Script("return redis.call('INCRBY', KEYS[1], ARGV[1])")


@pytest.fixture(scope="module", autouse=True)
def has_program() -> None:
    program()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as running:
        yield running


def on(
    url: str, scene: Callable[[BoundedRedis], Awaitable[None]], deadline: float = 120.0, timeout: float = 120.0
) -> None:
    """Run a scene with a store and close the store afterwards. A busy machine meets the default times."""

    async def play() -> None:
        store = BoundedRedis(read_address(url), deadline=deadline, timeout=timeout)
        try:
            await asyncio.wait_for(scene(store), 120)
        finally:
            await store.close()

    asyncio.run(play())


async def becomes(question: Callable[[], bool], timeout: float = 120.0) -> None:
    until = time.monotonic() + timeout
    while not question():
        assert time.monotonic() < until
        await asyncio.sleep(0.005)


async def is_left_alone(store: BoundedRedis) -> None:
    """Send commands until the store's breaker is open."""
    while store.is_available:
        with contextlib.suppress(StoreError):
            await store.call([("GET", "key")])


def test_answers_come_in_order(server: RedisServer) -> None:
    """Commands of one call run in order, including a script that Redis has not loaded; a script that Redis has dropped
    is sent again."""

    async def scene(store: BoundedRedis) -> None:
        assert await store.open(120)
        commands = [("SET", "a", "1"), ADD.command(["a"], [5]), ("GET", "a")]
        assert await store.call(commands) == [True, 6, b"6"]
        server.client.script_flush()
        assert await store.call([ADD.command(["a"], [1])]) == [7]
        assert (store.counts.calls, store.counts.failed, store.counts.late) == (2, 0, 0)

    on(server.url, scene)


def test_a_refused_command_is_no_failure(server: RedisServer) -> None:
    """A command on a key of the wrong type gets an error; the other commands of the call are answered, and the client
    stays available."""
    server.client.set("text", "1")

    async def scene(store: BoundedRedis) -> None:
        for _ in range(5):
            refused, answered = await store.call([("HGETALL", "text"), ("GET", "text")])
            assert "WRONGTYPE" in str(refused) and isinstance(refused, Exception)
            assert answered == b"1"
        assert store.is_available
        assert store.counts.refused == 5

    on(server.url, scene)


def test_a_full_redis_is_still_read(server: RedisServer) -> None:
    """When Redis is out of memory, writes are refused and reads work."""
    server.client.set("there", "1")
    server.client.config_set("maxmemory", 1)

    async def scene(store: BoundedRedis) -> None:
        for _ in range(5):
            refused, answered = await store.call([("SET", "more", "1"), ("GET", "there")])
            assert "OOM" in str(refused).upper() or "memory" in str(refused)
            assert answered == b"1"
        assert store.is_available

    on(server.url, scene)


def test_a_killed_redis_costs_next_to_nothing(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """After a few failures calls fail at once; when Redis is back it is used again. Each change logs one line."""
    caplog.set_level(logging.INFO)

    async def scene(store: BoundedRedis) -> None:
        await store.call([("SET", "key", "1")])
        returns: list[bool] = []
        store.on_return(lambda: returns.append(True))
        server.kill()
        await is_left_alone(store)
        for _ in range(1000):
            with pytest.raises(StoreError, match="left alone"):
                await store.call([("GET", "key")])
        assert store.counts.skipped == 1000
        server.start()
        await becomes(lambda: store.is_available)
        assert await store.call([("GET", "key")]) == [None]
        assert returns == [True]

    on(server.url, scene)
    report = [record.message.partition(":")[0] for record in caplog.records if record.name == "gateway.redis"]
    assert len(report) == 2, report


def test_a_paused_redis_keeps_nobody_longer_than_the_deadline(server: RedisServer) -> None:
    """While Redis is paused each caller waits at most for the deadline; when it resumes, the store does too, and every
    reply matches its request."""

    async def scene(store: BoundedRedis) -> None:
        await store.open(120)
        await store.call([("MSET", *(word for n in range(100) for word in (f"k{n}", n)))], timeout=120)
        server.pause()
        while store.is_available:
            with pytest.raises(StoreError):
                await store.call([("GET", "k1")])
        assert store.counts.late > 0  # each waited only for its deadline: Redis is paused until the next line
        server.resume()
        await becomes(lambda: store.is_available)
        answers = await asyncio.gather(*[store.call([("GET", f"k{n}")], timeout=120) for n in range(100)])
        assert answers == [[b"%d" % n] for n in range(100)]

    on(server.url, scene, deadline=0.05, timeout=0.3)


def test_a_patient_reader_outlives_an_outage(server: RedisServer) -> None:
    """A read whose timeout is longer than an outage gets its reply when Redis answers again, though calls fail at once
    meanwhile; one whose timeout is shorter fails, and so does a read that Redis refuses, at once."""

    async def scene(store: BoundedRedis) -> None:
        await store.open(120)
        await store.call([("SET", "k", 1)], timeout=120)
        with pytest.raises(StoreError, match="Redis refuses: WRONGTYPE"):
            await store.read(("LRANGE", "k", 0, -1), timeout=120)
        server.pause()
        patient = asyncio.create_task(store.read(("GET", "k"), timeout=120))
        await is_left_alone(store)
        with pytest.raises(StoreError):
            await store.read(("GET", "k"), timeout=0.1)
        assert not patient.done()
        server.resume()
        assert await patient == [b"1"]

    on(server.url, scene, deadline=0.05, timeout=0.3)


def test_a_call_waits_as_long_as_its_caller_says(server: RedisServer) -> None:
    """A call whose timeout is longer than that of replies gets its reply from a Redis that pauses longer than that."""

    async def scene(store: BoundedRedis) -> None:
        await store.open(120)
        server.pause()
        patient = asyncio.create_task(store.call([("SET", "k", 1), ("GET", "k")], timeout=120))
        for _ in range(2):
            with pytest.raises(StoreError):
                await store.call([("GET", "k")], timeout=0.1)
        assert not patient.done()
        server.resume()
        assert await patient == [True, b"1"]
        server.pause()
        with pytest.raises(StoreError):
            await store.call([("GET", "k")], timeout=0.3)
        server.resume()
        await becomes(lambda: store.is_available)
        assert await store.call([("GET", "k")], timeout=120) == [b"1"]

    on(server.url, scene, deadline=0.1, timeout=0.1)


def test_a_caller_who_leaves_disturbs_nobody(server: RedisServer) -> None:
    """Cancelled calls leave the connections consistent: other calls get their own replies, and nothing leaks."""

    async def scene(store: BoundedRedis) -> None:
        await store.call([("MSET", *(word for n in range(50) for word in (f"k{n}", n)))])
        for n in range(50):
            leaving = asyncio.create_task(store.call([("GET", f"k{n}")], timeout=120))
            await asyncio.sleep(0.0001 * (n % 5))
            leaving.cancel()
            assert await store.call([("GET", f"k{n}")], timeout=120) == [b"%d" % n]
        await becomes(lambda: "0 under way" in repr(store))
        assert store.is_available

    on(server.url, scene)


def test_a_busy_loop_is_no_late_redis(server: RedisServer) -> None:
    """A reply that is read late because this process is busy does not count as late."""

    async def scene(store: BoundedRedis) -> None:
        await store.open(120)
        for _ in range(3):
            asking = asyncio.create_task(store.call([("GET", "key")]))
            for _ in range(4):
                await asyncio.sleep(0)
            time.sleep(1.1)  # blocks the event loop
            assert await asking == [None]
        assert store.counts.late == 0

    on(server.url, scene, deadline=1.0)


def test_what_is_told_during_an_outage_is_bounded(server: RedisServer) -> None:
    """An outage uses bounded memory: the newest queued commands are kept, the others are counted as dropped."""

    async def scene() -> None:
        store = BoundedRedis(read_address(server.url), deadline=0.1, timeout=0.3, max_queued=100)
        server.kill()
        await store.open()
        for n in range(100_000):
            store.enqueue(("SET", f"k{n}", n))
        assert store.counts.dropped >= 99_900
        assert repr(store).partition(": ")[2].startswith("left alone, 100 queued")
        server.start()
        await becomes(lambda: store.is_available)
        await store.flush(timeout=120)
        assert server.client.dbsize() == 100
        assert server.client.get("k99999") == "99999"
        await store.close()

    asyncio.run(scene())


def test_what_is_told_is_written_in_order(server: RedisServer) -> None:
    """All queued commands are written in order."""

    async def scene(store: BoundedRedis) -> None:
        for n in range(2000):
            store.enqueue(("SET", f"k{n % 10}", n), ("INCR", "count"))
        await store.flush(timeout=120)

    on(server.url, scene)
    assert server.client.get("count") == "2000"
    assert [server.client.get(f"k{n}") for n in range(10)] == [str(1990 + n) for n in range(10)]


def test_a_server_that_was_demoted_is_left(server: RedisServer, tmp_path: Path) -> None:
    """A master that became a replica refuses writes, which counts as unavailable; when it is a master again it is
    used."""

    async def scene(store: BoundedRedis) -> None:
        await store.call([("SET", "key", "1")])
        server.client.replicaof("127.0.0.1", 1)
        while store.is_available:
            with pytest.raises(StoreError, match="replica"):
                await store.call([("SET", "key", "2")])
        server.client.replicaof("NO", "ONE")
        await becomes(lambda: store.is_available)
        assert await store.call([("SET", "key", "2")]) == [True]

    on(server.url, scene)


def test_a_redis_that_is_never_there(caplog: pytest.LogCaptureFixture) -> None:
    """Without Redis a store opens and closes at once and logs one line that Redis is unavailable."""

    async def scene(store: BoundedRedis) -> None:
        assert not await store.open()
        with pytest.raises(StoreError):
            await store.call([("GET", "key")])
        await asyncio.sleep(0)

    on("redis://me:secret@127.0.0.1:1/0", scene)
    (line,) = [record.message for record in caplog.records if record.name == "gateway.redis"]
    assert "127.0.0.1:1" in line and "secret" not in line


def test_a_user_of_his_own_over_tls(server: RedisServer, tmp_path: Path) -> None:
    """The server's certificate is verified and the URL's user logs in; a certificate of another authority is
    refused."""
    server.client.acl_setuser("gateway", enabled=True, passwords=["+p:s"], commands=["+@all"], keys=["*"])
    authority, stranger = trustme.CA(), trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(tls)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    stranger.cert_pem.write_to_path(str(tmp_path / "stranger.pem"))

    async def is_used(store: BoundedRedis) -> None:
        assert await store.open(5.0)
        assert await store.call([("ACL", "WHOAMI")], timeout=120) == [b"gateway"]

    async def is_refused(store: BoundedRedis) -> None:
        assert not await store.open(5.0)

    with SlowProxy(server.port, tls) as proxy:
        url = f"rediss://gateway:p%3As@localhost:{proxy.port}/0"
        on(f"{url}?ca={tmp_path / 'ca.pem'}", is_used, timeout=120)
        on(f"{url}?ca={tmp_path / 'stranger.pem'}", is_refused, timeout=120)


def test_a_wrong_password_is_told_and_not_shown(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """The log has the error of Redis, without the password."""

    async def scene(store: BoundedRedis) -> None:
        assert not await store.open()

    on(server.url.replace("//", "//somebody:secret@"), scene)
    (line,) = [record.message for record in caplog.records if record.name == "gateway.redis"]
    assert "invalid username-password" in line
    assert "secret" not in line


def test_a_replica_takes_over(tmp_path: Path) -> None:
    """When a master dies, the client uses the master that the Sentinels promote."""

    async def scene(store: BoundedRedis) -> None:
        assert await store.call([("SET", "key", "kept")], timeout=120) == [True]
        await becomes(lambda: replica.client.get("key") == "kept")
        master.kill()
        await is_left_alone(store)
        await becomes(lambda: store.is_available, timeout=120)
        assert await store.call([("GET", "key"), ("SET", "key", "new")], timeout=120) == [b"kept", True]
        assert replica.client.get("key") == "new"

    with watched(tmp_path) as (master, replica, sentinels):
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
        on(f"redis+sentinel://{hosts}/pointsman", scene)


def test_a_cluster_is_one_redis(tmp_path: Path) -> None:
    """Keys and scripts of one call may be on all nodes of a cluster, and a node that dies fails only calls with its own
    keys."""

    async def scene(store: BoundedRedis) -> None:
        assert await store.open(2.0)
        keys = [f"k{n}" for n in range(30)]
        assert await store.call([("SET", key, 1) for key in keys], timeout=120) == [True] * 30
        assert await store.call([ADD.command([key], [1]) for key in keys], timeout=120) == [2] * 30
        assert [server.client.dbsize() > 0 for server in servers] == [True] * 3
        servers[0].kill()
        with pytest.raises(StoreError):
            await store.call([("GET", key) for key in keys], timeout=120)

    with cluster(tmp_path) as servers:
        on(f"redis+cluster://127.0.0.1:{servers[1].port}", scene)

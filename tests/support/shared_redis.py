"""One Redis for the tests of a module, empty at the beginning of each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.redis.server_folder import EmbeddedError
from tests.support.redis_server import RedisServer

__all__ = ["redis_server", "shared_server"]


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RedisServer]:
    server = RedisServer()
    try:
        server.start()
    except EmbeddedError as error:
        pytest.skip(str(error))
    yield server
    server.close()


@pytest.fixture
def redis_server(shared_server: RedisServer) -> RedisServer:
    shared_server.client().flushall()
    return shared_server

"""A Redis for each test that wants one."""

from collections.abc import Iterator

import pytest

from tests.engines.state.redis_server import RedisServer


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server

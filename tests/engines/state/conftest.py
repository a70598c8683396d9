"""A Redis for each test that uses the fixture."""

from collections.abc import Iterator

import pytest

from tests.engines.state.redis_server import RedisServer


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server

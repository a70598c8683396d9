"""Engines that share a Redis, and one without Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.paged.base.options import EngineOptions
from engines.paged.engine import PagedEngine
from tests.engines.paged.scheduling.invariants import check_scheduler
from tests.engines.paged.support.tiny_models import tiny_model
from tests.engines.state.redis_server import RedisServer

MAX_CONTEXT = 512


@pytest.fixture(scope="session")
def llama() -> Path:
    return tiny_model("llama")


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


EngineOf = Callable[..., PagedEngine]


@pytest.fixture
def engine_of(llama: Path) -> Iterator[EngineOf]:
    """engine_of(server, **options): a running engine with one thread; with a server it stores its blocks there."""
    engines: list[PagedEngine] = []

    def make(server: RedisServer | None = None, *, folder: Path = llama, **options: Any) -> PagedEngine:
        settings = {"threads": 1, "max_context": MAX_CONTEXT, "max_sequences": 16, "dtype": "float32", **options}
        if server is not None:
            settings = {"kv_store": server.url, "kv_fetch": "always", "kv_deadline": 10.0, **settings}
        engine = PagedEngine.load(folder, EngineOptions(**settings))
        engine.start()
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.stop()
        assert engine.stats()["kv_cache_blocks_used"] == 0
        check_scheduler(engine._scheduler)

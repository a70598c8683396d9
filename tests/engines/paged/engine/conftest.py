"""Engines with tiny models, one for each set of options in a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.paged.base.options import EngineOptions
from engines.paged.engine import PagedEngine
from tests.engines.paged.support.tiny_models import tiny_model

MAX_CONTEXT = 192


@pytest.fixture(scope="session")
def llama() -> Path:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def engine_of() -> Iterator[Callable[..., PagedEngine]]:
    """engine_of(folder, **options): a running engine with one thread."""
    engines: list[PagedEngine] = []

    def make(folder: Path, **options: Any) -> PagedEngine:
        settings = {"threads": 1, "max_context": MAX_CONTEXT, "max_sequences": 16, "dtype": "float32", **options}
        engine = PagedEngine.load(folder, EngineOptions(**settings))
        engine.start()
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.stop()
        assert engine.stats()["kv_cache_blocks_used"] == 0

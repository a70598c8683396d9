"""Fixtures with language-model engines, and rules that put a gateway before them.

A `conftest.py` imports what its tests use: `from tests.support.llm import canned, canned_v2, real_llms  # noqa: F401`.
The gateway itself is the fixture `start_gateway` of tests/conftest.py, which takes the rules as YAML:

    gateway = start_gateway(rules_for(canned.http_url, engine={"dialects": ["chat"]}, route={"resume": True}))
"""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.canned_llm import MODEL, CannedLLM
from tests.support.canned_llm.v2 import ENSEMBLE, VLLM
from tests.support.real_llm import PACKAGES, RealLLM, why_missing
from tests.support.tiny_llm import NAME

__all__ = [
    "ENSEMBLE",
    "MODEL",
    "NAME",
    "VLLM",
    "canned",
    "canned_v2",
    "get_real_llm",
    "real_llms",
    "rules_for",
    "rules_of",
    "start_canned",
]


@pytest.fixture(scope="session")
def canned_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CannedLLM]:
    with CannedLLM.start(tmp_path_factory.mktemp("canned")).running() as engine:
        yield engine


@pytest.fixture(scope="session")
def canned_v2_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CannedLLM]:
    with CannedLLM.start(tmp_path_factory.mktemp("canned-v2"), v2=True).running() as engine:
        yield engine


@pytest.fixture
def canned(canned_process: CannedLLM) -> CannedLLM:
    """The shared canned engine, without received requests and faults."""
    canned_process.forget()
    return canned_process


@pytest.fixture
def canned_v2(canned_v2_process: CannedLLM) -> CannedLLM:
    """The same with Triton's protocol: models VLLM and ENSEMBLE."""
    canned_v2_process.forget()
    return canned_v2_process


@pytest.fixture
def start_canned(tmp_path: Path) -> Iterator[Callable[..., CannedLLM]]:
    """A function that starts a canned engine for one test: `start_canned(v2=False, extra_args=())`."""
    directories = (tmp_path / f"canned-{number}" for number in itertools.count())
    with contextlib.ExitStack() as stops:

        def start(**options: Any) -> CannedLLM:
            return stops.enter_context(CannedLLM.start(next(directories), **options).running())

        yield start


@pytest.fixture(scope="session")
def real_llms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RealLLM]]:
    """All real engines that can run here, started in parallel; `get_real_llm` returns one of them."""
    started = {
        engine: RealLLM.start(engine, tmp_path_factory.mktemp(engine))
        for engine in PACKAGES
        if why_missing(engine) is None
    }
    yield started
    for process in started.values():
        process.stop()


def get_real_llm(engine: str, started: Mapping[str, RealLLM]) -> RealLLM:
    """One of the real engines, once it answers; the test is skipped where it cannot run."""
    if engine not in started:
        pytest.skip(f"{engine}: {why_missing(engine)}")
    process = started[engine]
    return process if process.ready else process.wait_ready()


def rules_for(
    *urls: str,
    engine: Mapping[str, Any] | None = None,
    route: Mapping[str, Any] | None = None,
    protocol: str = "openai",
) -> str:
    """Rules that send everything to one engine at these URLs; `engine` and `route` are further keys of it and of the
    route."""
    endpoints = [{"url": url} for url in urls]
    return rules_of(
        {"engine": {"protocol": protocol, "endpoints": endpoints, **(engine or {})}},
        [{"name": "everything", "engine": "engine", **(route or {})}],
    )


def rules_of(engines: Mapping[str, Mapping[str, Any]], routes: Sequence[Mapping[str, Any]], **more: Any) -> str:
    """Rules in a file's format: JSON is YAML. A busy engine may answer probes late."""
    patient = {name: {"health": {"timeout": "60s"}, **engine} for name, engine in engines.items()}
    return json.dumps({"version": 1, "engines": patient, "routes": routes, **more}, indent=2)

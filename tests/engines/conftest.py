"""Fixtures of the engine host: a host on the tests' simple models, and pairs of a Triton and a host for comparison."""

import os
from collections.abc import Iterator

import pytest

from gateway.demo.triton import TritonProcess
from tests.engines.conformance.asking import Server
from tests.engines.conformance.pair import (
    EXPLICIT,
    FORWARDED,
    REPOSITORIES,
    SIMPLE_MODELS,
    Pair,
    start_host,
    start_triton,
)
from tests.support.host import HostProcess

# CONFORMANCE_OF=triton compares Triton with another Triton: calls that differ then say nothing about the host.
PEER = os.environ.get("CONFORMANCE_OF", "host")


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess | TritonProcess]:
    """A host of tests/models, as the fixture `triton` is a Triton of them."""
    flags = ["--model-control-mode=explicit", "--load-model=*", *FORWARDED]
    if PEER == "triton":
        with start_triton([SIMPLE_MODELS], tmp_path_factory.mktemp("peer") / "triton.log", flags) as peer:
            yield peer.wait_ready()
        return
    server = start_host([SIMPLE_MODELS], tmp_path_factory.mktemp("host"), flags)
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="session")
def simple(triton: TritonProcess, host: Server) -> Pair:
    """Both, with all of tests/models loaded."""
    return Pair(triton, host)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A Triton and a host of all the models for these tests, none of which is loaded until a test needs it."""
    with start_triton(REPOSITORIES, tmp_path_factory.mktemp("triton") / "triton.log", EXPLICIT) as triton:
        if PEER == "triton":
            with start_triton(REPOSITORIES, tmp_path_factory.mktemp("peer") / "triton.log", EXPLICIT) as peer:
                yield Pair(triton.wait_ready(), peer.wait_ready())
            return
        server = start_host(REPOSITORIES, tmp_path_factory.mktemp("host"), EXPLICIT)
        yield Pair(triton.wait_ready(), server.wait_ready())
        server.stop(timeout_seconds=120.0)  # it unloads some sixty models

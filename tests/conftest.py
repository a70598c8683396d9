"""Fixtures with real processes: one Triton and one gateway before it for the whole run, gateways on demand, a
TorchServe and an MLServer."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from gateway.demo.triton import TritonProcess, why_unavailable
from gateway.wire.http1 import head
from tests.support.mlserver import MLServer
from tests.support.outsiders import NotHereError
from tests.support.servers import GatewayProcess
from tests.support.torchserve import TorchServe

# A busy machine makes an example slow, which says nothing about the code.
hypothesis.settings.register_profile("busy", deadline=None)
hypothesis.settings.load_profile("busy")

TEST_MODELS = Path(__file__).parent / "models"

# Request headers that a model gets as parameters, so that a test can check that they arrived.
FORWARDED_HEADERS = "x-forward-.*"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need what is not here, with the reason."""
    if not str(head.__file__).endswith(".py"):
        for item in items:
            if item.get_closest_marker("pure_python"):
                item.add_marker(pytest.mark.skip(reason="the data plane is compiled"))
    reason = why_unavailable()
    if reason is None:
        return
    for item in items:
        if item.get_closest_marker("triton"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """One real Triton with all of tests/models, shared by the run; a test that changes its state must restore it."""
    with TritonProcess.start(
        TEST_MODELS,
        extra_args=[
            "--model-control-mode=explicit",
            "--load-model=*",
            f"--http-header-forward-pattern={FORWARDED_HEADERS}",
            f"--grpc-header-forward-pattern={FORWARDED_HEADERS}",
        ],
        log_path=tmp_path_factory.mktemp("triton") / "triton.log",
    ) as server:
        yield server.wait_ready()


@pytest.fixture(scope="session")
def gateway(triton: TritonProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One gateway of two workers that sends everything to the shared Triton."""
    options = {"workers": 2, "extra_args": ["--allow-control", "all"]}
    server = GatewayProcess.start(everything_to(triton), tmp_path_factory.mktemp("gateway"), **options)
    yield server.wait_ready()
    server.stop()


@pytest.fixture
def start_gateway(tmp_path: Path) -> Iterator[Callable[..., GatewayProcess]]:
    """A function that starts a gateway with the given rules; each must stop cleanly after the test."""
    directories = (tmp_path / f"gateway-{number}" for number in itertools.count())
    with contextlib.ExitStack() as stops:

        def start(rules: str, **options: Any) -> GatewayProcess:
            server = GatewayProcess.start(rules, next(directories), **options)
            stops.callback(server.stop)
            return server.wait_ready()

        yield start


@pytest.fixture(scope="module")
def use_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], GatewayProcess]]:
    """A function that puts rules in force at the one gateway of a module, which starts with the first of them. A test
    whose subject is a start, a stop or an option starts one of its own."""
    started: list[GatewayProcess] = []

    def use(rules: str) -> GatewayProcess:
        if started:
            started[0].use(rules)
        else:
            started.append(GatewayProcess.start(rules, tmp_path_factory.mktemp("gateway")))
            started[0].wait_ready()
        return started[0]

    yield use
    for gateway in started:
        gateway.stop()


@pytest.fixture(scope="session")
def torchserve() -> Iterator[TorchServe]:
    """One real TorchServe, which requires a token, as TorchServe does by default."""
    try:
        server = TorchServe.start(token_auth=True)
    except NotHereError as error:
        pytest.skip(str(error))
    with server:
        yield server.wait_ready()


@pytest.fixture(scope="session")
def mlserver() -> Iterator[MLServer]:
    """One real MLServer."""
    try:
        server = MLServer.start()
    except NotHereError as error:
        pytest.skip(str(error))
    with server:
        yield server.wait_ready()


def everything_to(triton: TritonProcess) -> str:
    return f"""
version: 1
engines:
  triton:
    protocol: kserve
    endpoints:
      - {{url: "{triton.http_url}", grpc: "{triton.grpc_url}"}}
routes:
  - name: everything
    engine: triton
"""

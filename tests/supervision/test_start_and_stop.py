"""Start and stop of the control process, with signals at inconvenient moments."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import grpc
import httpx
import pytest

from gateway.cli.supervisor import Supervisor
from gateway.config.settings import Settings
from gateway.supervision.rulebook import Rulebook
from tests.supervision.stage import RULES, loaded, rule_file, scripted
from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

StartGateway = Callable[..., GatewayProcess]


@pytest.fixture
def kept_signals() -> Iterator[None]:
    """Signals without a handler fail the test instead of ending the run."""
    numbers = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda number, frame: pytest.fail("taken by nobody")) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def stopped_while_starting(folder: Path, signals: Sequence[signal.Signals], ready_file: Path | None = None) -> int:
    """The exit status of a gateway that gets these signals while its worker, which never serves, starts."""
    file, notes = rule_file(folder), folder / "notes"
    settings = Settings(http_port=0, admin_port=0, drain_timeout=5.0, redis="off", data_dir=folder / "state")

    async def scene() -> int:
        supervisor = Supervisor(
            settings, Rulebook([file]), ready_file=ready_file, worker_command=scripted("slow", notes)
        )
        running = asyncio.create_task(supervisor.run(loaded(file)))
        while "start" not in notes.read_text():
            assert not running.done(), running
            await asyncio.sleep(0.01)
        assert ready_file is None or not ready_file.exists()
        for number in signals:
            os.kill(os.getpid(), number)
        return await asyncio.wait_for(running, 120)

    return asyncio.run(scene())


def test_signals_are_taken_while_workers_start(tmp_path: Path, kept_signals: None) -> None:
    """SIGHUP does not end a gateway that still starts, and SIGTERM does not wait for a worker that never serves."""
    assert stopped_while_starting(tmp_path, [signal.SIGHUP, signal.SIGTERM]) == 0
    report = (tmp_path / "notes").read_text().splitlines()
    assert (report[0], report[-1]) == ("start 1", "drain")


def test_a_ready_file_of_a_crash_is_not_believed(tmp_path: Path, kept_signals: None) -> None:
    """The ready file of an earlier run is deleted before the gateway serves."""
    ready_file = tmp_path / "ready.json"
    ready_file.write_text('{"http": 1, "grpc": null, "admin": 1, "pid": 1}')
    assert stopped_while_starting(tmp_path, [signal.SIGTERM], ready_file) == 0
    assert not ready_file.exists()


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    """SIGTERM waits for requests in flight; a second one does not, and the exit code is 1."""
    with CannedEngine("one") as engine:
        rules = RULES.replace("http://127.0.0.1:1", engine.url)
        gateway = GatewayProcess.start(rules, tmp_path).wait_ready()

        def ask() -> None:
            with suppress(httpx.HTTPError):  # the connection is closed, as intended
                url = gateway.http_url + "/v2/models/m/infer"
                plain_http.post(url, content=b"{}", headers={"x-sleep": "20"})

        asking = threading.Thread(target=ask, daemon=True)
        try:
            asking.start()
            eventually(lambda: re.search(r"^pointsman_in_flight\{.*\} 1\.0$", metrics(gateway), re.MULTILINE))
            gateway.process.send_signal(signal.SIGTERM)
            eventually(lambda: "stopping: requests in flight may end within 30 s" in gateway.log())
            gateway.process.send_signal(signal.SIGTERM)
            assert gateway.process.wait(120) == 1
            asking.join(120)
            assert not asking.is_alive()
        finally:
            gateway.kill()
    assert "stopping at once" in gateway.log()
    assert "Traceback" not in gateway.log()


def test_workers_are_unready_before_they_drain(tmp_path: Path, kept_signals: None) -> None:
    """With --drain-delay workers hear that readiness says no, and drain when the delay is over."""
    file, notes, ready_file = rule_file(tmp_path), tmp_path / "notes", tmp_path / "ready.json"
    settings = Settings(http_port=0, admin_port=0, drain_delay=0.01, redis="off", data_dir=tmp_path / "state")

    async def scene() -> int:
        supervisor = Supervisor(
            settings, Rulebook([file]), ready_file=ready_file, worker_command=scripted("good", notes)
        )
        running = asyncio.create_task(supervisor.run(loaded(file)))
        while not ready_file.exists():
            assert not running.done(), running
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        return await asyncio.wait_for(running, 60)

    assert asyncio.run(scene()) == 0
    assert [line for line in notes.read_text().splitlines() if line in ("unready", "drain")] == ["unready", "drain"]


def test_a_gateway_that_drains_soon_serves_on(tmp_path: Path) -> None:
    """After SIGTERM and within --drain-delay readiness says no by REST, gRPC and the admin port, new connections are
    taken and answered, and a second SIGTERM ends the gateway at once."""
    with CannedEngine("one") as engine:
        rules = RULES.replace("http://127.0.0.1:1", engine.url).replace(", health: {interval: 0}", "")
        gateway = GatewayProcess.start(rules, tmp_path, extra_args=["--drain-delay", "10m"]).wait_ready()

        def readiness() -> tuple[int, bytes, int]:
            with grpc.insecure_channel(gateway.grpc_url) as channel:
                serving = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=20)
            rest = plain_http.get(gateway.http_url + "/v2/health/ready").status_code
            return rest, serving, plain_http.get(gateway.page_url + "/readyz").status_code

        try:
            assert readiness() == (200, b"\x08\x01", 200)
            gateway.process.send_signal(signal.SIGTERM)
            eventually(lambda: readiness() == (400, b"\x08\x02", 503))
            reply = plain_http.post(gateway.http_url + "/v2/models/m/infer", content=b"{}")
            assert (reply.status_code, reply.json()["served_by"]) == (200, "one")
            assert plain_http.get(gateway.http_url + "/v2/health/live").status_code == 200
            assert plain_http.get(gateway.page_url + "/healthz").status_code == 200
            gateway.process.send_signal(signal.SIGTERM)
            assert gateway.process.wait(30) == 1
        finally:
            gateway.kill()
    assert "stopping in 600 s: readiness says no from now on" in gateway.log()


def metrics(gateway: GatewayProcess) -> str:
    return plain_http.get(gateway.admin_url + "/metrics").text


def test_the_ready_file_is_there_while_requests_are_served(tmp_path: Path) -> None:
    """The ready file has ports and pid while inference and admin API answer, and is gone after the stop."""
    gateway = GatewayProcess.start(RULES, tmp_path).wait_ready()
    reply = json.loads(gateway.ready_path.read_text())
    assert reply == {
        "http": gateway.http_port,
        "grpc": gateway.grpc_port,
        "admin": gateway.admin_port,
        "pid": gateway.process.pid,
    }
    assert plain_http.get(gateway.http_url + "/v2/health/live").status_code == 200
    assert plain_http.get(gateway.admin_url + "/healthz").status_code == 200
    gateway.stop()
    assert not gateway.ready_path.exists()


def test_one_port_cannot_serve_both(tmp_path: Path) -> None:
    """The same number for inference and admin is refused in one line that names both options."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "gateway", "serve", "--rules", str(rule_file(tmp_path))]
    command += ["--http-port", port, "--admin-port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr == f"pointsman: port {port} cannot serve both: choose another with --admin-port\n"


def test_an_address_of_version_6_is_printed_as_a_url(start_gateway: StartGateway) -> None:
    """The printed URLs are valid, with brackets around an IPv6 address."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    gateway = start_gateway(RULES, extra_args=["--host", "::1", "--admin-host", "::1"])
    assert f"inference  http://[::1]:{gateway.http_port}/v2" in gateway.log()
    assert f"metrics    http://[::1]:{gateway.admin_port}/metrics" in gateway.log()
    assert plain_http.get(f"http://[::1]:{gateway.http_port}/v2/health/live").status_code == 200

"""The real gateway from the operator's side: starts, reloads, crashes and stops."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

StartGateway = Callable[..., GatewayProcess]
INFER = "/v2/models/m/infer"


@pytest.fixture
def engine() -> Iterator[CannedEngine]:
    with CannedEngine("one") as running:
        yield running


@pytest.fixture
def other_engine() -> Iterator[CannedEngine]:
    with CannedEngine("other") as running:
        yield running


def rules(engine: CannedEngine) -> str:
    return f"version: 1\nengines: {{it: {{endpoints: ['{engine.url}']}}}}\nroutes: [{{name: all, engine: it}}]\n"


def ask(gateway: GatewayProcess, **headers: str) -> str:
    """The engine that answers an inference, over a new connection."""
    answer = plain_http.post(gateway.http_url + INFER, content=b"{}", headers=headers, timeout=120)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["served_by"])


def metric(gateway: GatewayProcess, line_start: str) -> float:
    """The sum of the /metrics lines that start with this text."""
    lines = plain_http.get(gateway.admin_url + "/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(line_start))


def workers_of(gateway: GatewayProcess) -> list[psutil.Process]:
    children = psutil.Process(gateway.process.pid).children()
    return [child for child in children if "gateway.worker" in child.cmdline()]


def test_counts_of_all_workers_are_summed(start_gateway: StartGateway, engine: CannedEngine) -> None:
    """Two workers share the port, and /metrics reports the sum of both."""
    gateway = start_gateway(rules(engine), workers=2)
    assert len(workers_of(gateway)) == 2
    for _ in range(40):
        assert ask(gateway) == "one"
    assert metric(gateway, "pointsman_requests_total") == 40
    assert metric(gateway, "pointsman_request_seconds_count") == 40
    assert metric(gateway, "pointsman_in_flight") == 0
    assert metric(gateway, "pointsman_workers ") == 2
    assert metric(gateway, "pointsman_endpoint_healthy") == 1


def test_a_dead_worker_is_replaced(start_gateway: StartGateway, engine: CannedEngine) -> None:
    """A killed worker is replaced, and its counts are not lost."""
    gateway = start_gateway(rules(engine))
    for _ in range(5):
        ask(gateway)
    assert metric(gateway, "pointsman_requests_total") == 5  # the control process has this worker's counters now
    (victim,) = workers_of(gateway)
    victim.kill()
    eventually(lambda: metric(gateway, "pointsman_worker_restarts_total") == 1)
    eventually(lambda: metric(gateway, "pointsman_workers ") == 1)
    assert ask(gateway) == "one"
    assert [worker.pid for worker in workers_of(gateway)] != [victim.pid]
    assert metric(gateway, "pointsman_requests_total") == 6


def test_changed_rules_are_noticed(
    start_gateway: StartGateway, engine: CannedEngine, other_engine: CannedEngine
) -> None:
    """All workers use a changed rule file without a signal, and /rules reports its number."""
    gateway = start_gateway(rules(engine), workers=2)
    assert ask(gateway) == "one"
    gateway.rules_path.write_text(rules(other_engine))
    eventually(lambda: plain_http.get(gateway.admin_url + "/rules").json()["number"] == 2)
    eventually(lambda: {ask(gateway) for _ in range(10)} == {"other"})


def test_a_bad_rule_file_changes_nothing(start_gateway: StartGateway, engine: CannedEngine) -> None:
    """A mistake in the file leaves the old rules serving; the log and /rules name file, line and column. So does a pipe
    in its place, and what follows it is read."""
    gateway = start_gateway(rules(engine))
    gateway.rules_path.write_text("version: 1\nengines: {}\nroutes:\n  - {name: all, engin: it}\n")
    problems = eventually(lambda: plain_http.get(gateway.admin_url + "/rules").json()["problems"])
    assert any("rules.yaml:4:" in problem and "engine" in problem for problem in problems), problems
    assert ask(gateway) == "one"
    assert metric(gateway, "pointsman_rules_number ") == 1
    assert metric(gateway, 'pointsman_rules_reloads_total{result="refused"}') == 1
    assert "rules 1 stay in force" in gateway.log()
    gateway.rules_path.unlink()
    os.mkfifo(gateway.rules_path)
    eventually(
        lambda: "it is a pipe, not a file" in str(plain_http.get(gateway.admin_url + "/rules").json()["problems"])
    )
    assert ask(gateway) == "one"
    gateway.rules_path.unlink()
    gateway.rules_path.write_text(rules(engine))
    eventually(lambda: metric(gateway, 'pointsman_rules_reloads_total{result="ok"}') == 1)


def test_sighup_reads_the_rules(start_gateway: StartGateway, engine: CannedEngine) -> None:
    """SIGHUP reads the files even when they have not changed."""
    gateway = start_gateway(rules(engine))
    os.kill(gateway.process.pid, signal.SIGHUP)
    eventually(lambda: metric(gateway, 'pointsman_rules_reloads_total{result="ok"}') == 1)
    assert metric(gateway, "pointsman_rules_number ") == 1


def test_sigterm_lets_requests_end(start_gateway: StartGateway, engine: CannedEngine) -> None:
    """After SIGTERM a request in flight gets its whole answer, no new connection is taken, and the exit code is 0."""
    gateway = start_gateway(rules(engine))
    answers: list[str] = []
    metric(gateway, "pointsman_in_flight")  # the admin API loads what it needs at its first request
    asking = threading.Thread(target=lambda: answers.append(ask(gateway, **{"x-sleep": "6"})))
    asking.start()
    eventually(lambda: metric(gateway, "pointsman_in_flight") == 1)
    gateway.process.send_signal(signal.SIGTERM)

    def refuses() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", gateway.http_port)) != 0

    eventually(refuses)
    asking.join(120)
    assert answers == ["one"]
    assert gateway.process.wait(120) == 0


def test_workers_outlive_the_control_process(tmp_path_factory: pytest.TempPathFactory, engine: CannedEngine) -> None:
    """When the control process is killed, the worker continues to route with its last state until it gets a signal."""
    gateway = GatewayProcess.start(rules(engine), tmp_path_factory.mktemp("static")).wait_ready()
    (worker,) = workers_of(gateway)
    try:
        os.kill(gateway.process.pid, signal.SIGKILL)
        gateway.process.wait(120)
        eventually(lambda: "the control process is gone" in gateway.log())
        assert ask(gateway) == "one"
        worker.terminate()
        psutil.wait_procs([worker], timeout=120)
        assert not worker.is_running()
    finally:
        gateway.kill()
        if worker.is_running():
            worker.kill()


def test_a_port_in_use_is_told(start_gateway: StartGateway, engine: CannedEngine) -> None:
    """A second gateway on the same port is refused with one line that names the port and the option."""
    gateway = start_gateway(rules(engine))
    command = [sys.executable, "-m", "gateway", "serve", "--rules", str(gateway.rules_path)]
    command += ["--http-port", str(gateway.http_port), "--admin-port", "0"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert second.returncode == 1
    assert f"port {gateway.http_port} on 127.0.0.1 is in use" in second.stderr
    assert "--http-port" in second.stderr
    assert "Traceback" not in second.stderr


def test_bad_rules_at_the_start_are_told(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A gateway does not start with invalid rules: each mistake is reported with its place, and the exit code is 2."""
    file = tmp_path_factory.mktemp("rules") / "bad.yaml"
    file.write_text("version: 1\nengines: {it: {endpoint: ['http://x']}}\nroutes: [{name: all, engine: it}]\n")
    command = [sys.executable, "-m", "gateway", "serve", "--rules", str(file), "--http-port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert f"{file}:2:16: error: " in done.stdout
    assert "endpoints" in done.stdout


def test_the_access_log_tells_each_request(start_gateway: StartGateway, engine: CannedEngine) -> None:
    """With --access-log each request is one line, as text or as JSON; failures include their reason."""
    for log_format in ("text", "json"):
        gateway = start_gateway(rules(engine), extra_args=["--access-log", "--log-format", log_format])
        ask(gateway, **{"x-request-id": "first-one"})
        engine_line = eventually(
            lambda gateway=gateway: [line for line in gateway.log().splitlines() if "first-one" in line]
        )
        assert len(engine_line) == 1
        if log_format == "json":
            reply = json.loads(engine_line[0])
            assert (reply["status"], reply["route"], reply["engine"], reply["endpoint"]) == (
                200,
                "all",
                "it",
                engine.url,
            )
            assert (reply["method"], reply["target"], reply["reason"]) == ("POST", INFER, "")
        else:
            assert f'127.0.0.1 "POST {INFER}" 200 ' in engine_line[0]


def test_refusals_are_logged_too(start_gateway: StartGateway, engine: CannedEngine) -> None:
    """The access log includes requests that no engine answered: unknown paths, local replies, malformed heads. Values
    of a query, which may be keys, are left out."""
    gateway = start_gateway(rules(engine), extra_args=["--access-log"])
    assert plain_http.get(gateway.http_url + "/nothing").status_code == 404
    assert plain_http.get(gateway.http_url + "/v2/nothing?api_key=s3cret&b&s3cret=c").status_code == 404
    assert plain_http.get(gateway.http_url + "/v2/health/live").status_code == 200
    with socket.create_connection(("127.0.0.1", gateway.http_port)) as raw:
        raw.sendall(b"GET / HTTP/1.1\n\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400")
    lines = (
        '"GET /nothing" 404 not_found',
        '"GET /v2/nothing?api_key=***&b=***&s3cret=***" 404 not_found',
        '"GET /v2/health/live" 200 ',
        '"- -" 400 bad_request',
    )
    eventually(lambda: all(line in gateway.log() for line in lines))
    assert "=s3cret" not in gateway.log()


def test_rules_with_a_missing_certificate_are_refused(start_gateway: StartGateway, engine: CannedEngine) -> None:
    """New rules with a missing certificate file are refused like any mistake, and the workers keep the old rules."""
    gateway = start_gateway(rules(engine))
    bad = rules(engine).replace("endpoints", "tls: {ca: /nowhere.pem}, endpoints").replace("http://", "https://")
    gateway.rules_path.write_text(bad)
    (problem,) = eventually(lambda: plain_http.get(gateway.admin_url + "/rules").json()["problems"])
    assert "engine 'it': tls.ca (/nowhere.pem) cannot be read: No such file or directory" in problem
    assert ask(gateway) == "one"
    assert metric(gateway, "pointsman_rules_number ") == 1

"""Exposures, outcomes and results of a real gateway's experiment as files, and the report recomputed from them."""

from __future__ import annotations

import csv
import http.client
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.child import REPOSITORY
from tests.support.command_line import pointsman
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually
from tests.support.wire import send

SESSIONS, REQUESTS = 100, 4
REPORT = REPOSITORY / "scripts" / "experiment_report.py"


def told(gateway: GatewayProcess) -> dict[str, Any]:
    found: dict[str, Any] = plain_http.get(f"{gateway.admin_url}/experiments/x").json()
    return found


def is_counted(gateway: GatewayProcess) -> bool:
    found = told(gateway)
    (rate,) = [each for each in found["comparisons"].get("new", []) if each["metric"] == "error_rate"] or [{}]
    counts = [arm["counts"] for arm in found["arms"]]
    rated = sum(each.get("feedback", {}).get("rating", {}).get("values", 0) for each in counts)
    compared = rate.get("n_control", 0) + rate.get("n_arm", 0)
    return compared == SESSIONS * REQUESTS and rated == SESSIONS


def test_the_report_is_recomputed_from_what_is_exported(tmp_path: Path) -> None:
    """The same means, differences and ratios as the gateway's, from JSON lines, CSV and Parquet."""
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    with CannedEngine("old") as old, CannedEngine("new") as new:
        rules = f"""
version: 1
engines:
  old: {{endpoints: ['{old.url}']}}
  new: {{endpoints: ['{new.url}']}}
routes: [{{name: all, experiment: x}}]
experiments:
  x:
    arms: [{{name: old, engine: old, weight: 60}}, {{name: new, engine: new, weight: 40}}]
    guardrails: [{{metric: latency, max_ratio: 9}}, {{metric: "feedback:rating", max_decrease: 4}}]
"""
        gateway = GatewayProcess.start(rules, tmp_path, extra_args=["--experiment-tick", "500ms"]).wait_ready()
        try:
            eventually(lambda: told(gateway)["leader"])
            send_requests(gateway, range(SESSIONS - 20))
            new.turn(status=500)
            send_requests(gateway, range(SESSIONS - 20, SESSIONS))
            eventually(lambda: is_counted(gateway))
            exported = {name: tmp_path / f"outcomes.{name}" for name in ("jsonl", "csv", "parquet")}
            for name, file in exported.items():
                out = run(gateway, "x", "--format", name, "--output", str(file))
                assert "rows of outcomes are in" in out
            rows = [json.loads(line) for line in exported["jsonl"].read_text().splitlines()]
            assert sum(row["exposures"] for row in rows) == SESSIONS
            assert sum(row["requests"] for row in rows) == SESSIONS * REQUESTS
            assert {(row["arm"], row["share"]) for row in rows} == {("old", 0.6), ("new", 0.4)}
            latencies = [json.loads(line) for line in run(gateway, "x", "--table", "latencies").splitlines()]
            assert sum(row["count"] for row in latencies) == sum(row["latency_count"] for row in rows)
            results = run(gateway, "x", "--table", "results", "--format", "csv")
            expected = {row["metric"]: row for row in csv.DictReader(io.StringIO(results))}
            assert {"error_rate", "latency", "feedback:rating"} <= set(expected)
            with exported["csv"].open() as file:
                assert [{name: str(value) for name, value in row.items()} for row in rows] == list(csv.DictReader(file))
            recomputed = report(exported["parquet"])
            assert set(recomputed) == set(expected) - {"latency_p95"}  # quantiles are in another table
            for metric, row in recomputed.items():
                for name in ("control", "arm", "difference", "ratio"):
                    if row[name]:
                        assert float(row[name]) == pytest.approx(float(expected[metric][name]), rel=1e-4, abs=1e-9)
            assert float(recomputed["error_rate"]["difference"]) > 0
        finally:
            gateway.stop()


def test_an_unknown_experiment_is_refused(tmp_path: Path) -> None:
    """With the nearest right name; Parquet needs a file."""
    with CannedEngine("old") as old:
        rules = f"""
version: 1
engines: {{old: {{endpoints: ['{old.url}']}}}}
routes: [{{name: all, experiment: chats}}]
experiments: {{chats: {{arms: [{{name: a, engine: old, weight: 1}}, {{name: b, engine: old, weight: 1}}]}}}}
"""
        gateway = GatewayProcess.start(rules, tmp_path).wait_ready()
        try:
            assert "chats" in run(gateway, "chat", code=1)
            assert "--output FILE" in run(gateway, "chats", "--format", "parquet", code=1)
            assert run(gateway, "chats") == ""
        finally:
            gateway.stop()


def run(gateway: GatewayProcess, *arguments: str, code: int = 0) -> str:
    """What `pointsman experiments export` prints."""
    address = ("--admin", f"http://127.0.0.1:{gateway.admin_port}", "--key", gateway.admin_key)
    done = pointsman("experiments", "export", *arguments, *address)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stderr if code else done.stdout


def send_requests(gateway: GatewayProcess, sessions: range) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.http_port, timeout=120)
    for number in sessions:
        for turn in range(REQUESTS):
            headers = {"x-session-id": f"s{number}", "x-request-id": f"r{number}-{turn}"}
            connection.request("POST", "/v2/models/m/infer", b"{}", headers)
            connection.getresponse().read()
        rating = json.dumps({"request_id": f"r{number}-0", "value": number % 5}).encode()
        assert send(gateway.http_port, "POST", "/feedback", rating).status == 200
    connection.close()


def report(file: Path) -> dict[str, dict[str, str]]:
    command = [sys.executable, str(REPORT), str(file), "--control", "old", "--csv"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return {row["metric"]: row for row in csv.DictReader(io.StringIO(done.stdout))}

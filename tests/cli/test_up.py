"""The demo, as a new user runs it."""

import subprocess
import sys

import pytest

from tests.support.canned_engine import CannedEngine

UP = [sys.executable, "-m", "gateway", "up", "--once", "--http-port", "0", "--admin-port", "0"]


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

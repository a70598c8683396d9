"""The first workers of a gateway, which its control process forks."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.servers import GatewayProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are started")

_RULES = """
version: 1
engines: {e: {endpoints: ["http://127.0.0.1:9"]}}
routes: [{name: all, engine: e}]
"""
# Each child exits with the number that it gets; the last one is not taken.
_TAKEN = """
import asyncio, os
from gateway.control.forked_child import forked_children

def main(control):
    return control.recv(1)[0]

async def taken(children):
    for number in (7, 8):
        child = children.pop()
        child.watch()
        child.control.send(bytes([number]))
        print(await child.wait(), child.returncode)
        child.send_signal(9)  # it is gone
    return children

with forked_children(3, main, "some.module") as children:
    (left,) = asyncio.run(taken(children))
try:
    os.kill(left.pid, 0)
except ProcessLookupError:
    print("ended")
"""
_THREADED = """
import threading
from gateway.control.forked_child import can_fork, forked_children

print(can_fork())
threading.Thread(target=threading.Event().wait, daemon=True).start()
with forked_children(2, print, "some.module") as children:
    print(can_fork(), children)
"""


def printed(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert not done.stderr
    return done.stdout.splitlines()


def test_a_child_ends_with_its_status() -> None:
    """Its end is noticed with its status; a child that nobody takes is ended."""
    assert printed(_TAKEN) == ["7 7", "8 8", "ended"]


def test_a_process_with_threads_does_not_fork() -> None:
    """A lock that another thread holds would stay locked in the child: its workers are started instead."""
    assert printed(_THREADED) == ["True", "False []"]


def sockets_of(process: psutil.Process) -> set[str]:
    targets = [str(descriptor.readlink()) for descriptor in Path(f"/proc/{process.pid}/fd").iterdir()]
    return {target for target in targets if target.startswith("socket:")}


def test_forked_workers_share_nothing_that_started_ones_do_not(start_gateway: Callable[..., GatewayProcess]) -> None:
    """A forked worker has a session, no standard input, and no socket of the control process or of another worker:
    each end of a socket pair is one process' own, so that its end is noticed. `ps` shows it as a worker."""
    gateway = start_gateway(_RULES, workers=2)
    control = psutil.Process(gateway.process.pid)
    workers = [child for child in control.children() if "gateway.worker" in child.cmdline()]
    assert len(workers) == 2
    assert all("--control-fd" not in worker.cmdline() for worker in workers)  # these are forked
    seen: set[str] = set()
    for process in (control, *workers):
        assert not seen & sockets_of(process)
        seen |= sockets_of(process)
    for worker in workers:
        assert os.getsid(worker.pid) == worker.pid
        assert Path(f"/proc/{worker.pid}/fd/0").readlink() == Path(os.devnull)
        assert worker.environ() == control.environ()

"""A fleet in a test: agents that are small Python servers and do what their command line says, and the fleet itself as
a child process, started as a user starts it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.support.waiting import eventually

REPOSITORY = Path(__file__).parents[3]

# A server on --port that answers 200 to /v2/health/ready, and
#   --unready-while FILE  503 while the file is there;      --silent-while FILE  nothing while the file is there
#   --die-if FILE         ends with 3 while it is there;    --grab-if FILE       takes 80 MB once it is there
#   --child FILE          starts a child that outlives it, and writes its pid there;   --deaf  does not heed SIGTERM
AGENT = """
import argparse, http.server, os, signal, subprocess, sys, threading, time
from pathlib import Path

options = argparse.ArgumentParser()
options.add_argument("--port", type=int, required=True)
for name in ("unready-while", "silent-while", "die-if", "grab-if", "child"):
    options.add_argument("--" + name, type=Path)
options.add_argument("--deaf", action="store_true")
wish = options.parse_args()
if wish.die_if and wish.die_if.exists():
    print("no weights to be found")
    sys.exit(3)
if wish.child:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    wish.child.write_text(str(child.pid))
signal.signal(signal.SIGTERM, signal.SIG_IGN if wish.deaf else lambda *_: os._exit(0))
grabbed = []


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if wish.silent_while and wish.silent_while.exists():
            while wish.silent_while.exists():
                time.sleep(0.02)
            return
        if wish.grab_if and wish.grab_if.exists() and not grabbed:
            grabbed.append(bytearray(b"x" * 80_000_000))
        unready = wish.unready_while and wish.unready_while.exists()
        self.send_response(503 if unready else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", wish.port), Answers).serve_forever()
"""


def port_range(width: int = 40) -> str:
    """A range of ports that other tests of this machine hardly use."""
    first = random.randrange(20_000, 31_000)
    return f"{first}-{first + width}"


def write_agent(directory: Path) -> None:
    (directory / "agent.py").write_text(AGENT)


def command(*words: str) -> str:
    """The agent's command, as YAML."""
    return json.dumps([sys.executable, "-S", "agent.py", "--port", "{http_port}", *words])


class FleetProcess:
    """One `fleet` command: its file, its log, its end."""

    def __init__(self, directory: Path, text: str, *arguments: str) -> None:
        self.directory = directory
        self.file = directory / "fleet.yaml"
        self.log_path = directory / "fleet.log"
        self.ready_file = directory / "ready.json"
        write_agent(directory)
        self.write(text)
        script = (
            "import sys, typer; from engines.cli.fleet import fleet\n"
            "app = typer.Typer(pretty_exceptions_enable=False); app.command()(fleet)\n"
            "sys.exit(app(standalone_mode=False))"
        )
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", script, str(self.file), "--ready-file", str(self.ready_file), *arguments],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def write(self, text: str) -> None:
        self.file.write_text(textwrap.dedent(text))

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_ready(self) -> dict[str, Any]:
        """The content of the ready file, once it exists."""

        def ready() -> bool:
            assert self.process.poll() is None, self.log()
            return self.ready_file.exists()

        eventually(ready)
        reported: dict[str, Any] = json.loads(self.ready_file.read_text())
        return reported

    def log_has(self, text: str) -> Callable[[], bool]:
        return lambda: text in self.log()

    def agents(self) -> dict[str, Any]:
        """The state file's entry of each agent."""
        reported: dict[str, Any] = json.loads((self.directory / "fleet.run" / "state.json").read_text())["agents"]
        return reported

    def reload(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    def stop(self, exit_code: int = 0) -> None:
        """End it as an operator does."""
        if self.process.poll() is None:
            self.process.terminate()
        assert self.process.wait(120) == exit_code, self.log()
        assert "Traceback" not in self.log(), self.log()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the fleet and all processes that it has started."""
        pids = [self.process.pid]
        with contextlib.suppress(OSError, ValueError, KeyError):
            pids += [agent["pid"] for agent in self.agents().values() if agent["pid"]]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        self.process.wait()


def lives(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False

"""A program of this project as a child process, started as a user would: with a ready file, a log, and a checked
exit."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

REPOSITORY = Path(__file__).parents[2]

STOP_TIMEOUT_SECONDS = 120.0
POLL_INTERVAL_SECONDS = 0.02


class Child:
    """One program on free ports of 127.0.0.1, with its files in a directory. Its child processes share its process
    group and end with it."""

    what = "program"  # name in failure messages
    start_timeout_seconds = 240.0

    def __init__(self, process: subprocess.Popen[bytes], directory: Path):
        self.process = process
        self.log_path = directory / f"{self.what}.log"
        self.ready_path = directory / "ready.json"
        self.ready: dict[str, Any] = {}

    def __repr__(self) -> str:
        exit_code = self.process.poll()
        state = "running" if exit_code is None else f"ended with {exit_code}"
        return f"<{type(self).__name__} {self.process.pid}: {self.ready or 'not ready'}, {state}>"

    @classmethod
    def start_module(cls, arguments: Sequence[str], directory: Path) -> Self:
        """Run `python -m ARGUMENTS --ready-file ready.json`. `wait_ready` returns once it answers."""
        directory.mkdir(parents=True, exist_ok=True)
        paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
        with (directory / f"{cls.what}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments, "--ready-file", "ready.json"],
                cwd=directory,
                # Finds the modules of a checkout that is not installed; unbuffered, so that the log is complete.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(process, directory)

    def wait_ready(self, timeout_seconds: float | None = None) -> Self:
        """Return once its ready file exists; fail with its log if it ends or takes too long."""
        timeout_seconds = timeout_seconds or self.start_timeout_seconds
        deadline = time.monotonic() + timeout_seconds
        while not self.ready_path.exists():
            exit_code = self.process.poll()
            assert exit_code is None, f"the {self.what} ended with {exit_code} before it was ready:\n{self.log()}"
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the {self.what} is not ready after {timeout_seconds:g} s:\n{self.log()}")
            time.sleep(POLL_INTERVAL_SECONDS)
        self.ready = json.loads(self.ready_path.read_text())  # it appears complete: written elsewhere and renamed
        return self

    def port(self, name: str) -> int:
        assert self.ready, f"the {self.what} is not ready yet: call wait_ready"
        found: int = self.ready[name]
        return found

    @property
    def http_port(self) -> int:
        return self.port("http")

    @property
    def grpc_port(self) -> int:
        return self.port("grpc")

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """Host and port without a scheme, as gRPC clients take it."""
        return f"127.0.0.1:{self.grpc_port}"

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def stop(self, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
        """Send SIGTERM and check that the exit code is 0."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            exit_code = self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the {self.what} lives {timeout_seconds:g} s after SIGTERM:\n{self.log()}") from None
        self.kill()
        assert exit_code == 0, f"the {self.what} ended with {exit_code}:\n{self.log()}"

    def kill(self) -> None:
        """Kill it and its child processes at once, as in a crash."""
        with contextlib.suppress(ProcessLookupError):  # the whole group has ended already
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

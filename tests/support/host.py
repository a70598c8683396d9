"""The real engine host as a child process, as a user starts it: `host` with a model repository."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.support.servers import (
    POLL_INTERVAL_SECONDS,
    REPOSITORY,
    START_TIMEOUT_SECONDS,
    STOP_TIMEOUT_SECONDS,
)


class HostProcess:
    """One engine host on free ports of 127.0.0.1: its ports, its log, its end.

    Its instances share its process group, and end with it however it ends.
    """

    def __init__(self, process: subprocess.Popen[bytes], directory: Path):
        self.process = process
        self.log_path = directory / "host.log"
        self.ready_path = directory / "ready.json"
        self.http_port = self.grpc_port = self.metrics_port = 0

    def __repr__(self) -> str:
        exit_code = self.process.poll()
        state = "running" if exit_code is None else f"ended with {exit_code}"
        return f"<HostProcess {self.process.pid}: {self.http_url}, grpc {self.grpc_url}, {state}>"

    @classmethod
    def start(cls, repositories: Sequence[Path], directory: Path, *, extra_args: Sequence[str] = ()) -> Self:
        """Start a host of these model repositories, its files in `directory`. It answers once `wait_ready` returns."""
        directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "engines", "host"]
        command += [part for repository in repositories for part in ("--model-repository", str(repository))]
        command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--ready-file", "ready.json"]
        with (directory / "host.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *extra_args],
                cwd=directory,
                # Found as in the checkout even where it is not installed; unbuffered, so that the log is whole.
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(process, directory)

    def wait_ready(self, timeout_seconds: float = 2 * START_TIMEOUT_SECONDS) -> Self:
        """Return once the host has written its ready file; fail with its log if it ends or takes too long."""
        deadline = time.monotonic() + timeout_seconds
        while not self.ready_path.exists():
            exit_code = self.process.poll()
            assert exit_code is None, f"the host ended with {exit_code} before it was ready:\n{self.log()}"
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the host is not ready after {timeout_seconds:g} s:\n{self.log()}")
            time.sleep(POLL_INTERVAL_SECONDS)
        # The file appears whole: the host writes it aside and renames it.
        ready = json.loads(self.ready_path.read_text())
        self.http_port, self.grpc_port, self.metrics_port = ready["http"], ready["grpc"], ready["metrics"]
        return self

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """Host and port without a scheme, as gRPC clients take it."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.metrics_port}/metrics"

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def stop(self, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
        """Ask the host to end, as an operator does, and see that it ends well: exit code 0."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            exit_code = self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the host lives {timeout_seconds:g} s after SIGTERM:\n{self.log()}") from None
        self.kill()
        assert exit_code == 0, f"the host ended with {exit_code}:\n{self.log()}"

    def kill(self) -> None:
        """End the host and its instances at once, as a crash would."""
        with contextlib.suppress(ProcessLookupError):  # the whole group has ended already
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

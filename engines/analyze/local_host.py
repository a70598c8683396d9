"""An engine host of our own to analyze, for as long as it takes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from engines.analyze.models import AnalyzeError
from engines.core.processes import processes
from gateway.net.sockets import bind

_START_SECONDS = 60.0
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.05
_TAIL_LINES = 15

HOST_COMMAND = (sys.executable, "-m", "engines", "host")


@dataclass(frozen=True, slots=True)
class Hosted:
    """Where the host answers, and its process."""

    url: str
    pid: int


@contextlib.asynccontextmanager
async def hosting(repository: str, directory: Path, command: Sequence[str] = HOST_COMMAND) -> AsyncIterator[Hosted]:
    """A host over a model repository, on free ports, its log and ready file in `directory`. Raises: AnalyzeError where
    it does not start."""
    log, ready = directory / "host.log", directory / "host-ready.json"
    ready.unlink(missing_ok=True)
    arguments = [f"--model-repository={repository}", "--model-control-mode=explicit", f"--ready-file={ready}"]
    arguments += [f"--{port}-port=0" for port in ("http", "grpc", "metrics")]
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us: the model is put back first
        )
    try:
        yield Hosted(f"http://127.0.0.1:{await _port(process, ready, log)}", process.pid)
    finally:
        ready.unlink(missing_ok=True)
        await asyncio.shield(_stop(process))


async def _port(process: asyncio.subprocess.Process, ready: Path, log: Path) -> int:
    try:
        async with asyncio.timeout(_START_SECONDS):
            while not ready.exists():
                if process.returncode is not None:
                    raise AnalyzeError(f"the host ended with {process.returncode} before it was ready; {_tail(log)}")
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise AnalyzeError(f"the host is not ready after {_START_SECONDS:g} s; {_tail(log)}") from None
    return int(json.loads(ready.read_text())["http"])


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
    return "\n".join([f"its log {log} ends:", *lines])


_LISTENING = "0A"  # Linux, include/net/tcp_states.h: TCP_LISTEN


def server_pid(url: str) -> int | None:
    """The process that listens at a URL's port; None on another machine, or where it is another user's."""
    parts = urlsplit(url)
    try:
        bind(parts.hostname or "", 0).close()  # only an address of this machine can be bound
    except OSError:
        return None
    port = parts.port or 80
    return _listener_by_proc(port) if sys.platform == "linux" else _listener_by_lsof(port)


def _listener_by_proc(port: int) -> int | None:
    inodes = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    holders = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if any(str(link.readlink()) in inodes for link in (entry / "fd").iterdir()):
                    holders.append(int(entry.name))
    return _eldest(holders)


def _listener_by_lsof(port: int) -> int | None:
    try:
        listed = subprocess.run(
            ["lsof", "-nP", "-t", f"-iTCP:{port}", "-sTCP:LISTEN"], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return _eldest([int(line) for line in listed.stdout.split() if line.isdigit()])


def _eldest(holders: list[int]) -> int | None:
    """Of several processes that hold a socket, the one that the others have it from."""
    table = processes() if len(holders) > 1 else {}
    return next((pid for pid in holders if pid not in table or table[pid].parent not in holders), None)

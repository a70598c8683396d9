"""An agent's process and everything that it has started: they end together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

from engines.core.processes import Process, processes, tree

_KILL_SECONDS = 5.0
_POLL_SECONDS = 0.02


class Child:
    """A process in a session of its own; `ended` is done, with its exit status, when it is gone."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid
        self.ended = asyncio.get_running_loop().create_task(process.wait())
        own = processes().get(self.pid)
        self.started = "" if own is None else own.started
        self._family: dict[int, str] = {self.pid: self.started}

    def __repr__(self) -> str:
        return f"<Child {self.pid} of {len(self._family)}>"

    @classmethod
    async def start(
        cls, command: Sequence[str], environment: Mapping[str, str], directory: Path | None, log: Path
    ) -> Self:
        """Start it, its output appended to the log. Raises: OSError."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab", buffering=0) as output:
            output.write(f"--- {time.strftime('%F %T')} pointsman fleet starts: {' '.join(command)}\n".encode())
            process = await asyncio.create_subprocess_exec(
                *command,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
                cwd=directory,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the fleet, which stops its agents in order
            )
        return cls(process)

    def remember(self, members: Iterable[Process]) -> None:
        """Note who belongs to it: a descendant whose parents have ended can be told by this alone."""
        for process in members:
            self._family.setdefault(process.pid, process.started)

    async def end(self, patience_seconds: float) -> bool:
        """SIGTERM, and SIGKILL to whatever is left of the family; False where the process itself had to be killed."""
        table = processes()
        self.remember(tree(self.pid, table, [self.pid]))
        if not self.ended.done():
            self._signal(signal.SIGTERM)
            await asyncio.wait({self.ended}, timeout=patience_seconds)
        was_patient = self.ended.done()
        self.kill()
        await self.ended
        deadline = asyncio.get_running_loop().time() + _KILL_SECONDS
        while self._left() and asyncio.get_running_loop().time() < deadline:
            self.kill()
            await asyncio.sleep(_POLL_SECONDS)
        return was_patient

    def kill(self) -> None:
        """End all of the family at once."""
        for process in self._left():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)

    def _left(self) -> list[Process]:
        """The members that live, newly found descendants of theirs too."""
        table = processes()
        for pid, started in list(self._family.items()):
            if pid in table and table[pid].started == started:
                self.remember(tree(pid, table))
        self.remember(process for process in table.values() if process.group == self.pid)
        return [table[pid] for pid, started in self._family.items() if pid in table and table[pid].started == started]

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


def describe_end(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"it ended with exit code {status}"
    try:
        return f"it was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"it was ended by signal {-status}"


def end_orphan(pid: int, started: str, patience_seconds: float) -> bool:
    """End a process that an earlier fleet has left, with its descendants; whether there was one. Blocks."""

    def alive() -> list[Process]:
        table = processes()
        if pid in table and table[pid].started == started:
            return tree(pid, table, [pid])
        return []

    family = alive()
    if not family:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + patience_seconds
    while alive() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    table = processes()
    for process in family:
        if process.pid in table and table[process.pid].started == process.started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    return True

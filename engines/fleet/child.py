"""An agent's process with its descendants, which end together, and its power class.

A power class is a prefix of the command. On macOS `taskpolicy -b` marks the process as background: the scheduler keeps
it on the efficiency cores, and its disk and network access has low priority. On Linux the class is a nice value, for
background with the idle class of disk access. Children inherit it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from engines.core.processes import Process, processes, tree
from engines.fleet.spec import Power

_BACKGROUND_NICE = 10
_INTERACTIVE_NICE = -5


@dataclass(frozen=True, slots=True)
class PowerPlan:
    """A command's prefix, and a warning where the platform lacks part of the class."""

    prefix: tuple[str, ...]
    shortfall: str | None = None


def power_plan(power: Power, platform: str, has_program: Callable[[str], bool], may_raise_priority: bool) -> PowerPlan:
    """The plan of a class on a platform (`sys.platform`), with the installed programs."""
    if power is Power.DEFAULT:
        return PowerPlan(())
    if platform == "darwin":
        return _on_mac(power, has_program)
    if not has_program("nice"):
        return PowerPlan((), f"no power class {power.value}: the program 'nice' is missing")
    if power is Power.INTERACTIVE:
        if not may_raise_priority:
            return PowerPlan((), "power class interactive needs CAP_SYS_NICE (or root): it runs as default")
        return PowerPlan(("nice", "-n", str(_INTERACTIVE_NICE)))
    niced = ("nice", "-n", str(_BACKGROUND_NICE))
    if platform.startswith("linux") and has_program("ionice"):
        return PowerPlan((*niced, "ionice", "-c", "3"))
    return PowerPlan(niced)


def _on_mac(power: Power, has_program: Callable[[str], bool]) -> PowerPlan:
    if power is Power.INTERACTIVE:
        return PowerPlan(())  # the default there: all cores, performance cores first
    if not has_program("taskpolicy"):
        return PowerPlan(("nice", "-n", str(_BACKGROUND_NICE)), "no taskpolicy: background is a nice value only")
    return PowerPlan(("taskpolicy", "-b"))


_KILL_SECONDS = 5.0
_POLL_SECONDS = 0.02


class ProcessFamily:
    """A process with its descendants and its group. `started` is the process's start time, since pids are reused."""

    def __init__(self, pid: int, started: str) -> None:
        self.pid = pid
        self.started = started
        self._members: dict[int, str] = {pid: started}

    def add(self, members: Iterable[Process]) -> None:
        """Record descendants: later on, one whose parents have ended is only known by this."""
        for process in members:
            self._members.setdefault(process.pid, process.started)

    def living(self) -> list[Process]:
        """The living members, with new descendants."""
        table = processes()
        for pid, started in list(self._members.items()):
            if pid in table and table[pid].started == started:
                self.add(tree(pid, table))
        self.add(process for process in table.values() if process.group == self.pid)
        return [table[pid] for pid, started in self._members.items() if pid in table and table[pid].started == started]

    def kill(self) -> None:
        for process in self.living():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)


class Child:
    """A process in a session of its own; `ended` is its exit status, once it has one."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid
        self.ended = asyncio.get_running_loop().create_task(process.wait())
        own = processes().get(self.pid)
        self.family = ProcessFamily(self.pid, "" if own is None else own.started)

    @classmethod
    async def start(
        cls, command: Sequence[str], environment: Mapping[str, str], directory: Path | None, log: Path
    ) -> Self:
        """Start a command, with its output appended to the log. Raises: OSError."""
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

    async def end(self, timeout_seconds: float) -> bool:
        """Send SIGTERM, and SIGKILL to remaining members; False where the process itself had to be killed."""
        self.family.add(tree(self.pid, processes(), [self.pid]))
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            await asyncio.wait({self.ended}, timeout=timeout_seconds)
        ended_in_time = self.ended.done()
        self.family.kill()
        await self.ended
        deadline = asyncio.get_running_loop().time() + _KILL_SECONDS
        while self.family.living() and asyncio.get_running_loop().time() < deadline:
            self.family.kill()
            await asyncio.sleep(_POLL_SECONDS)
        return ended_in_time


def end_orphan(pid: int, started: str, timeout_seconds: float) -> bool:
    """End a process of an earlier fleet, with its descendants; returns whether it existed. Blocks."""
    orphan = processes().get(pid)
    if orphan is None or orphan.started != started:
        return False
    family = ProcessFamily(pid, started)
    family.living()  # records the descendants while their parents live
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_seconds
    while pid in {process.pid for process in family.living()} and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    family.kill()
    return True

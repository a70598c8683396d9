"""One agent: its process started, probed, stopped, and restarted after a pause, until `stop`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from engines.core.processes import Process, describe_exit, memory_of, tree
from engines.fleet.cgroups import Cgroups
from engines.fleet.child import Child, power_plan
from engines.fleet.health_state import AgentState, HealthState, Probe
from engines.fleet.spec import AgentSpec, fill
from engines.fleet.state_files import SavedState, tail
from gateway.net.backoff import Backoff


async def probe(url: str, timeout_seconds: float) -> Probe:
    """Probe readiness by HTTP: YES for a status 2xx, NOTHING without a status in time. A persistent connection would
    delay the stop of a server that waits for its clients, as Triton does."""
    try:
        async with asyncio.timeout(timeout_seconds):
            status = await _status_of(url)
    except (OSError, ValueError, asyncio.LimitOverrunError):  # a timeout is an OSError; ValueError: no HTTP, no URL
        return Probe.NOTHING
    return Probe.YES if 200 <= status < 300 else Probe.NO


async def _status_of(url: str) -> int:
    """Raises: OSError, ValueError."""
    parts = urlsplit(url)
    is_https = parts.scheme == "https"
    port = parts.port or (443 if is_https else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=True if is_https else None)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        head = f"GET {path} HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode("latin-1"))
        version, status = (await reader.readline()).split()[:2]
        if not version.startswith(b"HTTP/"):
            raise ValueError(f"{url} does not speak HTTP")
        return int(status)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


_log = logging.getLogger("pointsman.fleet")

_TAIL_LINES = 5
# Consecutive ends from which on the message calls it a loop.
_LOOP_AFTER = 3


@dataclass(frozen=True, slots=True)
class AgentContext:
    """The fleet's services to an agent."""

    directory: Path
    address: str
    is_free: Callable[[int], bool]
    reallot: Callable[[Agent], None]  # allot other ports: one is in use
    changed: Callable[[], None]  # its state, process or ports have changed
    cgroups: Cgroups | None = None


class Agent:
    """One agent of the fleet; `run` supervises it until `stop`."""

    def __init__(self, spec: AgentSpec, ports: Mapping[str, int], around: AgentContext) -> None:
        self.spec = spec
        self.ports = dict(ports)
        self.state = AgentState.STOPPED
        self.restarts = 0
        self.memory_bytes = 0
        self.since = 0.0  # loop time of the last change of state
        self.last_end: str | None = None
        self.was_killed = False
        self._around = around
        self._child: Child | None = None
        self._health: HealthState | None = None
        self._backoff = Backoff(spec.backoff.first, spec.backoff.longest, spec.backoff.well_after)
        self._stop_requested = asyncio.Event()
        self._restart_requested: asyncio.Future[str] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def log_path(self) -> Path:
        return self._around.directory / "logs" / f"{self.spec.name}.log"

    @property
    def saved_state(self) -> SavedState:
        started = self._child.family.started if self._child is not None else ""
        return SavedState(self.pid or 0, started, self.ports)

    async def run(self) -> None:
        """Run and restart the process until `stop`."""
        while not self._stop_requested.is_set():
            ready_seconds = await self._run_once()
            if self._stop_requested.is_set():
                break
            pause = self._backoff.failed(ready_seconds)
            self.restarts += 1
            self._become(AgentState.WAITING)
            self._report_end(pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop_requested.wait(), pause)
        self._become(AgentState.STOPPED)

    def stop(self) -> None:
        """Stop the agent; `run` returns when it has ended."""
        self._stop_requested.set()

    def kill(self) -> None:
        self._stop_requested.set()
        if self._child is not None:
            self.was_killed = True
            self._child.family.kill()

    async def _run_once(self) -> float:
        """Run the process to its end; returns the seconds for which it was ready."""
        self.memory_bytes = 0
        try:
            self._child = child = await self._start()
        except OSError as error:
            self.last_end = f"it cannot be started: {error.strerror or error}"
            return 0.0
        loop = asyncio.get_running_loop()
        self._health = health = HealthState(self.spec, loop.time())
        self._restart_requested = loop.create_future()
        self._become(AgentState.STARTING)
        watching = loop.create_task(self._watch(health))
        stopping = loop.create_task(self._stop_requested.wait())
        waiting: list[asyncio.Future[Any]] = [child.ended, watching, stopping, self._restart_requested]
        await asyncio.wait(waiting, return_when="FIRST_COMPLETED")
        ready_seconds = health.ready_seconds(loop.time())
        reasons = [task.result() for task in (watching, self._restart_requested) if task.done()]
        for task in (watching, stopping, self._restart_requested):
            task.cancel()
        if reasons and not child.ended.done():
            _log.error("%s: %s; restarting it", self.spec.name, reasons[0])
        self._become(AgentState.STOPPING)
        kills = self._around.cgroups.num_kills(self.spec.name) if self._around.cgroups else 0
        ended_in_time = await child.end(self.spec.stop_timeout)
        self.was_killed |= self._stop_requested.is_set() and not ended_in_time
        status = child.ended.result()
        end = f"it {'ended with' if status >= 0 else 'was ended by'} {describe_exit(status)}"
        self.last_end = reasons[0] if reasons else end
        if kills:
            self.last_end += f"; the kernel ended it at its budget of {self.spec.memory_bytes} bytes"
        if self._around.cgroups:
            self._around.cgroups.remove(self.spec.name)
        self._child = self._health = None
        return ready_seconds

    async def _start(self) -> Child:
        """Raises: OSError."""
        taken = [port for port in self.ports.values() if not self._around.is_free(port)]
        if any(port in self.spec.fixed_ports.values() for port in taken):
            raise OSError(f"port {taken[0]} is in use: stop who uses it, or fix another in 'ports'")
        if taken:
            _log.warning("%s: port %d is in use by somebody else; it gets other ports", self.spec.name, taken[0])
            self._around.reallot(self)
        is_root = os.geteuid() == 0
        power = power_plan(self.spec.power, sys.platform, lambda name: shutil.which(name) is not None, is_root)
        if power.shortfall is not None and not self.restarts:
            _log.warning("%s: %s", self.spec.name, power.shortfall)
        facts = self._facts()
        child = await Child.start(
            (*power.prefix, *(fill(word, facts) for word in self.spec.command)),
            {name: fill(value, facts) for name, value in self.spec.environment.items()},
            self.spec.working_directory,
            self.log_path,
        )
        if self._around.cgroups is not None and self.spec.memory_bytes is not None:
            try:
                self._around.cgroups.put(self.spec.name, child.pid, self.spec.memory_bytes)
            except OSError as error:
                _log.warning("%s: its memory is not limited by the kernel: %s", self.spec.name, error)
        return child

    def _facts(self) -> dict[str, str]:
        ports = {f"{name}_port": str(port) for name, port in self.ports.items()}
        where = {"address": self._around.address, "directory": str(self._around.directory)}
        return {"name": self.spec.name, "replica": str(self.spec.replica), **where, **ports}

    # Watching

    async def _watch(self, health: HealthState) -> str:
        """Probe readiness at intervals; returns the reason for a restart."""
        loop = asyncio.get_running_loop()
        address = self._around.address
        facts = self._facts() | {"address": f"[{address}]" if ":" in address else address}
        url = None if self.spec.ready is None else fill(self.spec.ready, facts)
        while True:
            answer = Probe.YES if url is None else await probe(url, self.spec.ready_timeout)
            reason = health.probed(answer, loop.time())
            if health.state is not self.state:
                if health.state is AgentState.READY:
                    _log.info("%s: ready", self.spec.name)
                elif self.state is AgentState.READY:
                    _log.warning("%s: %s", self.spec.name, health.state.value)
                self._become(health.state)
            if reason is not None:
                return reason
            await asyncio.sleep(self.spec.ready_interval)

    def sample_memory(self, table: Mapping[int, Process]) -> None:
        """Record the processes and their memory."""
        if self._child is None or self._health is None:
            return
        members = tree(self._child.pid, table, [self._child.pid])
        self._child.family.add(members)
        if self._around.cgroups is not None and self.spec.memory_bytes is not None:
            limited = self._around.cgroups.memory_of(self.spec.name)
            if limited is not None:  # the kernel keeps the budget
                self.memory_bytes = limited
                return
        self.memory_bytes = memory_of(members, self.spec.memory_bytes or sys.maxsize)
        reason = self._health.memory_sampled(self.memory_bytes)
        if reason is not None and self._restart_requested is not None and not self._restart_requested.done():
            self._restart_requested.set_result(reason)

    def _become(self, state: AgentState) -> None:
        self.state = state
        self.since = asyncio.get_running_loop().time()
        self._around.changed()

    def _report_end(self, pause: float) -> None:
        in_a_row = self._backoff.failures
        loop = f" It has ended {in_a_row} times in a row and is retried without end;" if in_a_row >= _LOOP_AFTER else ""
        _log.error(
            "%s: %s.%s next start in %g s. Its log: %s", self.spec.name, self.last_end, loop, pause, self.log_path
        )
        for line in tail(self.log_path, _TAIL_LINES):
            _log.error("%s | %s", self.spec.name, line)

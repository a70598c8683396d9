"""`pointsman fleet`: all agents, from the start to the exit status, and the files of the fleet."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from engines.core.processes import processes
from engines.fleet.agent import Agent, AgentContext
from engines.fleet.cgroups import Cgroups, NoCgroupsError, find
from engines.fleet.child import end_orphan
from engines.fleet.config import load_fleet
from engines.fleet.health_state import AgentState
from engines.fleet.ports import NoFreePortError, allot, can_bind
from engines.fleet.registration import write_rules
from engines.fleet.spec import AgentSpec, FleetSpec
from engines.fleet.state_files import Lock, read_state, rotate, write_atomically

_log = logging.getLogger("pointsman.fleet")


def _write(path: Path, content: object) -> None:
    """Write JSON. An error is logged: agents run on."""
    try:
        write_atomically(path, json.dumps(content) + "\n")
    except OSError as error:
        _log.error("%s cannot be written: %s", path, error.strerror)


_ORPHAN_SECONDS = 10.0


class Supervisor:
    """Owns the agents, their ports, the directory and the rule file."""

    def __init__(
        self, path: Path, fleet: FleetSpec, *, rules: Path | None = None, ready_file: Path | None = None
    ) -> None:
        """`fleet` is the content of the file at `path`; `rules` overrides its rule file."""
        self._path = path
        self._rules = rules
        self.fleet = self._adapted(fleet)
        self.agents: dict[str, Agent] = {}
        self._state_file = self.fleet.directory / "state.json"
        self._ready_file = ready_file
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cgroups: Cgroups | None = None
        self._was_ready = False
        self._had_terminal = False
        self._stop_signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
        self._reload_requested = asyncio.Event()

    async def run(self) -> int:
        """Run until SIGTERM or SIGINT; returns 0 where no agent had to be killed. Raises: LockedError, NoFreePortError,
        OSError."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_signals.put_nowait, number)
        is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._had_terminal = has_terminal() and not is_nohup
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        lock = Lock(self.fleet.directory / "lock")
        self._remove_ready_file()
        keeping: list[asyncio.Task[None]] = []
        try:
            self._find_cgroups()
            await self._start_all()
            keeping = [loop.create_task(work) for work in (self._sample_memory(), self._reload_on_request())]
            stopping = loop.create_task(self._stop_signals.get())
            await asyncio.wait({stopping, *keeping}, return_when="FIRST_COMPLETED")
            for task in keeping:
                if task.done():
                    task.result()
                task.cancel()
            return await self._stop_all()
        finally:
            self._remove_ready_file()
            for agent in self.agents.values():
                agent.kill()
            for task in keeping:
                task.cancel()
            await asyncio.gather(*self._tasks.values(), *keeping, return_exceptions=True)
            self._save()
            lock.close()

    def _hang_up(self) -> None:
        """Reload at SIGHUP; stop where the terminal that started the fleet is gone."""
        if self._had_terminal and not has_terminal():
            self._stop_signals.put_nowait(signal.SIGHUP)
        else:
            self._reload_requested.set()

    # Starting, changing, stopping

    async def _start_all(self) -> None:
        previous = read_state(self._state_file)
        for name, saved in previous.items():
            if saved.pid and await asyncio.to_thread(end_orphan, saved.pid, saved.started, _ORPHAN_SECONDS):
                _log.warning("%s: an earlier fleet had left it running (pid %d); it is stopped", name, saved.pid)
        ports = self._allot({name: saved.ports for name, saved in previous.items()})
        for spec in self.fleet.agents:
            self._begin(spec, ports[spec.name])
        self._register(ports)

    def _begin(self, spec: AgentSpec, ports: Mapping[str, int]) -> None:
        around = AgentContext(
            directory=self.fleet.directory,
            address=self.fleet.address,
            is_free=self._is_free,
            reallot=self._reallot,
            changed=self._agent_changed,
            cgroups=self._cgroups,
        )
        agent = Agent(spec, ports, around)
        self.agents[spec.name] = agent
        self._tasks[spec.name] = life = asyncio.get_running_loop().create_task(agent.run(), name=f"agent {spec.name}")
        life.add_done_callback(_log_failure)

    async def _reload(self) -> None:
        """Read the file again, and start and stop only what changed; an invalid file changes nothing."""
        loaded = load_fleet(self._path)
        for problem in loaded.problems:
            (_log.error if problem.is_error else _log.warning)("%s", problem)
        if loaded.fleet is None:
            _log.error("%s has errors: nothing is changed", self._path)
            return
        fleet = self._adapted(loaded.fleet)
        if fleet.directory != self.fleet.directory:
            _log.error("'directory' cannot change while the fleet runs: restart it; nothing is changed")
            return
        moved = fleet.address != self.fleet.address
        specs = {spec.name: spec for spec in fleet.agents}
        leaving = [name for name, agent in self.agents.items() if moved or specs.get(name) != agent.spec]
        previous = {name: agent.ports for name, agent in self.agents.items()}
        before, self.fleet = self.fleet, fleet
        try:
            ports = self._allot(previous)
        except NoFreePortError as error:
            self.fleet = before
            _log.error("%s; nothing is changed", error)
            return
        arriving = [name for name in specs if name in leaving or name not in self.agents]
        self._register(ports)
        await self._stop(leaving[::-1])
        running = self.agents
        self.agents = {}
        for spec in fleet.agents:  # in the file's order
            if spec.name in arriving:
                self._begin(spec, ports[spec.name])
            else:
                self.agents[spec.name] = running[spec.name]
        self._was_ready = False
        self._agent_changed()
        gone = [name for name in leaving if name not in specs]
        names = (", ".join(each) or "none" for each in (arriving, gone))
        _log.info("the file is taken over: started %s; stopped %s", *names)

    async def _stop_all(self) -> int:
        """Stop all agents, the last one first; a second signal kills them."""
        _log.info("stopping %s", ", ".join(list(self.agents)[::-1]))
        loop = asyncio.get_running_loop()
        stopping = loop.create_task(self._stop(list(self.agents)[::-1]))
        again = loop.create_task(self._stop_signals.get())
        await asyncio.wait({stopping, again}, return_when="FIRST_COMPLETED")
        if not stopping.done():
            _log.warning("stopping at once")
            for agent in self.agents.values():
                agent.kill()
            await stopping
        again.cancel()
        return 1 if any(agent.was_killed for agent in self.agents.values()) else 0

    async def _stop(self, names: list[str]) -> None:
        for name in names:
            self.agents[name].stop()
            await asyncio.wait({self._tasks[name]})  # a cancelled reload cancels no agent
            _log.info("%s: stopped", name)

    # For agents

    def _is_free(self, port: int) -> bool:
        return can_bind(self.fleet.address, port)

    def _reallot(self, agent: Agent) -> None:
        """Allot other ports to an agent whose ports are in use; without free ones it keeps them, and fails to start."""
        name, first_to_last = agent.spec.name, self.fleet.port_range
        held = {port for one in self.agents.values() if one is not agent for port in one.ports.values()}
        try:
            agent.ports = allot([agent.spec], first_to_last, lambda port: port not in held and self._is_free(port), {})[
                name
            ]
        except NoFreePortError as error:
            _log.error("%s: %s", name, error)
        self._register({one.spec.name: one.ports for one in self.agents.values()})

    def _agent_changed(self) -> None:
        self._save()
        all_ready = all(one.state is AgentState.READY for one in self.agents.values())
        if all_ready and not self._was_ready and len(self.agents) == len(self.fleet.agents):
            self._was_ready = True
            _log.info("all agents are ready: %s", ", ".join(self.agents))
            if self._ready_file is not None:
                agents = {name: {"pid": one.pid, **one.ports} for name, one in self.agents.items()}
                _write(self._ready_file, {"pid": os.getpid(), "agents": agents})

    # Files, ports, memory

    def _save(self) -> None:
        """Save pids and ports, for the next fleet in this directory."""
        _write(self._state_file, {"agents": {name: asdict(agent.saved_state) for name, agent in self.agents.items()}})

    def _remove_ready_file(self) -> None:
        """Remove the ready file, also that of an earlier fleet which crashed."""
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)

    def _register(self, ports: Mapping[str, Mapping[str, int]]) -> None:
        if self.fleet.rules is None:
            return
        try:
            if write_rules(self.fleet.rules, self.fleet, ports):
                _log.info("the gateway's rules are in %s", self.fleet.rules)
        except OSError as error:
            _log.error("the gateway's rules cannot be written to %s: %s", self.fleet.rules, error.strerror)

    def _adapted(self, fleet: FleetSpec) -> FleetSpec:
        return fleet if self._rules is None else replace(fleet, rules=self._rules)

    def _allot(self, previous: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
        """Allot ports to the fleet's agents; an agent may keep the ones that it uses now."""
        names = {spec.name for spec in self.fleet.agents}
        used = {port: name for name, agent in self.agents.items() for port in agent.ports.values()}
        return allot(
            self.fleet.agents,
            self.fleet.port_range,
            lambda port: used[port] in names if port in used else self._is_free(port),
            previous,
        )

    def _find_cgroups(self) -> None:
        if not any(agent.memory_bytes for agent in self.fleet.agents):
            return
        try:
            self._cgroups = find()
            _log.info("memory budgets are kept by the kernel (%r)", self._cgroups)
        except NoCgroupsError as error:
            why = f" ({error})" if sys.platform == "linux" else ""
            _log.info("memory budgets are kept by sampling%s: an agent over its own is restarted", why)

    async def _sample_memory(self) -> None:
        while True:
            await asyncio.sleep(self.fleet.memory_interval)
            table = await asyncio.to_thread(processes)
            for agent in self.agents.values():
                agent.sample_memory(table)
                if rotate(agent.log_path, self.fleet.log_bytes):
                    _log.info("%s: its log begins anew, the old one is %s.1", agent.spec.name, agent.log_path)

    async def _reload_on_request(self) -> None:
        while True:
            await self._reload_requested.wait()
            self._reload_requested.clear()
            await self._reload()


def has_terminal() -> bool:
    """Whether this process has a controlling terminal that is still there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _log_failure(life: asyncio.Task[None]) -> None:
    """Log the failure of an agent's task, which is a bug."""
    if not life.cancelled() and (error := life.exception()) is not None:
        _log.critical("%s is not kept any longer", life.get_name(), exc_info=error)

"""What a fleet writes: the state file, the gateway's rules, the ready file. What cannot be written is told, not raised:
agents run on."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from engines.fleet.agent import Agent
from engines.fleet.files import SavedState, read_state, write_state, write_whole
from engines.fleet.registration import registered, write_rules
from engines.fleet.spec import FleetSpec

_log = logging.getLogger("pointsman.fleet")


class Bookkeeping:
    """The files of one fleet; `directory` is the fleet's own."""

    def __init__(self, directory: Path, ready_file: Path | None) -> None:
        self._state = directory / "state.json"
        self._ready_file = ready_file

    def __repr__(self) -> str:
        return f"<Bookkeeping {self._state}>"

    def left_by_earlier(self) -> dict[str, SavedState]:
        """What an earlier fleet has noted of its agents."""
        return read_state(self._state)

    def remember(self, agents: Mapping[str, Agent]) -> None:
        """Note pids and ports, for the next fleet in this directory."""
        try:
            write_state(self._state, {name: agent.remembered for name, agent in agents.items()})
        except OSError as error:
            _log.error("%s cannot be written: %s", self._state, error.strerror)

    def register(self, fleet: FleetSpec, ports: Mapping[str, Mapping[str, int]]) -> None:
        """Bring the gateway's rule file up to date."""
        if fleet.rules is None:
            return
        told_of = {agent.agent for agent in registered(fleet.agents)}
        for name in sorted({agent.agent for agent in fleet.agents if agent.engine} - told_of):
            _log.warning("%s is not registered: the gateway does not speak its protocol", name)
        try:
            if write_rules(fleet.rules, fleet, ports):
                _log.info("the gateway's rules are in %s", fleet.rules)
        except OSError as error:
            _log.error("the gateway's rules cannot be written to %s: %s", fleet.rules, error.strerror)

    def announce(self, agents: Mapping[str, Agent]) -> None:
        """Write the ready file: all agents are ready."""
        if self._ready_file is None:
            return
        told = {name: {"pid": agent.pid, **agent.ports} for name, agent in agents.items()}
        try:
            write_whole(self._ready_file, json.dumps({"pid": os.getpid(), "agents": told}) + "\n")
        except OSError as error:
            _log.error("%s cannot be written: %s", self._ready_file, error.strerror)

    def forget_ready_file(self) -> None:
        """Take the ready file away, also one that a crash has left: it would be taken for ours."""
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)

"""The health of a running agent: its state, and whether it must be restarted. Pure: time comes in as an argument."""

from __future__ import annotations

from enum import Enum

from engines.fleet.spec import AgentSpec

# A loading model may briefly need more memory than a serving one, so several samples must exceed the budget.
MEMORY_SAMPLES = 3


class AgentState(Enum):
    WAITING = "waiting"  # for the end of its pause
    STARTING = "starting"  # not ready yet
    READY = "ready"
    UNREADY = "unready"  # it answers "not ready"
    SILENT = "silent"  # it was ready, and stopped answering
    STOPPING = "stopping"
    STOPPED = "stopped"


class Probe(Enum):
    YES = "yes"
    NO = "no"
    NOTHING = "nothing"


_READY, _UNREADY, _SILENT = AgentState.READY, AgentState.UNREADY, AgentState.SILENT
# What a probe makes of a running agent. One that has never been ready is still starting, whatever else it answers.
NEXT = {
    (AgentState.STARTING, Probe.YES): _READY,
    (AgentState.STARTING, Probe.NO): AgentState.STARTING,
    (AgentState.STARTING, Probe.NOTHING): AgentState.STARTING,
    (_READY, Probe.YES): _READY,
    (_READY, Probe.NO): _UNREADY,
    (_READY, Probe.NOTHING): _SILENT,
    (_UNREADY, Probe.YES): _READY,
    (_UNREADY, Probe.NO): _UNREADY,
    (_UNREADY, Probe.NOTHING): _SILENT,
    (_SILENT, Probe.YES): _READY,
    (_SILENT, Probe.NO): _UNREADY,
    (_SILENT, Probe.NOTHING): _SILENT,
}


class HealthState:
    """One run of an agent, from its start at `now` on."""

    def __init__(self, spec: AgentSpec, now: float) -> None:
        self._spec = spec
        self._since = now  # in this state
        self._ready_since: float | None = None
        self._samples_over = 0
        self.state = AgentState.STARTING

    def ready_seconds(self, now: float) -> float:
        """The seconds since it was ready first."""
        return 0.0 if self._ready_since is None else now - self._ready_since

    def probed(self, probe: Probe, now: float) -> str | None:
        """Record a probe; the reason for a restart, if any. "Not ready" is an answer; only silence is a hang."""
        before, self.state = self.state, NEXT[self.state, probe]
        if self.state is not before:
            self._since = now
            if before is AgentState.STARTING:
                self._ready_since = now
        if self.state is AgentState.STARTING and now - self._since >= self._spec.start_timeout:
            return f"it is not ready {self._spec.start_timeout:g} s after its start"
        hang = self._spec.hang_timeout
        if hang and self.state is AgentState.SILENT and now - self._since >= hang:
            return f"it has not answered for {hang:g} s"
        return None

    def memory_sampled(self, memory_bytes: int) -> str | None:
        """Record a sample of its memory; returns the reason for a restart, if any."""
        budget = self._spec.memory_bytes
        self._samples_over = 0 if budget is None or memory_bytes <= budget else self._samples_over + 1
        if budget is None or self._samples_over < MEMORY_SAMPLES:
            return None
        return f"it takes {memory_bytes / 2**20:,.0f} MiB of a budget of {budget / 2**20:,.0f} MiB"

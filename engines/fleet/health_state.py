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


class HealthState:
    """One run of an agent, from its start at `now` on."""

    def __init__(self, spec: AgentSpec, now: float) -> None:
        self._spec = spec
        self._started_at = now
        self._ready_since: float | None = None
        self._silent_since: float | None = None
        self._samples_over = 0
        self.state = AgentState.STARTING

    def ready_seconds(self, now: float) -> float:
        """The seconds since it was ready first."""
        return 0.0 if self._ready_since is None else now - self._ready_since

    def probed(self, probe: Probe, now: float) -> str | None:
        """Record a probe; the reason for a restart, if any. "Not ready" is an answer; only silence is a hang."""
        if probe is not Probe.NOTHING:
            self._silent_since = None
        match probe:
            case Probe.YES:
                self.state = AgentState.READY
                if self._ready_since is None:
                    self._ready_since = now
            case Probe.NO if self._ready_since is not None:
                self.state = AgentState.UNREADY
            case Probe.NOTHING if self._ready_since is not None:
                self.state = AgentState.SILENT
                if self._silent_since is None:
                    self._silent_since = now
        if self._ready_since is None and now - self._started_at >= self._spec.start_timeout:
            return f"it is not ready {self._spec.start_timeout:g} s after its start"
        hang = self._spec.hang_timeout
        if hang and self._silent_since is not None and now - self._silent_since >= hang:
            return f"it has not answered for {hang:g} s"
        return None

    def memory_sampled(self, memory_bytes: int) -> str | None:
        """Record a sample of its memory; returns the reason for a restart, if any."""
        budget = self._spec.memory_bytes
        self._samples_over = 0 if budget is None or memory_bytes <= budget else self._samples_over + 1
        if budget is None or self._samples_over < MEMORY_SAMPLES:
            return None
        return f"it takes {memory_bytes / 2**20:,.0f} MiB of a budget of {budget / 2**20:,.0f} MiB"

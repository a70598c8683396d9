"""What is thought of a running agent: its state, and whether it must be restarted. Pure: facts and time come in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from engines.fleet.spec import AgentSpec

# A model that loads may need more for a moment than when it serves; three samples in a row are no moment.
MEMORY_SAMPLES = 3


class AgentState(Enum):
    """An agent's state, as the table shows it."""

    WAITING = "waiting"  # for the end of its pause
    STARTING = "starting"  # it runs, and was not ready yet
    READY = "ready"
    UNREADY = "unready"  # it answers that it is not ready
    SILENT = "silent"  # it was ready, and does not answer
    STOPPING = "stopping"
    STOPPED = "stopped"


class Probe(Enum):
    """The outcome of asking for readiness."""

    YES = "yes"
    NO = "no"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an agent is now; `restart` says why it must be restarted, None where it need not."""

    state: AgentState
    restart: str | None = None


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
        """For how long it has served, since it was ready first."""
        return 0.0 if self._ready_since is None else now - self._ready_since

    def probed(self, probe: Probe, now: float) -> Verdict:
        """Take in a probe's outcome. An agent that says "not ready" works; only silence is a hang."""
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
        return Verdict(self.state, self._overdue(now))

    def weighed(self, memory_bytes: int) -> Verdict:
        """Take in a sample of its memory."""
        budget = self._spec.memory_bytes
        if budget is None or memory_bytes <= budget:
            self._samples_over = 0
            return Verdict(self.state)
        self._samples_over += 1
        if self._samples_over < MEMORY_SAMPLES:
            return Verdict(self.state)
        return Verdict(self.state, f"it takes {mebibytes(memory_bytes)} of a budget of {mebibytes(budget)}")

    def _overdue(self, now: float) -> str | None:
        if self._ready_since is None and now - self._started_at >= self._spec.start_timeout:
            return f"it is not ready {self._spec.start_timeout:g} s after its start"
        hang = self._spec.hang_timeout
        if hang and self._silent_since is not None and now - self._silent_since >= hang:
            return f"it has not answered for {hang:g} s"
        return None


def mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"

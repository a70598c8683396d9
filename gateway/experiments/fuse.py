"""The hard fuse: an arm that collapses is seen within seconds, without statistics.

What counts as failed: errors, and requests that another arm's engine had to answer for it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gateway.config.experiment_specs import FuseSpec
from gateway.observability.arm_stats import ArmCounts

# Chance brings about e^-20 seldom enough. Some seconds, so that a pause of the machine is none of the arm's.
_EXPECTED = 20.0
_LEAST_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Pace:
    """What an arm has answered since its gateway began, well or not, and what it has in flight now."""

    answered: int = 0
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class Stuck:
    """So many wait, and none was answered for so long."""

    in_flight: int
    seconds: float
    expected: float

    def __str__(self) -> str:
        pace = f"by the control's pace {self.expected:.0f} would have been"
        return f"none of {self.in_flight} requests in flight was answered for {self.seconds:.0f} s, {pace}"


class Stall:
    """Fed with the paces of an arm and of the control; `min_requests` in flight are too few to say anything."""

    def __init__(self, min_requests: int) -> None:
        self._min_requests = min_requests
        self._before: tuple[Pace, Pace] | None = None
        self._since = 0.0
        self._expected = 0.0

    def __repr__(self) -> str:
        return f"<Stall: {self._expected:.1f} expected>"

    def look(self, arm: Pace, control: Pace, now: float) -> Stuck | None:
        """Whether the arm is stuck."""
        before, self._before = self._before, (arm, control)
        if before is None or arm.in_flight < self._min_requests or arm.answered != before[0].answered:
            self._since, self._expected = now, 0.0
            return None
        in_flight = max(1.0, (before[1].in_flight + control.in_flight) / 2)
        waiting = min(before[0].in_flight, arm.in_flight)
        self._expected += max(0, control.answered - before[1].answered) / in_flight * waiting
        if self._expected >= _EXPECTED and now - self._since >= _LEAST_SECONDS:
            return Stuck(arm.in_flight, now - self._since, self._expected)
        return None


@dataclass(frozen=True, slots=True)
class Blown:
    """So many of an arm's requests failed."""

    requests: int
    failures: int
    seconds: float | None  # the last ones; None: since the step began

    @property
    def rate(self) -> float:
        return self.failures / self.requests

    def __str__(self) -> str:
        when = "since the step began" if self.seconds is None else f"in the last {self.seconds:.3g} s"
        return f"{self.failures} of {self.requests} requests failed {when} ({self.rate:.0%})"


class Fuse:
    """One arm's fuse, fed with cumulative counts of one or several sources."""

    def __init__(self, spec: FuseSpec) -> None:
        self._spec = spec
        self._seen: dict[str, tuple[int, int]] = {}
        self._lately: deque[tuple[float, int, int]] = deque()  # when taken, requests, failures
        self._in_step = (0, 0)

    def __repr__(self) -> str:
        return f"<Fuse: {self._in_step[1]} of {self._in_step[0]} failed in this step>"

    def begin_step(self) -> None:
        self._in_step = (0, 0)

    def take(self, source: str, counts: ArmCounts | None, now: float) -> None:
        """What a source has counted since it began; its first word says from where on it counts here."""
        requests, failures = fared(counts)
        before = self._seen.get(source)
        self._seen[source] = (requests, failures)
        if before is not None:
            self._add(max(0, requests - before[0]), max(0, failures - before[1]), now)

    def _add(self, requests: int, failures: int, now: float) -> None:
        if requests:
            self._lately.append((now, requests, failures))
            self._in_step = (self._in_step[0] + requests, self._in_step[1] + failures)

    def blown(self, now: float) -> Blown | None:
        """Whether too many have failed: of all since the step began, or of the last ones, however few seconds of the
        window it takes to have enough: an arm that collapses is not protected by how well it was before."""
        while self._lately and now - self._lately[0][0] > self._spec.window:
            self._lately.popleft()
        requests = failures = 0
        for at, more, failed in reversed(self._lately):
            requests, failures = requests + more, failures + failed
            if self._blows(requests, failures):
                return Blown(requests, failures, max(now - at, 1.0))
        return Blown(*self._in_step, None) if self._blows(*self._in_step) else None

    def _blows(self, requests: int, failures: int) -> bool:
        return requests >= self._spec.min_requests and failures >= self._spec.error_rate * requests


def fared(counts: ArmCounts | None) -> tuple[int, int]:
    """Requests that an arm got, and those that it failed."""
    if counts is None:
        return 0, 0
    return sum(counts.requests) + counts.crossed, sum(counts.errors) + counts.crossed

"""The fuse: detects a failing or hanging arm within seconds, without statistics.

Failures are errors, and requests that another arm's engine had to answer; those of guessed arms count, too. A hanging
arm has no failures to count: it is detected by the control's pace (its replies per active request). At that pace, the
arm's active requests would have had N replies by now; that there is none happens by chance once in exp(N).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gateway.config.experiment_specs import FuseSpec
from gateway.observability.arm_stats import ArmCounts

# A chance of e^-20 is small enough. A few seconds, so that a pause of the machine does not count.
_EXPECTED = 20.0
_LEAST_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class ArmPace:
    """The replies of an arm since its gateway started, good or bad, and its active requests."""

    answered: int = 0
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class StalledArm:
    """An arm that answers nothing."""

    in_flight: int
    seconds: float
    expected: float

    def __str__(self) -> str:
        pace = f"by the control's pace {self.expected:.0f} would have been"
        return f"none of {self.in_flight} requests in flight was answered for {self.seconds:.0f} s, {pace}"


class Stall:
    """Detects a hanging arm from its pace and the control's; needs more than `min_requests` active requests."""

    def __init__(self, min_requests: int) -> None:
        self._min_requests = min_requests
        self._before: tuple[ArmPace, ArmPace] | None = None
        self._since = 0.0
        self._expected = 0.0

    def look(self, arm: ArmPace, control: ArmPace, now: float) -> StalledArm | None:
        """Add the current paces. Returns: the finding, if the arm hangs."""
        before, self._before = self._before, (arm, control)
        if before is None or arm.in_flight < self._min_requests or arm.answered != before[0].answered:
            self._since, self._expected = now, 0.0
            return None
        in_flight = max(1.0, (before[1].in_flight + control.in_flight) / 2)
        waiting = min(before[0].in_flight, arm.in_flight)
        self._expected += max(0, control.answered - before[1].answered) / in_flight * waiting
        if self._expected >= _EXPECTED and now - self._since >= _LEAST_SECONDS:
            return StalledArm(arm.in_flight, now - self._since, self._expected)
        return None


@dataclass(frozen=True, slots=True)
class FuseTripped:
    """The failures that tripped a fuse."""

    requests: int
    failures: int
    seconds: float | None  # length of the window; None: since the step began

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

    def begin_step(self) -> None:
        self._in_step = (0, 0)

    def take(self, source: str, counts: ArmCounts | None, now: float) -> None:
        """Add the totals of a source; its first report is the baseline."""
        requests, failures = outcome_counts(counts)
        before = self._seen.get(source)
        self._seen[source] = (requests, failures)
        if before is not None:
            self._add(max(0, requests - before[0]), max(0, failures - before[1]), now)

    def _add(self, requests: int, failures: int, now: float) -> None:
        if requests:
            self._lately.append((now, requests, failures))
            self._in_step = (self._in_step[0] + requests, self._in_step[1] + failures)

    def tripped(self, now: float) -> FuseTripped | None:
        """Whether too many have failed: of all since the step began, or of the most recent ones, in the shortest part
        of the window that has enough requests, so that earlier successes do not mask a failure."""
        while self._lately and now - self._lately[0][0] > self._spec.window:
            self._lately.popleft()
        requests = failures = 0
        for at, more, failed in reversed(self._lately):
            requests, failures = requests + more, failures + failed
            if self._trips(requests, failures):
                return FuseTripped(requests, failures, max(now - at, 1.0))
        return FuseTripped(*self._in_step, None) if self._trips(*self._in_step) else None

    def _trips(self, requests: int, failures: int) -> bool:
        return requests >= self._spec.min_requests and failures >= self._spec.error_rate * requests


def outcome_counts(counts: ArmCounts | None) -> tuple[int, int]:
    """Returns: the requests of an arm, and its failures."""
    if counts is None:
        return 0, 0
    return (
        sum(counts.requests) + counts.crossed + counts.guessed,
        sum(counts.errors) + counts.crossed + counts.guessed_errors,
    )

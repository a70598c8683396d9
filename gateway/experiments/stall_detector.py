"""An arm that answers nothing any more: its requests have not failed, and nothing can be counted of them.

By the control's pace (what it answers, for each request that it has in flight) an arm with so many in flight would have
answered so many by now; that none is answered then happens by chance once in exp(-that). Where nobody else is asked, at
a ramp's last step, there is no such pace.
"""

from __future__ import annotations

from dataclasses import dataclass

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

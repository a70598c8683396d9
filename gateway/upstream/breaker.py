"""Passive ejection: an endpoint that keeps failing is left out for a while, then tried once."""

from __future__ import annotations

from enum import Enum

from gateway.config.specs import BreakerSpec

# An endpoint that stays broken is tried less and less often, but never forgotten for longer than this many pauses.
_LONGEST_PAUSE = 12


class BreakerState(Enum):
    """What the breaker lets through."""

    CLOSED = "closed"  # everything
    OPEN = "open"  # nothing, until its pause is over
    TRIAL = "trial"  # one request, whose end decides


class Breaker:
    """Counts failures in a row. Times are seconds of any monotonic clock, handed in by the caller.

    A request that was let through must end in `succeeded`, `failed` or `abandoned`: an endpoint on trial waits for it.
    """

    __slots__ = ("_failures", "_open_until", "_pause", "_spec", "is_spotless", "state")

    def __init__(self, spec: BreakerSpec) -> None:
        self._spec = spec
        self._failures = 0
        self._pause = spec.open_for
        self._open_until = 0.0
        self.state = BreakerState.CLOSED
        self.is_spotless = True  # closed and without a failure: the hot path need not tell it of another success

    def __repr__(self) -> str:
        return f"<Breaker {self.state.value}, {self._failures} failures>"

    def allows(self, now: float) -> bool:
        """Whether a request may be sent now; looks, and changes nothing."""
        return self.state is BreakerState.CLOSED or (self.state is BreakerState.OPEN and now >= self._open_until)

    def sent(self, now: float) -> None:
        """A request is on its way: where the pause is over, it is the trial."""
        if self.state is BreakerState.OPEN and now >= self._open_until:
            self.state = BreakerState.TRIAL

    @property
    def is_closed(self) -> bool:
        return self.state is BreakerState.CLOSED

    def counts(self, status: int) -> bool:
        """Whether a reply of this status is a failure of the endpoint."""
        return status in self._spec.statuses

    def succeeded(self) -> None:
        self._failures = 0
        self._pause = self._spec.open_for
        self.state = BreakerState.CLOSED
        self.is_spotless = True

    def failed(self, now: float) -> None:
        if not self._spec.failures:
            return
        self._failures += 1
        self.is_spotless = False
        if self.state is BreakerState.TRIAL:
            self._pause = min(self._pause * 2, self._spec.open_for * _LONGEST_PAUSE)
            self._open(now)
        elif self.state is BreakerState.CLOSED and self._failures >= self._spec.failures:
            self._open(now)

    def abandoned(self) -> None:
        """A request ended without telling anything of the endpoint (its client left): a trial must be had anew."""
        if self.state is BreakerState.TRIAL:
            self.state = BreakerState.OPEN

    def _open(self, now: float) -> None:
        self.state = BreakerState.OPEN
        self._open_until = now + self._pause

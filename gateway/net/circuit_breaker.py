"""Circuit breakers: a peer that keeps failing is left out for a while, then tried once."""

from __future__ import annotations

from enum import Enum


class BreakerState(Enum):
    """What the breaker lets through."""

    CLOSED = "closed"  # everything
    OPEN = "open"  # nothing, until its pause is over
    TRIAL = "trial"  # one request, whose end decides


class CircuitBreaker:
    """Opens after `failures` in a row, 0 for never. Times are seconds of any monotonic clock.

    The first pause is `pause` seconds, and a failed trial doubles it, up to `longest_pause`. Each is longer by a random
    share of up to `jitter`, so that many processes do not return in step. A request that was sent must end in
    `succeeded`, `failed` or `abandoned`: a trial waits for it.
    """

    __slots__ = (
        "_failures",
        "_first_pause",
        "_jitter",
        "_longest_pause",
        "_max_failures",
        "_open_until",
        "_pause",
        "is_spotless",
        "state",
    )

    def __init__(self, failures: int, pause: float, longest_pause: float, jitter: float = 0.0) -> None:
        self._max_failures = failures
        self._pause = self._first_pause = pause
        self._longest_pause = longest_pause
        self._jitter = jitter
        self._failures = 0
        self._open_until = 0.0
        self.state = BreakerState.CLOSED
        self.is_spotless = True  # closed and without a failure: the hot path need not report another success

    def __repr__(self) -> str:
        return f"<CircuitBreaker {self.state.value}, {self._failures} failures>"

    @property
    def is_closed(self) -> bool:
        return self.state is BreakerState.CLOSED

    def allows(self, now: float) -> bool:
        """Whether a request may be sent now; changes nothing."""
        return self.state is BreakerState.CLOSED or (self.state is BreakerState.OPEN and now >= self._open_until)

    def sent(self, now: float) -> None:
        """A request is sent: after the pause, it is the trial."""
        if self.state is BreakerState.OPEN and now >= self._open_until:
            self.state = BreakerState.TRIAL

    def try_send(self, now: float) -> bool:
        """`allows`, and `sent` where it does."""
        is_allowed = self.allows(now)
        if is_allowed:
            self.sent(now)
        return is_allowed

    def succeeded(self) -> bool:
        """Returns whether this has closed it."""
        was_closed = self.is_closed
        self._failures = 0
        self._pause = self._first_pause
        self.state = BreakerState.CLOSED
        self.is_spotless = True
        return not was_closed

    def failed(self, now: float, chance: float = 0.0) -> bool:
        """`chance` is uniform in [0, 1). Returns whether this has opened it, where it was closed."""
        if not self._max_failures:
            return False
        self._failures += 1
        self.is_spotless = False
        was_closed = self.is_closed
        if self.state is BreakerState.TRIAL:
            self._pause = min(self._pause * 2, self._longest_pause)
        elif not was_closed or self._failures < self._max_failures:
            return False  # open: the request was sent before the pause
        self.state = BreakerState.OPEN
        self._open_until = now + self._pause * (1 + self._jitter * chance)
        return was_closed

    def abandoned(self) -> None:
        """A request ended without a result (its client left): the next one is the trial."""
        if self.state is BreakerState.TRIAL:
            self.state = BreakerState.OPEN


def store_breaker() -> CircuitBreaker:
    """For a store, such as Redis, that its callers can do without: each would wait for its deadline."""
    return CircuitBreaker(failures=3, pause=0.5, longest_pause=5.0, jitter=0.25)

"""Finds out by trial whether an engine does more with a higher limit, or as much with a lower one. Pure.

Latency alone cannot tell a queue from a batch: an engine that forms batches answers later the more requests it has, and
does more. So while requests wait for it, a trial raises the limit for some windows. Where throughput rises with it, the
higher limit stays as the floor below which latency does not take the limit, and a larger step follows. A floor is tried
lower as often.

By Little's law a limit that is reached, over the latency of whole replies, is the throughput: latencies are less noisy
than counts, so a trial that makes replies later by as much as it lets more in ends early, before the highest class
has to notice.

The idea is BBR's ProbeBW (Cardwell et al., 2016).
"""

from __future__ import annotations

# Steps of the limit, each with the change of throughput that makes it worth while: without any effect that is about 0.
# The first step up is so small that the highest class hardly notices a trial that fails.
_UP = 1.25, 1.07
_FURTHER_UP = 1.5, 1.12
_DOWN = 0.8, 0.95
# Windows of one trial and of what it is compared with: fewer are too noisy.
_NUM_WINDOWS = 8
# So many are enough where latency shows less than this part of the change that would be worth while.
_FEWEST_WINDOWS = 4
_HOPELESS = 0.3
_FIRST_REST_SECONDS = 1.0
_LONGEST_REST_SECONDS = 120.0


class ThroughputTrial:
    """One endpoint's trials. `floor` is the limit that was found worth while, 0 for none; `factor` that of the trial
    under way, 1 for none."""

    __slots__ = (
        "_base",
        "_base_latency",
        "_base_limit",
        "_count",
        "_goes_down",
        "_latency",
        "_rest",
        "_rested_at",
        "_seconds",
        "_windows",
        "_worth",
        "factor",
        "floor",
    )

    def __init__(self) -> None:
        self.floor = 0.0
        self.factor = 1.0
        self._goes_down = False
        self._rest = _FIRST_REST_SECONDS
        self._rested_at = 0.0
        self._base = 0.0  # replies in a second, before the trial
        self._base_limit = 0.0
        self._base_latency = 0.0  # of whole replies; 0 where it is not known
        self._worth = 1.0
        self._clear()

    def _clear(self) -> None:
        self._windows, self._count, self._seconds, self._latency = 0, 0, 0.0, 0.0

    def stop(self) -> None:
        """The windows to come cannot be compared with those before."""
        self.factor = 1.0
        self._clear()

    def window(
        self, count: int, seconds: float, limit: float, now: float, *, is_saturated: bool, latency: float = 0.0
    ) -> None:
        """A window has ended: `count` replies in `seconds`, under this limit without `factor`. `latency` is their
        median where it is that of whole replies, else 0."""
        if not is_saturated:
            self.stop()
            return
        if self.factor == 1.0 and not self._base_limit * 0.85 < limit < self._base_limit * 1.15:
            self._clear()  # latency has changed it
            self._base_limit = limit
        self._windows += 1
        if self._windows <= 2 and self.factor != 1.0:
            return  # the limit has just changed
        self._count += count
        self._seconds += seconds
        self._latency += latency * count
        if self._is_hopeless():
            self._clear()
            self._fail(now)
            return
        if self._windows < _NUM_WINDOWS:
            return
        mean_latency = self._latency / self._count if self._count else 0.0
        rate = self._count / self._seconds if self._seconds else 0.0
        self._clear()
        if self.factor != 1.0:
            self._judge(rate, mean_latency, now)
        elif now >= self._rested_at:
            self._base, self._base_limit, self._base_latency = rate, limit, mean_latency
            has_floor = self.floor >= limit * 0.99
            self.factor, self._worth = _DOWN if self._goes_down and has_floor else _UP
            self._goes_down = has_floor and not self._goes_down

    def _is_hopeless(self) -> bool:
        """Whether a trial of a higher limit shows already that it is not worth while."""
        if self.factor <= 1.0 or self._windows < _FEWEST_WINDOWS or not (self._base_latency and self._latency):
            return False
        gain = self.factor * self._base_latency / (self._latency / self._count) - 1.0
        return gain < (self._worth - 1.0) * _HOPELESS

    def _fail(self, now: float) -> None:
        self.factor = 1.0
        self._rest = min(self._rest * 2, _LONGEST_REST_SECONDS)
        self._rested_at = now + self._rest

    def _judge(self, rate: float, latency: float, now: float) -> None:
        if rate <= self._base * self._worth:
            self._fail(now)
            return
        factor, self.factor = self.factor, 1.0
        self.floor = self._base_limit * factor
        self._rest = _FIRST_REST_SECONDS
        self._goes_down = factor < 1
        if factor > 1:  # on at once, since its throughput is known
            self._base, self._base_limit, self._base_latency = rate, self.floor, latency
            self.factor, self._worth = _FURTHER_UP

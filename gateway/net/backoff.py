"""Exponential backoff: the pause before a process is restarted or a connection is opened again."""

from __future__ import annotations

import math


class Backoff:
    """Pauses that double with each failure in a row, from `first` to `longest` seconds. It never gives up. A run of at
    least `healthy_after` seconds counts as healthy: the pause after it is the first one again."""

    __slots__ = ("_first", "_healthy_after", "_longest", "failures")

    def __init__(self, first: float, longest: float, healthy_after: float = math.inf) -> None:
        self._first = first
        self._longest = longest
        self._healthy_after = healthy_after
        self.failures = 0  # in a row

    @property
    def seconds(self) -> float:
        """The pause before the next attempt; 0 without a failure."""
        if not self.failures:
            return 0.0
        return float(min(self._first * 2.0 ** min(self.failures - 1, 32), self._longest))

    def failed(self, after_seconds: float = 0.0) -> float:
        """Count the failure of an attempt that ran for `after_seconds`; the pause before the next one."""
        self.failures = 1 if after_seconds >= self._healthy_after else self.failures + 1
        return self.seconds

    def reset(self) -> None:
        """Start again with the first pause."""
        self.failures = 0

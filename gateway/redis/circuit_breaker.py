"""When Redis is left alone: a slow one costs every caller his deadline, so after a few in a row nobody asks."""

from __future__ import annotations

# Each pause is up to so much longer than the rules say, so that many processes do not come back in step.
_JITTER = 0.25


class Pause:
    """Closed (ask away), or open until a moment. Time and chance come in as arguments.

    `failures` in a row open it for `seconds`, doubled with each failed trial up to `max_seconds`; the first call after
    a pause is the trial, and others wait for what it finds.
    """

    __slots__ = ("_failures", "_is_trying", "_limit", "_max_seconds", "_pause", "_seconds", "_until")

    def __init__(self, *, failures: int = 3, seconds: float = 0.5, max_seconds: float = 5.0) -> None:
        self._limit = failures
        self._seconds = seconds
        self._max_seconds = max_seconds
        self._failures = 0
        self._pause = 0.0
        self._until = 0.0
        self._is_trying = False

    def __repr__(self) -> str:
        return f"<Pause {'open' if self.is_open else 'closed'}, {self._failures} failures>"

    @property
    def is_open(self) -> bool:
        return self._pause > 0

    def allows(self, now: float) -> bool:
        """Whether to ask now; where it is open, at most one caller is told yes, and must say how it went."""
        if not self._pause:
            return True
        if now < self._until or self._is_trying:
            return False
        self._is_trying = True
        return True

    def succeeded(self) -> bool:
        """Tells whether this has closed it."""
        was_open = self.is_open
        self._failures, self._pause, self._is_trying = 0, 0.0, False
        return was_open

    def failed(self, now: float, chance: float) -> bool:
        """`chance` is uniform in [0, 1). Tells whether this has opened it."""
        self._failures += 1
        if not self._pause and self._failures < self._limit:
            return False
        was_open = self.is_open
        if was_open and not self._is_trying:
            return False  # a call from before the pause has ended late
        self._is_trying = False
        self._pause = min(max(self._pause * 2, self._seconds), self._max_seconds)
        self._until = now + self._pause * (1 + _JITTER * chance)
        return not was_open

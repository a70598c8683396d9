"""Since when each worker owes an answer to the control process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

W = TypeVar("W")

# Queries within the limit: a hang is noticed a few of these intervals after it.
_QUERIES = 10


class HangWatch(Generic[W]):
    """Finds the workers that have not answered for longer than `limit` seconds. Queries and looks take turns, one each
    `interval`; times are arguments."""

    def __init__(self, limit: float) -> None:
        self.interval = limit / _QUERIES
        self._limit = limit
        self._unanswered_since: dict[W, float] = {}
        self._looked_at: float | None = None

    def queried(self, workers: Iterable[W], now: float) -> None:
        for worker in workers:
            self._unanswered_since.setdefault(worker, now)

    def answered(self, worker: W) -> None:
        self._unanswered_since.pop(worker, None)

    def hung(self, now: float) -> list[tuple[W, float]]:
        """These workers, with the seconds. Nobody hangs where this look is late: then the control process itself has
        stood, and answers may wait."""
        before, self._looked_at = self._looked_at, now
        if before is not None and now - before > 2 * self.interval:
            self._unanswered_since.clear()
        return [(worker, now - since) for worker, since in self._unanswered_since.items() if now - since > self._limit]

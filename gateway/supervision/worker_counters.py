"""The sum of all workers' counters, including those of dead workers: totals never decrease."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from gateway.control.channel import ChildProcess
from gateway.observability.arm_stats import ArmCounts, ArmKey
from gateway.observability.metrics import CountersSnapshot, RequestSeries, SeriesKey
from gateway.observability.stats import add_up


class WorkerCounters:
    """The last snapshot of each living worker, and the sum of the others."""

    def __init__(self) -> None:
        self._living: dict[ChildProcess, CountersSnapshot] = {}
        self._retired = CountersSnapshot()

    def take(self, worker: ChildProcess, snapshot: CountersSnapshot) -> None:
        self._living[worker] = snapshot

    def retire(self, worker: ChildProcess) -> None:
        """A worker has ended: keep its counts, drop its requests under way."""
        last = self._living.pop(worker, None)
        if last is not None:
            self._retired = add_up([self._retired, last.totals()])

    def total(self) -> CountersSnapshot:
        total: CountersSnapshot = add_up([self._retired, *self._living.values()])
        return total

    def series(self) -> Mapping[SeriesKey, RequestSeries]:
        return self._sum("series")

    def arms(self) -> Mapping[ArmKey, ArmCounts]:
        return self._sum("arms")

    def captures(self) -> Counter[tuple[str, str]]:
        """Requests of mirrored routes, by route, and "captured" or the reason why not."""
        return Counter(self._sum("captures"))

    def _sum(self, name: str) -> Mapping[Any, Any]:
        total: Mapping[Any, Any] = add_up([getattr(each, name) for each in (self._retired, *self._living.values())])
        return total

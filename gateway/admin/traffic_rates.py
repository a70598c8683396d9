"""Recent traffic of the fleet: rates and latencies from the differences of monotonic counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gateway.observability.metrics import GONE, LATENCY_BOUNDS, RequestSeries, SeriesKey

# Long enough that a quiet route has a latency, short enough to show a change.
_WINDOW_SECONDS = 5.0

Group = TypeVar("Group", bound=Hashable)
Series = Mapping[SeriesKey, RequestSeries]


@dataclass(slots=True)
class TrafficRates:
    """The requests of some series in the window. Rates are per second, latencies in seconds, None without requests."""

    seconds: float
    requests: int = 0
    errors: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS) + 1))

    def add(self, now: RequestSeries, before: RequestSeries | None) -> None:
        """Add what a series has counted since; the last counts of a worker that died are missing."""
        self.requests += max(0, _total(now.statuses) - (_total(before.statuses) if before is not None else 0))
        self.errors += max(0, _total(now.errors) - (_total(before.errors) if before is not None else 0))
        then: Sequence[int] = before.total.counts if before is not None else [0] * len(self.buckets)
        for index, (count, earlier) in enumerate(zip(now.total.counts, then, strict=True)):
            self.buckets[index] += max(0, count - earlier)

    def to_json(self) -> dict[str, float | None]:
        return {
            "rate": round(self.requests / self.seconds, 3) if self.seconds else 0.0,
            "errors": round(self.errors / self.seconds, 3) if self.seconds else 0.0,
            "p50": quantile(self.buckets, 0.5),
            "p95": quantile(self.buckets, 0.95),
        }


class Traffic:
    """The counters of the window."""

    def __init__(self, window_seconds: float = _WINDOW_SECONDS) -> None:
        self._window_seconds = window_seconds
        self._seen: deque[tuple[float, Series]] = deque()

    def look(self, series: Series, now: float) -> None:
        """Add the counters of this moment."""
        self._seen.append((now, series))
        while len(self._seen) > 2 and now - self._seen[1][0] >= self._window_seconds:
            self._seen.popleft()

    def rates(self, group_of: Callable[[SeriesKey], Group]) -> dict[Group, TrafficRates]:
        """By group of series."""
        rates: dict[Group, TrafficRates] = {}
        if not self._seen:
            return rates
        (since, before), (now, latest) = self._seen[0], self._seen[-1]
        for key, series in latest.items():
            if key.endpoint == GONE:  # earlier requests, which are added to it all at once
                continue
            group = rates.setdefault(group_of(key), TrafficRates(now - since))
            if now > since:
                group.add(series, before.get(key))
        return rates


def quantile(buckets: Sequence[int], share: float) -> float | None:
    """The latency that this share of requests does not exceed, interpolated within its bucket; None without requests.
    Beyond the last bound it is that bound."""
    total = sum(buckets)
    if total <= 0:
        return None
    rank, below = share * total, 0
    for index, count in enumerate(buckets):
        if count > 0 and below + count >= rank:
            if index == len(LATENCY_BOUNDS):
                break
            low = LATENCY_BOUNDS[index - 1] if index else 0.0
            return round(low + (LATENCY_BOUNDS[index] - low) * (rank - below) / count, 6)
        below += count
    return LATENCY_BOUNDS[-1]


def _total(counts: Mapping[Any, int]) -> int:
    return sum(counts.values())

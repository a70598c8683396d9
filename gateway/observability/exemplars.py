"""Traces that stand beside a histogram's buckets, so that a dashboard leads from a slow bucket to a request in it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import NamedTuple

from gateway.observability.metrics import LATENCY_BOUNDS, SeriesKey

# Of all series and buckets; the oldest go first.
_MAX_EXEMPLARS = 10_000
FAMILY = "pointsman_request_seconds"


class Exemplar(NamedTuple):
    """A request in a bucket: its trace, its seconds, and when it ended, of `time.time`."""

    trace_id: str
    seconds: float
    at: float


class Exemplars:
    """The latest one of each series and bucket of `pointsman_request_seconds`."""

    def __init__(self) -> None:
        self._latest: dict[tuple[SeriesKey, int], Exemplar] = {}

    def add(self, key: SeriesKey, exemplar: Exemplar) -> None:
        place = key, bisect_left(LATENCY_BOUNDS, exemplar.seconds)
        self._latest.pop(place, None)
        if len(self._latest) >= _MAX_EXEMPLARS:
            del self._latest[next(iter(self._latest))]
        self._latest[place] = exemplar

    def text(self, family: str, labels: Mapping[str, str]) -> str:
        """That of a bucket with these labels, as OpenMetrics writes it behind the value; empty where there is none."""
        if family != FAMILY:
            return ""
        bound = labels["le"]
        bucket = len(LATENCY_BOUNDS) if bound == "+Inf" else bisect_left(LATENCY_BOUNDS, float(bound))
        key = SeriesKey(*(labels[name] for name in SeriesKey._fields))
        found = self._latest.get((key, bucket))
        return f' # {{trace_id="{found.trace_id}"}} {found.seconds:.6f} {found.at:.3f}' if found is not None else ""

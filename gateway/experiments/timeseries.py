"""What charts show of a run over time: the newest points as they were taken, older ones thinned out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]

MAX_POINTS = 360
# So many of the newest are never thinned out: at a tick of 5 s, ten minutes.
_NEWEST = 120
# Of an older point's age, how far it may be from the one before: a chart of a day shows steps of minutes, not of hours.
_GAP = 1 / 60


class TimeSeries:
    """Points in the order of time; each has its `time`, seconds since 1970."""

    def __init__(self, points: Sequence[Json] = ()) -> None:
        self._points = list(points)

    def __repr__(self) -> str:
        return f"<TimeSeries of {len(self._points)}>"

    def add(self, point: Json) -> None:
        self._points.append(point)
        if len(self._points) > MAX_POINTS:
            self._thin()

    def _thin(self) -> None:
        """Drop older points by how near they are to others, but not those at which shares changed: charts mark them."""
        older, newest = self._points[:-_NEWEST], self._points[-_NEWEST:]
        gap, now = _GAP, newest[-1]["time"]
        while len(older) + len(newest) > MAX_POINTS * 3 // 4:
            older, gap = _spread(older, now, gap), 1.5 * gap
        self._points = older + newest

    def since(self, time: float = 0.0) -> list[Json]:
        return [point for point in self._points if point["time"] > time]


def _spread(points: Sequence[Json], now: float, gap: float) -> list[Json]:
    """The first, those that are a part of their age from the one before, and changes, as long as they are few."""
    has_few_changes = gap < 1.0
    kept = [points[0]]
    for point in points[1:]:
        is_far = point["time"] - kept[-1]["time"] >= gap * (now - point["time"])
        if is_far or (has_few_changes and point.get("shares") != kept[-1].get("shares")):
            kept.append(point)
    return kept

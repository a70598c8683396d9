"""The evidence of one run: periods of constant shares with the counts of each arm, and the points of charts.

Several gateways report totals since their start; the difference of two reports goes to the period that both belong to.
Counts that arrive while shares change belong to no period. The counts of a gateway that is gone stay.

As JSON, zeros are omitted; a version ignores fields that it does not know, and reads missing ones as zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from gateway.experiments.runs import Shares
from gateway.observability.arm_stats import ArmCounts, ArmKey, Feedback
from gateway.statistics.metrics import add, subtract
from gateway.statistics.values import Stratum

Json = dict[str, Any]

_DIGITS = 6  # behind the point: a microsecond, where it is seconds
MAX_POINTS = 360
# The newest points are never thinned out: at a tick of 5 s, ten minutes.
_NEWEST = 120
# The distance between older points, as a fraction of their age.
_GAP = 1 / 60


def write_counts(counts: ArmCounts) -> Json:
    """The counts as JSON, without their key."""
    return {name: value for name, value in _write(counts).items() if name != "key"}


def read_counts(key: ArmKey, data: Json) -> ArmCounts:
    """Raises: TypeError, ValueError, AttributeError if it is not the form of `write_counts`."""
    counts = ArmCounts(key)
    _read(counts, data)
    return counts


def _write(value: Any) -> Any:
    if is_dataclass(value):
        data = {each.name: _write(getattr(value, each.name)) for each in fields(value)}
        return {name: part for name, part in data.items() if part}
    if isinstance(value, list):
        return [_write(part) for part in value] if any(value) else []
    if isinstance(value, Mapping):
        return {str(name): _write(part) for name, part in value.items()}
    return round(value, _DIGITS) if isinstance(value, float) else value


def _read(counts: Any, data: Json) -> Any:
    """Fill `counts`, whose zeros determine the types, from JSON."""
    for each in fields(counts):
        if each.name not in data or each.name == "key":
            continue
        zero, part = getattr(counts, each.name), data[each.name]
        if is_dataclass(zero):
            _read(zero, part)
        elif each.name == "feedback":
            counts.feedback = {str(name): _read(Feedback(), inner) for name, inner in part.items()}
        elif each.name == "bins":
            counts.bins = {int(number): int(count) for number, count in part.items()}
        elif isinstance(zero, dict):
            setattr(counts, each.name, {str(name): int(count) for name, count in part.items()})
        elif isinstance(zero, list):
            if len(part) != len(zero):
                raise ValueError(f"{each.name} has {len(part)} buckets, not {len(zero)}")
            setattr(counts, each.name, [type(zero[0])(number) for number in part])
        else:
            setattr(counts, each.name, type(zero)(part))
    return counts


class TimeSeries:
    """Points in time order; each has its `time`, seconds since 1970."""

    def __init__(self, points: Sequence[Json] = ()) -> None:
        self._points = list(points)

    def add(self, point: Json) -> None:
        self._points.append(point)
        if len(self._points) > MAX_POINTS:
            self._thin()

    def _thin(self) -> None:
        """Drop older points that are close to others, except where shares changed, which charts mark."""
        older, newest = self._points[:-_NEWEST], self._points[-_NEWEST:]
        gap, now = _GAP, newest[-1]["time"]
        while len(older) + len(newest) > MAX_POINTS * 3 // 4:
            older, gap = _spread(older, now, gap), 1.5 * gap
        self._points = older + newest

    def since(self, time: float = 0.0) -> list[Json]:
        return [point for point in self._points if point["time"] > time]


def _spread(points: Sequence[Json], now: float, gap: float) -> list[Json]:
    """Keep the first point, points far enough from the one before, and changes if they are few."""
    has_few_changes = gap < 1.0
    thinned = [points[0]]
    for point in points[1:]:
        is_far = point["time"] - thinned[-1]["time"] >= gap * (now - point["time"])
        if is_far or (has_few_changes and point.get("shares") != thinned[-1].get("shares")):
            thinned.append(point)
    return thinned


Counts = Mapping[str, ArmCounts]  # by arm

# A bandit creates many periods over days; the oldest are dropped.
MAX_PERIODS = 64


@dataclass(slots=True)
class Period:
    """A period of constant shares; `began` and `ended` are seconds since 1970, 0 without counts."""

    number: int
    turn: int
    shares: Shares
    arms: dict[str, ArmCounts] = field(default_factory=dict)
    began: float = 0.0
    ended: float = 0.0


class Evidence:
    """The periods of one run; the last one is current."""

    def __init__(self, experiment: str, periods: Sequence[Period] = ()) -> None:
        self._experiment = experiment
        self._periods = list(periods)
        self._seen: dict[str, tuple[int, Counts]] = {}  # by source: the turn of its last report, and the report
        self.revision = 0  # grows with each change that matters to an evaluation

    @property
    def strata(self) -> list[Stratum]:
        """The periods for statistics, with zeros for arms without requests."""
        return [
            Stratum(
                {arm: ArmCounts(ArmKey(self._experiment, arm)) for arm in period.shares} | period.arms, period.shares
            )
            for period in self._periods
        ]

    @property
    def numbers(self) -> list[int]:
        """The periods' numbers; all but the last one no longer change."""
        return [period.number for period in self._periods]

    def requests(self, arm: str) -> int:
        """An arm's requests since its shares last changed."""
        turn = self._periods[-1].turn if self._periods else 0
        found = (period.arms.get(arm) for period in self._periods if period.turn == turn)
        return sum(sum(counts.requests) for counts in found if counts is not None)

    def aged(self, arm: str, now: float) -> list[tuple[float, ArmCounts]]:
        """An arm's counts with their ages, in seconds."""
        return [
            (max(0.0, now - (period.began + period.ended) / 2), period.arms[arm])
            for period in self._periods
            if arm in period.arms
        ]

    def totals(self) -> dict[str, ArmCounts]:
        """The totals of the run by arm."""
        found: dict[str, list[ArmCounts]] = {}
        for period in self._periods:
            for arm, counts in period.arms.items():
                found.setdefault(arm, []).append(counts)
        return {arm: add(*parts) for arm, parts in found.items()}

    def begin(self, turn: int, shares: Shares) -> None:
        """Begin a period with these shares, unless the current one has them."""
        if not self._periods or self._periods[-1].turn != turn:
            self._append(turn, shares)

    def cut(self, now: float, seconds: float) -> None:
        """End a period that is longer, so that its parts age separately."""
        last = self._periods[-1] if self._periods else None
        if last is not None and last.began and now - last.began > seconds:
            self._append(last.turn, last.shares)

    def _append(self, turn: int, shares: Shares) -> None:
        number = self._periods[-1].number + 1 if self._periods else 1
        self._periods.append(Period(number, turn, dict(shares)))
        self.revision += 1
        del self._periods[:-MAX_PERIODS]

    def take(self, source: str, turn: int, counts: Counts, now: float) -> None:
        """Add a gateway's report: its totals since its start, counted under this turn's shares."""
        if not self._periods or turn != self._periods[-1].turn:
            return
        before = self._seen.get(source)
        self._seen[source] = (turn, counts)
        if before is None or before[0] != turn:
            return
        if counts == before[1]:
            return
        self.revision += 1
        period = self._periods[-1]
        period.began, period.ended = period.began or now, now
        for arm, later in counts.items():
            earlier = before[1].get(arm)
            more = later if earlier is None else subtract(later, earlier)
            period.arms[arm] = add(period.arms[arm], more) if arm in period.arms else more

    # As it is kept

    def write(self, number: int) -> Json:
        """One period."""
        period = next(each for each in self._periods if each.number == number)
        data = {name: getattr(period, name) for name in ("number", "turn", "shares", "began", "ended")}
        return {**data, "arms": {arm: write_counts(counts) for arm, counts in period.arms.items()}}

    @classmethod
    def read(cls, experiment: str, data: Sequence[Json]) -> Evidence:
        """Raises: KeyError, TypeError, ValueError, AttributeError where it is something else."""
        periods = [
            Period(
                int(each["number"]),
                int(each["turn"]),
                {str(arm): float(share) for arm, share in each["shares"].items()},
                {arm: read_counts(ArmKey(experiment, arm), counts) for arm, counts in each["arms"].items()},
                float(each["began"]),
                float(each["ended"]),
            )
            for each in sorted(data, key=lambda each: int(each["number"]))
        ]
        return cls(experiment, periods[-MAX_PERIODS:])

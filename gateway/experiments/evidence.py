"""What is known of an experiment's arms in one run: periods with constant shares, and in each what was counted.

Several gateways count, each since it began; what they add from one word to the next goes to the period that both words
belong to. What was counted while shares changed belongs to none. A gateway that is gone leaves behind what it told.
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
# So many of the newest are never thinned out: at a tick of 5 s, ten minutes.
_NEWEST = 120
# Of an older point's age, how far it may be from the one before: a chart of a day shows steps of minutes, not of hours.
_GAP = 1 / 60


def write_counts(counts: ArmCounts) -> Json:
    """All but its key."""
    return {name: value for name, value in _write(counts).items() if name != "key"}


def read_counts(key: ArmKey, told: Json) -> ArmCounts:
    """Raises: TypeError, ValueError, AttributeError where it is something else."""
    counts = ArmCounts(key)
    _read(counts, told)
    return counts


def _write(value: Any) -> Any:
    if is_dataclass(value):
        told = {each.name: _write(getattr(value, each.name)) for each in fields(value)}
        return {name: part for name, part in told.items() if part}
    if isinstance(value, list):
        return [_write(part) for part in value] if any(value) else []
    if isinstance(value, Mapping):
        return {str(name): _write(part) for name, part in value.items()}
    return round(value, _DIGITS) if isinstance(value, float) else value


def _read(made: Any, told: Json) -> Any:
    """Fill in what stands there; what is made has zeros, whose kinds say what is read."""
    for each in fields(made):
        if each.name not in told or each.name == "key":
            continue
        zero, part = getattr(made, each.name), told[each.name]
        if is_dataclass(zero):
            _read(zero, part)
        elif each.name == "feedback":
            made.feedback = {str(name): _read(Feedback(), inner) for name, inner in part.items()}
        elif each.name == "bins":
            made.bins = {int(number): int(count) for number, count in part.items()}
        elif isinstance(zero, dict):
            setattr(made, each.name, {str(name): int(count) for name, count in part.items()})
        elif isinstance(zero, list):
            if len(part) != len(zero):
                raise ValueError(f"{each.name} has {len(part)} buckets, not {len(zero)}")
            setattr(made, each.name, [type(zero[0])(number) for number in part])
        else:
            setattr(made, each.name, type(zero)(part))
    return made


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


Counts = Mapping[str, ArmCounts]  # by arm

# A bandit that moves its weights for days makes many periods: those of long ago go first.
MAX_PERIODS = 64


@dataclass(slots=True)
class Period:
    """A time of constant shares; `began` and `ended` are seconds since 1970, 0 where nothing was counted."""

    number: int
    turn: int
    shares: Shares
    arms: dict[str, ArmCounts] = field(default_factory=dict)
    began: float = 0.0
    ended: float = 0.0


class Evidence:
    """The periods of one run; the last one is that of now."""

    def __init__(self, experiment: str, periods: Sequence[Period] = ()) -> None:
        self._experiment = experiment
        self._periods = list(periods)
        self._seen: dict[str, tuple[int, Counts]] = {}  # by source: the turn of its last word, and the word
        self.revision = 0  # grows with whatever is new to a judge

    def __repr__(self) -> str:
        return f"<Evidence of {self._experiment}: {len(self._periods)} periods, {len(self._seen)} sources>"

    @property
    def strata(self) -> list[Stratum]:
        """Of arms that were to get something and got nothing, with their zeros."""
        return [
            Stratum({arm: self._empty(arm) for arm in period.shares} | period.arms, period.shares)
            for period in self._periods
        ]

    def _empty(self, arm: str) -> ArmCounts:
        return ArmCounts(ArmKey(self._experiment, arm))

    @property
    def numbers(self) -> list[int]:
        """Of the periods; all but the last one stay as they are."""
        return [period.number for period in self._periods]

    def requests(self, arm: str) -> int:
        """Those of an arm since its shares were last changed."""
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
        """By arm, all of the run."""
        found: dict[str, list[ArmCounts]] = {}
        for period in self._periods:
            for arm, counts in period.arms.items():
                found.setdefault(arm, []).append(counts)
        return {arm: add(*parts) for arm, parts in found.items()}

    def begin(self, turn: int, shares: Shares) -> None:
        """Other shares hold from now on; nothing happens where they hold already."""
        if not self._periods or self._periods[-1].turn != turn:
            self._append(turn, shares)

    def cut(self, now: float, seconds: float) -> None:
        """Have a period end that lasts longer, so that its parts can grow old one by one."""
        last = self._periods[-1] if self._periods else None
        if last is not None and last.began and now - last.began > seconds:
            self._append(last.turn, last.shares)

    def _append(self, turn: int, shares: Shares) -> None:
        number = self._periods[-1].number + 1 if self._periods else 1
        self._periods.append(Period(number, turn, dict(shares)))
        self.revision += 1
        del self._periods[:-MAX_PERIODS]

    def take(self, source: str, turn: int, counts: Counts, now: float) -> None:
        """A gateway's word: all that it has counted since it began, while its workers went by this turn's shares."""
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
            known = before[1].get(arm)
            more = later if known is None else subtract(later, known)
            period.arms[arm] = add(period.arms[arm], more) if arm in period.arms else more

    # As it is kept

    def write(self, number: int) -> Json:
        """One period."""
        period = next(each for each in self._periods if each.number == number)
        return {
            "number": period.number,
            "turn": period.turn,
            "shares": dict(period.shares),
            "began": period.began,
            "ended": period.ended,
            "arms": {arm: write_counts(counts) for arm, counts in period.arms.items()},
        }

    @classmethod
    def read(cls, experiment: str, told: Sequence[Json]) -> Evidence:
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
            for each in sorted(told, key=lambda each: int(each["number"]))
        ]
        return cls(experiment, periods[-MAX_PERIODS:])

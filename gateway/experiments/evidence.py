"""What is known of an experiment's arms in one run: periods with constant shares, and in each what was counted.

Several gateways count, each since it began; what they add from one word to the next goes to the period that both words
belong to. What was counted while shares changed belongs to none. A gateway that is gone leaves behind what it told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gateway.experiments.counts_json import Json, read_counts, write_counts
from gateway.experiments.runs import Shares
from gateway.observability.arm_stats import ArmCounts, ArmKey
from gateway.statistics.count_arithmetic import add, subtract
from gateway.statistics.values import Stratum

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

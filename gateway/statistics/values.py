"""The inputs and results of the statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan

from gateway.config.experiment_specs import GuardrailSpec
from gateway.observability.arm_stats import ArmCounts
from gateway.statistics.metrics import series_of
from gateway.statistics.variance import Pair


def shared(strata: Sequence[Stratum], control: str, arm: str) -> list[tuple[ArmCounts, ArmCounts]]:
    """The counts of both arms in the periods in which both had a share."""
    return [
        (stratum.arms[control], stratum.arms[arm])
        for stratum in strata
        if all(each in stratum.arms and stratum.shares.get(each, 0.0) > 0 for each in (control, arm))
    ]


def of_arm(strata: Sequence[Stratum], arm: str) -> list[ArmCounts]:
    """The counts of one arm in all periods."""
    return [stratum.arms[arm] for stratum in strata if arm in stratum.arms]


def pairs_of(metric: str, counted: Sequence[tuple[ArmCounts, ArmCounts]]) -> list[Pair]:
    """Both arms' series of a metric in the periods in which both have values."""
    pairs = [(series_of(metric, control), series_of(metric, arm)) for control, arm in counted]
    return [pair for pair in pairs if all(sum(series.counts) for series in pair)]


@dataclass(frozen=True, slots=True)
class Stratum:
    """The counts of one period of constant shares: differences of totals (see `metrics.subtract`).

    Arms are compared within periods only, so that a base rate that drifts while shares change does not bias the result.
    """

    arms: Mapping[str, ArmCounts]
    shares: Mapping[str, float]  # of units, as configured; an arm of share 0 is not compared


@dataclass(frozen=True, slots=True)
class Interval:
    """The current interval of a confidence sequence: it covers the truth at every look, except with probability
    alpha."""

    estimate: float = nan  # nan without data
    low: float = -inf
    high: float = inf

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def within(self, other: Interval) -> Interval:
        """The intersection; if it is empty, by chance, the other interval."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Interval(self.estimate, low, high) if low <= high else other


UNKNOWN = Interval()


@dataclass(frozen=True, slots=True)
class Comparison:
    """An arm compared with the control in the same periods.

    Each period has weight n0 n1 / (n0 + n1), its information about the difference (Mantel and Haenszel's weights, those
    of least squares with an effect per period): a constant difference is estimated as it is, otherwise the result is
    the mean over requests that could get either arm.
    """

    metric: str
    control: Interval  # of each arm by itself, with the weights above
    arm: Interval
    difference: Interval  # arm - control
    ratio: Interval | None  # arm / control; None if undefined (0 / 0, or a negative control)
    n_control: int  # the number of requests, generations or values
    n_arm: int
    p_value: float  # always valid, for no difference; so is the smallest one so far
    adjusted: bool  # for prompt length

    @property
    def is_different(self) -> bool:
        """Whether the difference's interval excludes 0."""
        return not self.difference.holds(0.0)


@dataclass(frozen=True, slots=True)
class Breach:
    """The result of a guardrail: `value` is the bounded quantity (the arm's own, a difference, or a ratio)."""

    guardrail: GuardrailSpec
    is_breached: bool  # the whole interval is beyond the bound
    is_cleared: bool  # the whole interval is within the bound
    bound: float
    bound_name: str  # max, max_increase, max_decrease, max_ratio, min_ratio
    value: Interval


@dataclass(frozen=True, slots=True)
class SampleRatio:
    """Whether arms received the units that their shares promise."""

    p_value: float  # always valid
    is_mismatched: bool
    expected: Mapping[str, float]
    seen: Mapping[str, float]
    counted: str  # units | requests | requests of units (no unit is known, what buckets sent is compared) | nothing

"""What goes into statistics, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan

from gateway.config.experiment_specs import GuardrailSpec
from gateway.observability.arm_stats import ArmCounts
from gateway.statistics.metrics import series_of
from gateway.statistics.variance import Pair


def shared(strata: Sequence[Stratum], control: str, arm: str) -> list[tuple[ArmCounts, ArmCounts]]:
    """What both arms counted in the periods in which both had a share."""
    return [
        (stratum.arms[control], stratum.arms[arm])
        for stratum in strata
        if control in stratum.arms and arm in stratum.arms and _has_share(stratum, control) and _has_share(stratum, arm)
    ]


def of_arm(strata: Sequence[Stratum], arm: str) -> list[ArmCounts]:
    """What one arm counted, in all periods."""
    return [stratum.arms[arm] for stratum in strata if arm in stratum.arms]


def pairs_of(metric: str, counted: Sequence[tuple[ArmCounts, ArmCounts]]) -> list[Pair]:
    """Both arms' series of a metric, where both have something."""
    pairs = [(series_of(metric, control), series_of(metric, arm)) for control, arm in counted]
    return [pair for pair in pairs if all(sum(series.counts) for series in pair)]


def _has_share(stratum: Stratum, arm: str) -> bool:
    return stratum.shares.get(arm, 0.0) > 0


@dataclass(frozen=True, slots=True)
class Stratum:
    """What was counted in one period in which shares did not change: differences of counts (see `counting.subtract`).

    Arms are compared within periods only, so that a base rate that moves while shares move fools nobody.
    """

    arms: Mapping[str, ArmCounts]
    shares: Mapping[str, float]  # of units, as they were set; an arm of share 0 is compared with nothing


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence sequence as it stands now: it has held the truth at every look so far, but for a chance of alpha."""

    estimate: float = nan  # nan where there is nothing to estimate from
    low: float = -inf
    high: float = inf

    @property
    def is_known(self) -> bool:
        """Whether it says anything."""
        return isfinite(self.low) or isfinite(self.high)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def within(self, other: Interval) -> Interval:
        """What both leave open; where they leave nothing, which chance may bring about, what the other does."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Interval(self.estimate, low, high) if low <= high else other


UNKNOWN = Interval()


@dataclass(frozen=True, slots=True)
class Comparison:
    """An arm beside the control in the same periods.

    Each period counts by n0 n1 / (n0 + n1), what it knows of the difference (Mantel and Haenszel's weights, those of
    least squares with an effect per period): where the difference is always the same, this is it; else it is the mean
    over requests that had the choice between both arms.
    """

    metric: str
    control: Interval  # of each arm by itself, with the weights above
    arm: Interval
    difference: Interval  # arm - control
    ratio: Interval | None  # arm / control; None where there is none (0 / 0, or a control of less than 0)
    n_control: int  # what was averaged over: requests, or generations, or values
    n_arm: int
    p_value: float  # always valid: of no difference. The smallest seen so far is valid as well
    adjusted: bool  # for the length of prompts

    @property
    def is_different(self) -> bool:
        """Whether the difference's interval leaves 0 out."""
        return not self.difference.holds(0.0)


@dataclass(frozen=True, slots=True)
class Breach:
    """A guardrail and what was seen: `value` is what `bound` bounds (the arm's own, a difference, or a ratio)."""

    guardrail: GuardrailSpec
    is_breached: bool  # the whole interval is beyond the bound
    is_cleared: bool  # the whole interval keeps it
    comparison: Comparison
    bound: float
    bound_name: str  # max, max_increase, max_decrease, max_ratio, min_ratio
    value: Interval


@dataclass(frozen=True, slots=True)
class SampleRatio:
    """Whether arms got the units that their shares promise."""

    p_value: float  # always valid
    is_mismatched: bool
    expected: Mapping[str, float]
    seen: Mapping[str, float]
    counted: str  # units | requests | requests of units (no unit is known, what buckets sent is compared) | nothing

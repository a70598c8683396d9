"""An arm beside the control: one metric, all periods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.statistics.means import Averages
from gateway.statistics.metrics import is_rate, quantile_of
from gateway.statistics.periods import shared
from gateway.statistics.quantiles import Quantiles
from gateway.statistics.rates import Rates
from gateway.statistics.values import Comparison, Interval, Stratum


class Estimates(Protocol):
    """What rates, averages and quantiles tell of two arms. `one_sided` sequences hold to each side for itself."""

    num_control: int
    num_arm: int

    @property
    def is_adjusted(self) -> bool: ...
    def control(self, alpha: float) -> Interval: ...
    def arm(self, alpha: float) -> Interval: ...
    def alone(self, alpha: float, one_sided: bool = False) -> Interval: ...
    def difference(self, alpha: float, one_sided: bool = False) -> Interval: ...
    def ratio(self, alpha: float, one_sided: bool = False) -> Interval | None: ...
    def p_value(self) -> float: ...


def compare(
    metric: str, strata: Sequence[Stratum], control: str, arm: str, alpha: float, adjust: bool = True
) -> Comparison:
    """The arm's metric, the control's, their difference and ratio; each interval at alpha for itself.

    `adjust`: latencies and output tokens for the length of what was asked, where that may be done (see `spread.means`).
    Raises: UnknownMetricError.
    """
    return comparison_of(metric, estimates(metric, strata, control, arm, adjust), alpha)


def estimates(metric: str, strata: Sequence[Stratum], control: str, arm: str, adjust: bool = True) -> Estimates:
    """What is known of a metric, before anyone says how sure of it they want to be."""
    quantile = quantile_of(metric)
    if quantile is not None:
        return Quantiles(quantile, strata, control, arm)
    if is_rate(metric, [counts for pair in shared(strata, control, arm) for counts in pair]):
        return Rates(metric, strata, control, arm)
    return Averages(metric, strata, control, arm, adjust)


def comparison_of(metric: str, of: Estimates, alpha: float) -> Comparison:
    return Comparison(
        metric=metric,
        control=of.control(alpha),
        arm=of.arm(alpha),
        difference=of.difference(alpha),
        ratio=of.ratio(alpha),
        n_control=of.num_control,
        n_arm=of.num_arm,
        p_value=of.p_value(),
        adjusted=of.is_adjusted,
    )

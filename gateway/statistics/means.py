"""Means of two arms: seconds, tokens, values."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, sqrt

from gateway.statistics.confidence_sequences import boundary, normal, one_sided_boundary, p_value, student
from gateway.statistics.metrics import series_of
from gateway.statistics.values import UNKNOWN, Interval, Stratum, of_arm, pairs_of, shared
from gateway.statistics.variance import Mean, Means, Pair, mean_of, means, neighbours

# With fewer requests of either arm, means of latencies are not normal yet.
ENOUGH = 50
ENOUGH_OF_TAILS = 200
# Nor with fewer buckets that have traffic.
ENOUGH_DEGREES = 5.0


class Averages:
    """The means of a metric in two arms. Intervals are asymptotic confidence sequences (see `confidence_sequences`)."""

    def __init__(self, metric: str, strata: Sequence[Stratum], control: str, arm: str, adjust: bool = True) -> None:
        pairs = pairs_of(metric, shared(strata, control, arm))
        self._whole = mean_of([series_of(metric, counts) for counts in of_arm(strata, arm)])
        self._means = means(neighbours(pairs), adjust)
        self.num_control, self.num_arm = nums_of(pairs)

    @property
    def is_adjusted(self) -> bool:
        return self._means is not None and self._means.is_adjusted

    def control(self, alpha: float) -> Interval:
        return mean_interval(self._means.control, alpha) if self._means else UNKNOWN

    def arm(self, alpha: float) -> Interval:
        return mean_interval(self._means.arm, alpha) if self._means else UNKNOWN

    def alone(self, alpha: float, one_sided: bool = False) -> Interval:
        """The arm's mean over all its requests, independent of the control."""
        return mean_interval(self._whole, alpha, one_sided)

    def difference(self, alpha: float, one_sided: bool = False) -> Interval:
        return difference_of(self._means, alpha, one_sided) if self._means else UNKNOWN

    def ratio(self, alpha: float, one_sided: bool = False) -> Interval | None:
        return ratio_of(self._means, alpha, one_sided) if self._means else None

    def p_value(self) -> float:
        return p_value_of(self._means) if self._means else 1.0


def nums_of(pairs: Sequence[Pair]) -> tuple[int, int]:
    control, arm = (int(sum(sum(pair[side].counts) for pair in pairs)) for side in (0, 1))
    return control, arm


def mean_interval(mean: Mean, alpha: float, one_sided: bool = False) -> Interval:
    """The interval of one arm's mean.

    Without another arm, the frequency of rare slow requests is unknown. On the side of the long tail the interval
    therefore needs more requests, and is wider by the buckets' skewness (Johnson, "Modified t tests and confidence
    intervals for asymmetrical populations", 1978).
    """
    if mean.num < ENOUGH or mean.degrees < ENOUGH_DEGREES or not 0 < mean.variance < inf:
        return Interval(mean.estimate)
    factor = _factor(mean.num, mean.degrees, alpha, one_sided)
    if not isfinite(factor):
        return Interval(mean.estimate)
    skewness = sum(error**3 for error in mean.errors) / sum(error**2 for error in mean.errors) ** 1.5
    tail = (factor + abs(skewness) * (1 + 2 * factor**2) / 6) if mean.num >= ENOUGH_OF_TAILS else inf
    below, above = (factor, tail) if skewness > 0 else (tail, factor)
    error = sqrt(mean.variance)
    return Interval(mean.estimate, mean.estimate - below * error, mean.estimate + above * error)


def is_normal(of: Means) -> bool:
    """Whether both arms have enough data for normal means."""
    return all(mean.num >= ENOUGH and mean.degrees >= ENOUGH_DEGREES for mean in (of.control, of.arm))


def difference_of(of: Means, alpha: float, one_sided: bool = False) -> Interval:
    """The arm's mean less the control's."""
    estimate, error, degrees = of.contrast()
    if not is_normal(of) or not 0 < error < inf:
        return Interval(estimate)
    width = error * _factor(of.num, degrees, alpha, one_sided)
    return Interval(estimate, estimate - width, estimate + width) if isfinite(width) else Interval(estimate)


def ratio_of(of: Means, alpha: float, one_sided: bool = False) -> Interval | None:
    """The arm's mean over the control's: the ratios r for which arm - r control is not off 0 (Fieller 1954)."""
    above, below = of.arm.estimate, of.control.estimate
    if not below > 0:
        return None
    estimate = above / below
    _, error, degrees = of.contrast(1.0, -estimate)
    if not is_normal(of) or not 0 < error < inf:
        return Interval(estimate)
    squared = _factor(of.num, degrees, alpha, one_sided) ** 2
    # (above - r below)² = squared (var(above) + r² var(below)), a quadratic in r
    a = below**2 - squared * of.control.variance
    b = above * below
    c = above**2 - squared * of.arm.variance
    if a <= 0:  # the control's mean may be 0: there is no largest ratio
        return Interval(estimate)
    root = sqrt(max(b * b - a * c, 0.0))
    return Interval(estimate, (b - root) / a, (b + root) / a)


def p_value_of(of: Means) -> float:
    """The always-valid p-value of no difference."""
    estimate, error, degrees = of.contrast()
    if not is_normal(of) or not 0 < error < inf:
        return 1.0
    return p_value(normal(abs(estimate) / error, degrees), of.num)


def _factor(num: float, degrees: float, alpha: float, one_sided: bool) -> float:
    return student((one_sided_boundary if one_sided else boundary)(num, alpha), degrees)

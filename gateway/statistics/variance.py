"""Means of two arms over the same periods, and their variance between the buckets of units.

A mean is a ratio of sums, whose error is linear in each bucket's contribution. The variance is a jackknife over buckets
(for one period it is exact, Tukey 1958, and MacKinnon and White's HC3 for clusters), which is conservative when few
buckets dominate, with a Student's t of as many degrees as there are effective buckets (Carter, Schnepel and
Steigerwald, "Asymptotic behavior of a t-test robust to cluster heterogeneity", 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, nan, sqrt

from gateway.observability.arm_stats import NUM_BUCKETS
from gateway.statistics.confidence_sequences import boundary, student
from gateway.statistics.metrics import Series

# A period with fewer requests of an arm gives no estimate of variance.
LEAST_IN_A_PERIOD = 20
# Adjacent periods whose shares differ by less than this factor may be joined.
_SAME_SHARES = 1.5
# At a smaller p-value, the arms' prompts are considered different.
PROMPTS_DIFFER = 0.001

Pair = tuple[Series, Series]  # the control's and the arm's, of one period


@dataclass(frozen=True, slots=True)
class Mean:
    """One arm's mean. `errors`: the influence of each bucket."""

    estimate: float = nan
    variance: float = inf
    degrees: float = 0.0  # of freedom of the variance: effective buckets less one
    errors: Sequence[float] = ()
    num: float = 0.0


@dataclass(frozen=True, slots=True)
class Means:
    """Two arms' means over the same periods. `num` is the time of Robbins' mixture: about the smaller arm's count."""

    control: Mean
    arm: Mean
    num: float
    is_adjusted: bool = False

    def contrast(self, of_arm: float = 1.0, of_control: float = -1.0) -> tuple[float, float, float]:
        """A weighted sum of both: estimate, standard error, degrees of freedom (Satterthwaite's)."""
        estimate = of_arm * self.arm.estimate + of_control * self.control.estimate
        parts = [(of_arm**2 * self.arm.variance, self.arm.degrees)] if of_arm else []
        parts += [(of_control**2 * self.control.variance, self.control.degrees)] if of_control else []
        variance = sum(part for part, _ in parts)
        if not isfinite(variance) or any(degrees <= 0 for _, degrees in parts):
            return estimate, inf, 0.0
        doubt = sum(part**2 / degrees for part, degrees in parts)
        return estimate, sqrt(variance), variance**2 / doubt if doubt > 0 else parts[0][1]


def neighbours(pairs: Sequence[Pair]) -> list[Pair]:
    """Periods of sufficient length: a short one is joined with the next if shares are similar, else dropped. This
    depends only on numbers of requests, not on outcomes."""
    periods: list[Pair] = []
    rest: Pair | None = None
    for pair in pairs:
        if rest is not None and _are_alike(rest, pair):
            pair = _joined(rest, pair)
        rest = None if all(sum(series.counts) >= LEAST_IN_A_PERIOD for series in pair) else pair
        if rest is None:
            periods.append(pair)
    if rest is not None and periods and _are_alike(periods[-1], rest):
        periods[-1] = _joined(periods[-1], rest)
    return periods


def means(pairs: Sequence[Pair], adjust: bool = False) -> Means | None:
    """Both arms' means, each period weighted by n0 n1 / (n0 + n1); None if no period has both arms.

    `adjust` for request size: its effect on the metric is estimated between buckets (one slope for both arms, as in
    CUPED: Deng, Xu, Kohavi, Walker 2013; and analysis of covariance), and chance differences between the arms' prompts
    are removed. If prompts differ by more than chance, nothing is adjusted: an arm whose answers make conversations
    longer would hide behind them.
    """
    weights = [_weight(pair) for pair in pairs]
    total = sum(weights)
    if total <= 0:
        return None
    shares = [weight / total for weight in weights]
    plain = Means(_mean(shares, [pair[0] for pair in pairs]), _mean(shares, [pair[1] for pair in pairs]), total)
    seen = (_adjusted(plain, shares, pairs) or plain) if adjust else plain
    return replace(seen, control=_no_surer(seen.control, seen.arm), arm=_no_surer(seen.arm, seen.control))


def mean_of(series: Sequence[Series]) -> Mean:
    """One arm's mean over all its periods."""
    return _mean([1.0], [_summed(series)]) if series else Mean()


def _no_surer(mean: Mean, other: Mean) -> Mean:
    """An arm without any of the rare slow requests so far looks fast and precise. Its variance is therefore at least
    the other arm's, in proportion to the means."""
    if not mean.num or not other.num:
        return mean
    is_smaller = 0 < mean.estimate < other.estimate
    factor = (mean.estimate / other.estimate) ** 2 if is_smaller else 1.0
    variance = other.variance * other.num / mean.num * factor
    return replace(mean, variance=variance, degrees=other.degrees) if variance > mean.variance else mean


def _weight(pair: Pair) -> float:
    control, arm = (sum(series.counts) for series in pair)
    return control * arm / (control + arm) if control and arm else 0.0


def _mean(shares: Sequence[float], periods: Sequence[Series]) -> Mean:
    estimate, num = 0.0, 0.0
    errors, weights = [0.0] * NUM_BUCKETS, [0.0] * NUM_BUCKETS
    is_known = True
    for share, series in zip(shares, periods, strict=True):
        count = float(sum(series.counts))
        num += count
        if not share or not count:
            is_known = is_known and not share
            continue
        mean = sum(series.totals) / count
        estimate += share * mean
        for bucket, (total, of_bucket) in enumerate(zip(series.totals, series.counts, strict=True)):
            if of_bucket:
                others = count - of_bucket
                is_known = is_known and others > 0
                errors[bucket] += share * (total - mean * of_bucket) / (others or 1.0)
                weights[bucket] += share * of_bucket / count
    if not is_known:  # all of a period came from one bucket: there is nothing to see the spread in
        return Mean(estimate if num else nan, num=num)
    return _with_errors(estimate, errors, weights, num)


def _with_errors(estimate: float, errors: Sequence[float], weights: Sequence[float], num: float) -> Mean:
    seen = sum(1 for weight in weights if weight)
    squares = sum(weight * weight for weight in weights)
    variance = sum(error * error for error in errors) * (seen - 1) / seen if seen else inf
    degrees = sum(weights) ** 2 / squares - 1 if squares else 0.0
    return Mean(estimate, variance, degrees, errors, num)


def _adjusted(plain: Means, shares: Sequence[float], pairs: Sequence[Pair]) -> Means | None:
    if any(series.sizes is None or series.requests is None for pair in pairs for series in pair):
        return None
    prompts = [
        _mean(shares, [Series(pair[side].sizes or (), pair[side].requests or ()) for pair in pairs]) for side in (0, 1)
    ]
    request_sizes = Means(prompts[0], prompts[1], plain.num)
    difference, error, degrees = request_sizes.contrast()
    if not error or not isfinite(error):
        return None
    if abs(difference) > student(boundary(request_sizes.num, PROMPTS_DIFFER), degrees) * error:
        return None
    sides = [(plain.control, request_sizes.control), (plain.arm, request_sizes.arm)]
    if any(not isfinite(mean.variance) for side in sides for mean in side):
        return None
    squares = sum(x * x for _, sizes in sides for x in sizes.errors)
    slope = sum(y * x for mean, sizes in sides for y, x in zip(mean.errors, sizes.errors, strict=True)) / squares
    middle = (request_sizes.control.estimate * plain.control.num + request_sizes.arm.estimate * plain.arm.num) / (
        plain.control.num + plain.arm.num
    )
    control, arm = (_without_prompts(mean, sizes, slope, middle) for mean, sizes in sides)
    return Means(control, arm, plain.num, is_adjusted=True)


def _without_prompts(mean: Mean, sizes: Mean, slope: float, middle: float) -> Mean:
    errors = [y - slope * x for y, x in zip(mean.errors, sizes.errors, strict=True)]
    before = sum(error * error for error in mean.errors)
    after = sum(error * error for error in errors)
    return replace(
        mean,
        estimate=mean.estimate - slope * (sizes.estimate - middle),
        variance=mean.variance * after / before if before else mean.variance,
        errors=errors,
    )


def _are_alike(one: Pair, other: Pair) -> bool:
    odds = []
    for pair in (one, other):
        control, arm = (sum(series.counts) for series in pair)
        odds.append((arm + 0.5) / (control + 0.5))
    return max(odds) <= _SAME_SHARES * min(odds)


def _joined(one: Pair, other: Pair) -> Pair:
    return _summed([one[0], other[0]]), _summed([one[1], other[1]])


def _summed(parts: Sequence[Series]) -> Series:
    if len(parts) == 1:
        return parts[0]
    has_sizes = all(part.sizes is not None and part.requests is not None for part in parts)
    return Series(
        [sum(values) for values in zip(*(part.totals for part in parts), strict=True)],
        [sum(values) for values in zip(*(part.counts for part in parts), strict=True)],
        [sum(values) for values in zip(*(part.sizes or () for part in parts), strict=True)] if has_sizes else None,
        [sum(values) for values in zip(*(part.requests or () for part in parts), strict=True)] if has_sizes else None,
    )

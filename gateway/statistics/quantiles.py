"""Quantiles of latencies of two arms, from histogram bins.

A share p of requests is as fast as the p-quantile or faster, whatever the latencies' distribution. So a latency is
below the quantile where too few requests were that fast, and above it where too many were, as the e-process of
`bernoulli` has it at p: Howard and Ramdas, "Sequential estimation of quantiles with applications to A/B testing and
best-arm identification" (Bernoulli 28, 2022; the beta-binomial mixture). How many requests were as fast as a bin's
bound is known exactly, so bins make intervals at most a bin (5 %) wider, and never wrong.

Bins are counted for all buckets together. How far units differ is taken from the mean of the same latency: by how much
its variance between buckets is above that of independent requests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, inf, log

from gateway.observability.arm_stats import LAST_BIN, LatencyStats, bin_bound
from gateway.statistics.bernoulli import Trials, halved, log_evidence
from gateway.statistics.confidence_sequences import TIGHTEST_AT
from gateway.statistics.metrics import Series, timing_of
from gateway.statistics.values import UNKNOWN, Interval, Stratum, of_arm, shared
from gateway.statistics.variance import mean_of

# With fewer buckets the variance between units is unknown: each bucket counts as one request.
_LEAST_BUCKETS = 8
_LEAST_ALPHA = 1e-12
_STEPS = 40
# A prior that knows as much as so many requests is tightest at `TIGHTEST_AT`, as Robbins' mixture with the same
# variance.
_PRIOR = TIGHTEST_AT / 8.2


@dataclass(frozen=True, slots=True)
class Fast:
    """The cumulative shares of requests by bin, and the number of independent requests behind them."""

    bins: Sequence[int]
    shares: Sequence[float]
    num: float

    def interval(self, probability: float, alpha: float) -> Interval:
        if not self.num:
            return UNKNOWN
        bound = -log(alpha)

        def is_rejected(at: int) -> bool:
            return evidence(self.shares[at], self.num, probability) >= bound

        places = range(len(self.bins))
        low = bisect_left(places, True, key=lambda at: self.shares[at] >= probability or not is_rejected(at))
        high = bisect_left(places, True, key=lambda at: self.shares[at] > probability and is_rejected(at))
        # What is too few up to one bin stays so until the next bin that anything fell into begins.
        is_none_too_few = evidence(0.0, self.num, probability) >= bound
        least = bin_bound(self.bins[low] - 1) if low < len(places) and self.bins[low] and is_none_too_few else 0.0
        most = bin_bound(self.bins[high]) if high < len(places) and self.bins[high] < LAST_BIN else inf
        return Interval(self._estimate(probability), least, most)

    def _estimate(self, probability: float) -> float:
        at = min(bisect_left(self.shares, probability), len(self.bins) - 1)
        before = self.shares[at - 1] if at else 0.0
        part = (probability - before) / (self.shares[at] - before) if self.shares[at] > before else 1.0
        return bin_bound(self.bins[at]) * exp(log(bin_bound(1) / bin_bound(0)) * (min(part, 1.0) - 1))


class Quantiles:
    """A quantile of a latency in two arms; each arm's interval has half of alpha where they are compared."""

    def __init__(self, quantile: tuple[str, float], strata: Sequence[Stratum], control: str, arm: str) -> None:
        latency, self._probability = quantile
        counted = [(timing_of(latency, one), timing_of(latency, other)) for one, other in shared(strata, control, arm)]
        counted = [(one, other) for one, other in counted if sum(one.count) and sum(other.count)]
        nums = [(sum(one.count), sum(other.count)) for one, other in counted]
        self.num_control, self.num_arm = (sum(num[side] for num in nums) for side in (0, 1))
        weights = [one * other / (one + other) for one, other in nums]
        self._control = _fast([one for one, _ in counted], weights)
        self._arm = _fast([other for _, other in counted], weights)
        own = [timing for counts in of_arm(strata, arm) if sum((timing := timing_of(latency, counts)).count)]
        self._own = _fast(own, [float(sum(timing.count)) for timing in own])

    def control(self, alpha: float) -> Interval:
        return self._control.interval(self._probability, alpha)

    def arm(self, alpha: float) -> Interval:
        return self._arm.interval(self._probability, alpha)

    def alone(self, alpha: float, one_sided: bool = False) -> Interval:
        """The arm's quantile over all its requests, independent of the control."""
        return self._own.interval(self._probability, alpha)

    def difference(self, alpha: float, one_sided: bool = False) -> Interval:
        control, arm = self.control(alpha / 2), self.arm(alpha / 2)
        return Interval(arm.estimate - control.estimate, arm.low - control.high, arm.high - control.low)

    def ratio(self, alpha: float, one_sided: bool = False) -> Interval | None:
        control, arm = self.control(alpha / 2), self.arm(alpha / 2)
        if not control.estimate > 0:
            return None
        return Interval(
            arm.estimate / control.estimate,
            max(arm.low, 0.0) / control.high,
            arm.high / control.low if control.low > 0 else inf,
        )

    def p_value(self) -> float:
        """The smallest alpha whose intervals do not meet."""
        if self.difference(1 - 1e-9).holds(0.0):
            return 1.0

        def holds_zero(logarithm: float) -> bool:
            return self.difference(exp(logarithm)).holds(0.0)

        return exp(halved(holds_zero, log(_LEAST_ALPHA), 0.0, _STEPS)[1])


def _fast(periods: Sequence[LatencyStats], weights: Sequence[float]) -> Fast:
    if not periods:
        return Fast((), (), 0.0)
    total = sum(weights)
    mass: dict[int, float] = {}
    squares = 0.0
    for timing, weight in zip(periods, weights, strict=True):
        num = sum(timing.count)
        squares += (weight / total) ** 2 / num
        for number, times in timing.bins.items():
            mass[number] = mass.get(number, 0.0) + weight / total * times / num
    bins = sorted(mass)
    shares = list(accumulate(mass[number] for number in bins))
    return Fast(bins, [share / shares[-1] for share in shares], 1 / squares / _design_effect(periods))


def _design_effect(periods: Sequence[LatencyStats]) -> float:
    mean = mean_of([Series(timing.seconds, timing.count) for timing in periods])
    buckets = {bucket for timing in periods for bucket, count in enumerate(timing.count) if count}
    if len(buckets) < _LEAST_BUCKETS:
        return max(1.0, mean.num / len(buckets))
    bins: dict[int, int] = {}
    for timing in periods:
        for number, times in timing.bins.items():
            bins[number] = bins.get(number, 0) + times
    num = sum(bins.values())
    middles = {number: (bin_bound(number - 1) + bin_bound(number)) / 2 for number in bins}
    centre = sum(middles[number] * times for number, times in bins.items()) / num
    variance = sum((middles[number] - centre) ** 2 * times for number, times in bins.items()) / num
    return max(1.0, mean.variance * mean.num / variance) if variance > 0 else 1.0


def evidence(share: float, num: float, probability: float) -> float:
    """Against the share being `probability`: half of it bet on what is near, half on anything."""
    seen = Trials(share * num, num)
    near = log_evidence(seen, probability, (_PRIOR * probability, _PRIOR * (1 - probability)))
    any_share = log_evidence(seen, probability)
    larger, smaller = max(near, any_share), min(near, any_share)
    return larger + log((1 + exp(smaller - larger)) / 2)

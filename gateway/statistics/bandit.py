"""Thompson sampling (Biometrika 25, 1933) with computed instead of sampled probabilities.

A hash assigns units to arms by shares, so no random draw is needed: the shares are the probabilities of Thompson's
draws, and the same counts give the same shares on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, isfinite, lgamma, log, sqrt

from gateway.observability.arm_stats import ArmCounts
from gateway.statistics.bernoulli import design_effect, halved
from gateway.statistics.metrics import Series, is_rate, series_of
from gateway.statistics.variance import mean_of

# Points of each arm's density, over eight standard deviations to each side: shares are right to about 1e-3.
_POINTS = 400
_DEVIATIONS = 8.0
_STEPS = 60


@dataclass(frozen=True, slots=True)
class Belief:
    """The posterior of an arm's metric: Beta for a proportion, otherwise normal."""

    mean: float
    deviation: float
    is_share: bool = True

    def log_density(self, value: float) -> float:
        if not self.is_share:
            return -(((value - self.mean) / self.deviation) ** 2) / 2 - log(self.deviation)
        knows = self.mean * (1 - self.mean) / self.deviation**2 - 1
        a, b = knows * self.mean, knows * (1 - self.mean)
        log_norm = lgamma(a + b) - lgamma(a) - lgamma(b)
        return log_norm + (a - 1) * log(value) + (b - 1) * log(1 - value)


def belief_of_share(hits: float, misses: float) -> Belief:
    """The posterior Beta(1 + hits, 1 + misses); both may be fractions."""
    a, b = 1 + hits, 1 + misses
    return Belief(a / (a + b), sqrt(a * b / (a + b + 1)) / (a + b))


def belief(metric: str, periods: Sequence[tuple[float, ArmCounts]], half_life: float) -> Belief | None:
    """The posterior from periods with their ages in seconds; counts of one half-life ago weigh half.

    Proportions (error_rate, feedback of 0 and 1) use the number of independent requests; None for a mean without a
    variance yet.
    """
    series = [series_of(metric, counts) for _, counts in periods]
    faded = []
    for each, (age, _) in zip(series, periods, strict=True):
        by = 0.5 ** (age / half_life)
        faded.append(Series([by * total for total in each.totals], [by * count for count in each.counts]))
    if is_rate(metric, [counts for _, counts in periods]):
        effect = design_effect(series)
        hits = sum(sum(each.totals) for each in faded) / effect
        num = sum(sum(each.counts) for each in faded) / effect
        return belief_of_share(hits, num - hits)
    mean = mean_of(faded)
    if mean.variance <= 0 or not isfinite(mean.variance):
        return None
    return Belief(mean.estimate, sqrt(mean.variance), is_share=False)


def thompson(
    beliefs: Mapping[str, Belief], min_share: float = 0.05, max_share: float = 0.95, goal: str = "higher"
) -> dict[str, float]:
    """Shares of the arms, with sum 1, each within the bounds; equal if the bounds are infeasible.

    `goal`: whether the best arm's metric is the `higher` or the `lower` one.
    """
    chances = best_chances(beliefs, goal)
    if min_share * len(chances) > 1 or max_share * len(chances) < 1:
        return dict.fromkeys(chances, 1 / len(chances))

    def bounded(logarithm: float) -> dict[str, float]:
        factor = exp(logarithm)
        return {arm: min(max((chance + 1e-9) * factor, min_share), max_share) for arm, chance in chances.items()}

    # The factor at which bounded chances are 1 in all
    shares = bounded(halved(lambda logarithm: sum(bounded(logarithm).values()) < 1, -30.0, 30.0, _STEPS)[1])
    total = sum(shares.values())
    return {arm: share / total for arm, share in shares.items()}


def best_chances(beliefs: Mapping[str, Belief], goal: str = "higher") -> dict[str, float]:
    """The chance of each arm to be the best: its density times the others' chances to be worse, over all values."""
    points = _points(list(beliefs.values()))
    densities = {arm: _density(each, points) for arm, each in beliefs.items()}
    below = {arm: _summed(points, density) for arm, density in densities.items()}
    chances = {}
    for arm, density in densities.items():
        worse = [1.0] * len(points)
        for other, chance in below.items():
            if other != arm:
                worse = [all_of * (c if goal == "higher" else 1 - c) for all_of, c in zip(worse, chance, strict=True)]
        product = [each * other for each, other in zip(density, worse, strict=True)]
        chances[arm] = _summed(points, product)[-1]
    total = sum(chances.values())
    return {arm: chance / total for arm, chance in chances.items()}


def _points(beliefs: Sequence[Belief]) -> list[float]:
    points = set()
    for each in beliefs:
        for step in range(_POINTS + 1):
            point = each.mean + each.deviation * _DEVIATIONS * (2 * step / _POINTS - 1)
            if not each.is_share or 0 < point < 1:
                points.add(point)
        if each.is_share:  # densities may be steep at the ends
            points |= {each.mean * 2.0**-step for step in range(1, 20)}
            points |= {1 - (1 - each.mean) * 2.0**-step for step in range(1, 20)}
    return sorted(points)


def _density(of: Belief, points: Sequence[float]) -> list[float]:
    logarithms = [of.log_density(point) for point in points]
    density = [exp(logarithm) for logarithm in logarithms]
    total = _summed(points, density)[-1]
    return [each / total for each in density]


def _summed(points: Sequence[float], density: Sequence[float]) -> list[float]:
    """The integral up to each point, by trapezia."""
    sums = [0.0]
    for (one, two), (low, high) in zip(pairwise(points), pairwise(density), strict=True):
        sums.append(sums[-1] + (two - one) * (low + high) / 2)
    return sums

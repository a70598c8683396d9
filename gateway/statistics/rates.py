"""Proportions of two arms: failed requests, liked answers.

Two confidence sequences share alpha and are intersected: one is exact for few errors (`bernoulli`), the other is tight
when there are enough for normality (`means`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf

from gateway.statistics import bernoulli
from gateway.statistics.bernoulli import Trials
from gateway.statistics.means import difference_of, mean_interval, nums_of, p_value_of, ratio_of
from gateway.statistics.metrics import Series, series_of
from gateway.statistics.values import UNKNOWN, Interval, Stratum, of_arm, pairs_of, shared
from gateway.statistics.variance import Means, mean_of, means, neighbours

# The errors (and successes) that either arm needs, by both arms' rate, before normality is assumed.
ENOUGH_EVENTS = 10
# The exact sequence's part of alpha. A collapsing arm is obvious: a smaller part costs a request or two.
EXACT = 0.25


class Rates:
    """The proportions of a metric in two arms."""

    def __init__(self, metric: str, strata: Sequence[Stratum], control: str, arm: str) -> None:
        pairs = pairs_of(metric, shared(strata, control, arm))
        self.num_control, self.num_arm = nums_of(pairs)
        self._own = [series_of(metric, counts) for counts in of_arm(strata, arm)]
        self._control, self._arm = trials(pairs) if pairs else (Trials(0, 0), Trials(0, 0))
        self._means = _normal_means(neighbours(pairs), self._control, self._arm)

    def control(self, alpha: float) -> Interval:
        return _interval(self._control, alpha)

    def arm(self, alpha: float) -> Interval:
        return _interval(self._arm, alpha)

    def alone(self, alpha: float, one_sided: bool = False) -> Interval:
        """The arm's proportion over all its requests, independent of the control."""
        seen = Trials(sum(sum(each.totals) for each in self._own), sum(sum(each.counts) for each in self._own))
        seen = seen.divided(bernoulli.design_effect(self._own))
        exact = _interval(seen, EXACT * alpha)
        if min(seen.hits, seen.num - seen.hits) < ENOUGH_EVENTS:
            return exact
        return exact.within(mean_interval(mean_of(self._own), (1 - EXACT) * alpha, one_sided))

    def difference(self, alpha: float, one_sided: bool = False) -> Interval:
        if not self.num_arm:
            return UNKNOWN
        low, high = bernoulli.difference_interval(self._control, self._arm, EXACT * alpha)
        exact = Interval(self._arm.share - self._control.share, low, high)
        return exact.within(difference_of(self._means, (1 - EXACT) * alpha, one_sided)) if self._means else exact

    def ratio(self, alpha: float, one_sided: bool = False) -> Interval | None:
        if not self._control.hits and not self._arm.hits:
            return None
        low, high = bernoulli.ratio_interval(self._control, self._arm, EXACT * alpha)
        exact = Interval(self._arm.share / self._control.share if self._control.hits else inf, low, high)
        normal = ratio_of(self._means, (1 - EXACT) * alpha, one_sided) if self._means else None
        return exact.within(normal) if normal else exact

    def p_value(self) -> float:
        if not self.num_arm:
            return 1.0
        exact = exp(-max(bernoulli.log_evidence_against(self._control, self._arm), 0.0))
        normal = p_value_of(self._means) if self._means else 1.0
        return min(1.0, exact / EXACT, normal / (1 - EXACT))


def trials(pairs: Sequence[tuple[Series, Series]]) -> tuple[Trials, Trials]:
    """Both arms' proportions over the same periods, as equivalent numbers of independent requests.

    The larger design effect of both is used: an arm without errors shows nothing about the variance between units.
    """
    counts = [(float(sum(control.counts)), float(sum(arm.counts))) for control, arm in pairs]
    weights = [control * arm / (control + arm) for control, arm in counts]
    effect = max(bernoulli.design_effect([pair[side] for pair in pairs]) for side in (0, 1))
    sides = []
    for side in (0, 1):
        share = sum(
            weight * sum(pair[side].totals) / num[side]
            for weight, pair, num in zip(weights, pairs, counts, strict=True)
        ) / sum(weights)
        squares = sum(weight**2 / num[side] for weight, num in zip(weights, counts, strict=True))
        num_independent = sum(weights) ** 2 / squares / effect
        sides.append(Trials(share * num_independent, num_independent))
    return sides[0], sides[1]


def _normal_means(pairs: Sequence[tuple[Series, Series]], control: Trials, arm: Trials) -> Means | None:
    together = control.num + arm.num
    if not together:
        return None
    share = (control.hits + arm.hits) / together
    least = min(control.num, arm.num) * min(share, 1 - share)
    return means(pairs) if least >= ENOUGH_EVENTS else None


def _interval(seen: Trials, alpha: float) -> Interval:
    if not seen.num:
        return UNKNOWN
    low, high = bernoulli.interval(seen, alpha)
    return Interval(seen.share, low, high)

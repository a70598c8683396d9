"""Exact inference on proportions of few requests, such as 3 errors in 40.

An e-process of a share p is the likelihood of what was seen, mixed over all shares by Jeffreys' prior, over its
likelihood under p (Robbins 1970; Krichevsky and Trofimov's bets). Under p it is a martingale: it ever reaches 1 / alpha
with a chance of alpha at the most. Two arms' product tests statements on both, where the smallest value that the
statement leaves possible counts (Turner, Ly, Grünwald: "Generic e-variables for exact sequential k-sample tests that
allow for optional stopping", 2024).

Requests of one unit fail together. So counts are those of as many independent requests as know the same: n and k are
divided by the design effect (Kish 1965), how much more the buckets differ than independent requests would make them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf, lgamma, log

from gateway.statistics.metrics import Series

_HALF = 0.5
_STEPS = 32  # halvings: to nine digits, and 3 ms an interval
# With fewer buckets the variance between units is unknown: each bucket counts as one request.
_LEAST_BUCKETS = 8
_WIDEST = 20.0  # of a ratio's logarithm: what is beyond is 0, or without end


@dataclass(frozen=True, slots=True)
class Trials:
    """`hits` of `num` requests; fractions if requests are not independent."""

    hits: float
    num: float

    @property
    def share(self) -> float:
        return self.hits / self.num if self.num else 0.0

    def divided(self, by: float) -> Trials:
        return Trials(self.hits / by, self.num / by)


def log_evidence(seen: Trials, share: float, prior: tuple[float, float] = (_HALF, _HALF)) -> float:
    """The logarithm of the e-process against a share, mixed over Beta(prior)."""
    return _mixed(seen, prior) + _surprise(seen, share)


def interval(seen: Trials, alpha: float) -> tuple[float, float]:
    """The shares that are not rejected."""
    bound = -log(alpha)
    mixed = _mixed(seen, (_HALF, _HALF))
    return _ends(lambda share: mixed + _surprise(seen, share) < bound, seen.share, 0.0, 1.0)


def log_evidence_against(control: Trials, arm: Trials, increase: float = 0.0, ratio: float = 1.0) -> float:
    """The evidence against: the arm's share is `ratio` times the control's, plus `increase`. -inf without data."""
    mixed = _mixed(control, (_HALF, _HALF)) + _mixed(arm, (_HALF, _HALF))
    low = max(0.0, -increase / ratio) if ratio else 0.0
    high = min(1.0, (1.0 - increase) / ratio) if ratio else 1.0
    if low > high:
        return inf

    def slope(share: float) -> float:
        of_arm = ratio * share + increase
        return ratio * _slope(arm, of_arm) + _slope(control, share)

    # The sum of surprises is convex: its smallest is where its slope turns
    share = sum(halved(lambda share: slope(share) <= 0, low, high)) / 2
    return mixed + _surprise(control, share) + _surprise(arm, ratio * share + increase)


def difference_interval(control: Trials, arm: Trials, alpha: float) -> tuple[float, float]:
    """The differences of shares (arm - control) that are not rejected."""
    bound = -log(alpha)
    return _ends(
        lambda increase: log_evidence_against(control, arm, increase) < bound, arm.share - control.share, -1.0, 1.0
    )


def ratio_interval(control: Trials, arm: Trials, alpha: float) -> tuple[float, float]:
    """The ratios of shares (arm / control) that are not rejected."""
    bound = -log(alpha)

    def is_open(logarithm: float) -> bool:
        return log_evidence_against(control, arm, ratio=exp(logarithm)) < bound

    estimate = (arm.hits + _HALF) / (arm.num + 1) / ((control.hits + _HALF) / (control.num + 1))
    low, high = _ends(is_open, log(estimate), -_WIDEST, _WIDEST)
    return (exp(low) if low > -_WIDEST + 1e-6 else 0.0), (exp(high) if high < _WIDEST - 1e-6 else inf)


def design_effect(periods: Sequence[Series]) -> float:
    """The ratio of the buckets' variance to that of independent requests: Pearson's chi-square over its degrees of
    freedom, at least 1; with too few buckets, the mean number of requests per bucket."""
    beyond: dict[int, float] = {}
    expected: dict[int, float] = {}
    seen = 0.0
    for series in periods:
        count = float(sum(series.counts))
        seen += count
        # Half a success and half a failure keep it from 0 and 1, where nothing could ever differ.
        share = (sum(series.totals) + _HALF) / (count + 1)
        for bucket, (hits, num) in enumerate(zip(series.totals, series.counts, strict=True)):
            if num:
                beyond[bucket] = beyond.get(bucket, 0.0) + hits - share * num
                expected[bucket] = expected.get(bucket, 0.0) + share * (1 - share) * num
    if len(expected) < _LEAST_BUCKETS:
        return max(1.0, seen / len(expected)) if expected else 1.0
    chi_square = sum(beyond[bucket] ** 2 / expected[bucket] for bucket in expected)
    return max(1.0, chi_square / (len(expected) - 1))


def _mixed(seen: Trials, prior: tuple[float, float]) -> float:
    a, b = prior
    return _log_beta(a + seen.hits, b + max(seen.num - seen.hits, 0.0)) - _log_beta(a, b)


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


def _surprise(seen: Trials, share: float) -> float:
    """Minus the logarithm of the likelihood of what was seen."""
    misses = max(seen.num - seen.hits, 0.0)
    surprise = 0.0
    if seen.hits:
        surprise -= seen.hits * log(share) if share > 0 else -inf
    if misses:
        surprise -= misses * log(1 - share) if share < 1 else -inf
    return surprise


def _slope(seen: Trials, share: float) -> float:
    misses = max(seen.num - seen.hits, 0.0)
    up = misses / (1 - share) if share < 1 else (inf if misses else 0.0)
    down = seen.hits / share if share > 0 else (inf if seen.hits else 0.0)
    return up - down if up != down else 0.0


def _ends(is_open: Callable[[float], bool], inside: float, least: float, most: float) -> tuple[float, float]:
    """The ends of an interval around a point inside, by halving."""
    return _end(is_open, inside, least), _end(is_open, inside, most)


def _end(is_open: Callable[[float], bool], inside: float, outside: float) -> float:
    if is_open(outside):
        return outside
    return halved(is_open, inside, outside)[1]


def halved(
    is_inside: Callable[[float], bool], inside: float, outside: float, steps: int = _STEPS
) -> tuple[float, float]:
    """The points just inside and just outside of an interval's end, by halving."""
    for _ in range(steps):
        middle = (inside + outside) / 2
        if is_inside(middle):
            inside = middle
        else:
            outside = middle
    return inside, outside

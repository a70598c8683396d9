"""gateway.statistics' quantiles on arrays; see power_formulas.py."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.power_formulas import STEPS, Array, Counts, mean_of
from gateway.observability.arm_stats import bin_bound
from gateway.statistics import quantiles


@dataclass(frozen=True, slots=True)
class Bins:
    """The counts of consecutive bins, from `first` on: [experiments, looks, bins], cumulative over looks; and the sums
    that the latencies' means need."""

    first: int
    counted: Array
    of_buckets: Counts


def quantile_interval(of: Bins, probability: float, alpha: float) -> tuple[Array, Array]:
    """The ends of one arm's interval, in one period."""
    with np.errstate(all="ignore"):
        num = of.counted.sum(-1)
        shares = np.cumsum(of.counted, -1) / num[..., None]
        known = num / _quantile_effect(of, num)
        few, many = _critical(probability, alpha, known)
        places = np.arange(of.first, of.first + of.counted.shape[-1] + 1)
        bounds = np.array([bin_bound(int(each) - 1) for each in places])
        low = bounds[(shares < few[..., None]).sum(-1)]
        above = (shares <= many[..., None]).sum(-1) + 1
        high = np.where(above < len(bounds), bounds[np.minimum(above, len(bounds) - 1)], np.inf)
        is_any = num > 0
        return np.where(is_any & (few > 0), low, 0.0), np.where(is_any, high, np.inf)


def _quantile_effect(of: Bins, num: Array) -> Array:
    shares = [np.ones(num.shape)]
    mean = mean_of(shares, [of.of_buckets])
    buckets = (of.of_buckets.counts > 0).sum(-1)
    numbers = range(of.first, of.first + of.counted.shape[-1])
    middles = np.array([(bin_bound(each - 1) + bin_bound(each)) / 2 for each in numbers])
    centre = (of.counted * middles).sum(-1) / num
    variance = (of.counted * middles**2).sum(-1) / num - centre**2
    effect = np.where(variance > 1e-12 * centre**2, mean.variance * num / variance, 1.0)
    return np.maximum(1.0, np.where(buckets < 8, num / np.maximum(buckets, 1), effect))


def _critical(probability: float, alpha: float, known: Array) -> tuple[Array, Array]:
    """The shares between which a quantile's share is not rejected, interpolated between numbers of requests."""
    nums = np.geomspace(1, max(2.0, float(np.nanmax(known))), 300)
    few = np.array([_share(probability, alpha, each, 0.0) for each in nums])
    many = np.array([_share(probability, alpha, each, 1.0) for each in nums])
    at = np.log(np.maximum(np.nan_to_num(known), 1.0))
    return np.interp(at, np.log(nums), few), np.interp(at, np.log(nums), many)


def _share(probability: float, alpha: float, num: float, end: float) -> float:
    bound = -np.log(alpha)
    if quantiles.evidence(end, num, probability) < bound:
        return 2 * end - 0.5  # no share at all is rejected: one that is never met
    inside, outside = probability, end
    for _ in range(STEPS):
        middle = (inside + outside) / 2
        if quantiles.evidence(middle, num, probability) < bound:
            inside = middle
        else:
            outside = middle
    return outside

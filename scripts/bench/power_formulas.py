"""gateway.statistics' formulas on arrays: many experiments, looked at each second, at once.

The formulas are the same, for counts [..., buckets]; tests/statistics/test_formulas.py shows that they agree with the
package. One period is a pair of arms; several periods are a list of pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gateway.statistics import confidence_sequences, means, rates
from gateway.statistics.variance import LEAST_IN_A_PERIOD, PROMPTS_DIFFER

Array = np.ndarray
STEPS = 40


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of one arm in one period: [experiments, looks, buckets]."""

    totals: Array
    counts: Array
    sizes: Array | None = None
    requests: Array | None = None


Pair = tuple[Counts, Counts]


@dataclass(frozen=True, slots=True)
class Mean:
    estimate: Array
    variance: Array
    degrees: Array
    errors: Array
    num: Array


@dataclass(frozen=True, slots=True)
class Contrast:
    """The contrast of two arms' means; `is_known` if production would give an interval."""

    estimate: Array
    error: Array
    degrees: Array
    num: Array
    is_known: Array


def contrast(pairs: Sequence[Pair], of_control: float = -1.0, adjust: bool = False) -> Contrast:
    """arm + of_control * control."""
    weights = _weights(pairs, LEAST_IN_A_PERIOD)
    total = sum(weights)
    with np.errstate(all="ignore"):
        shares = [weight / total for weight in weights]
        control, arm = (mean_of(shares, [pair[side] for pair in pairs]) for side in (0, 1))
        if adjust:
            control, arm = _adjusted(control, arm, total, shares, pairs)
        control, arm = _no_surer(control, arm), _no_surer(arm, control)
        parts = [of_control**2 * control.variance, arm.variance]
        variance = parts[0] + parts[1]
        degrees = variance**2 / (parts[0] ** 2 / control.degrees + parts[1] ** 2 / arm.degrees)
        is_known = (total > 0) & np.isfinite(variance) & (variance > 0)
        for mean in (control, arm):
            is_known &= (mean.num >= means.ENOUGH) & (mean.degrees >= means.ENOUGH_DEGREES)
        return Contrast(arm.estimate + of_control * control.estimate, np.sqrt(variance), degrees, total, is_known)


def is_beyond(of: Contrast, alpha: float, bound: float = 0.0, one_sided: bool = False) -> Array:
    """Whether the interval excludes the bound; one-sided: whether it is above it."""
    with np.errstate(all="ignore"):
        u = confidence_sequences.RHO2 * of.num
        if one_sided:
            z = np.sqrt((1 + 1 / u) * 2 * np.log(1 + np.sqrt(1 + u) / (2 * alpha)))
        else:
            z = np.sqrt((1 + 1 / u) * (np.log(1 + u) - 2 * np.log(alpha)))
        off = (of.estimate - bound) if one_sided else np.abs(of.estimate - bound)
        return of.is_known & (off > student(z, of.degrees) * of.error)


def student(z: Array, degrees: Array) -> Array:
    exponent = (z * (8 * degrees + 3) / (8 * degrees + 1)) ** 2 / degrees
    return np.where(degrees > 0, np.sqrt(degrees * np.expm1(np.minimum(exponent, 700.0))), np.inf)


@dataclass(frozen=True, slots=True)
class Trials:
    hits: Array
    num: Array


def trials(pairs: Sequence[Pair]) -> tuple[Trials, Trials]:
    with np.errstate(all="ignore"):
        weights = _weights(pairs, 1)
        total = sum(weights)
        effect = np.maximum(*(design_effect(pairs, side, weights) for side in (0, 1)))
        both = []
        for side in (0, 1):
            nums = [pair[side].counts.sum(-1) for pair in pairs]
            share = (
                sum(
                    np.where(w > 0, w * pair[side].totals.sum(-1) / num, 0.0)
                    for w, pair, num in zip(weights, pairs, nums, strict=True)
                )
                / total
            )
            squares = sum(np.where(w > 0, w**2 / num, 0.0) for w, num in zip(weights, nums, strict=True))
            num = np.where(total > 0, total**2 / squares / effect, 0.0)
            both.append(Trials(np.where(total > 0, share * num, 0.0), num))
    return both[0], both[1]


def design_effect(pairs: Sequence[Pair], side: int, weights: Sequence[Array]) -> Array:
    beyond: Array | float = 0.0
    expected: Array | float = 0.0
    seen: Array | float = 0.0
    for pair, weight in zip(pairs, weights, strict=True):
        one = pair[side]
        is_in = (weight > 0)[..., None]
        num = one.counts.sum(-1, keepdims=True)
        share = (one.totals.sum(-1, keepdims=True) + 0.5) / (num + 1)
        beyond = beyond + np.where(is_in, one.totals - share * one.counts, 0.0)
        expected = expected + np.where(is_in, share * (1 - share) * one.counts, 0.0)
        seen = seen + np.where(is_in, num, 0.0)[..., 0]
    expected = np.asarray(expected)
    buckets = (expected > 0).sum(-1)
    chi_square = np.where(expected > 0, np.asarray(beyond) ** 2 / expected, 0.0).sum(-1)
    few = np.where(buckets > 0, np.asarray(seen) / np.maximum(buckets, 1), 1.0)
    return np.maximum(1.0, np.where(buckets < 8, few, chi_square / np.maximum(buckets - 1, 1)))


def log_evidence_against(control: Trials, arm: Trials, increase: float = 0.0, ratio: float = 1.0) -> Array:
    mixed = _mixed(control) + _mixed(arm)
    low = np.full(mixed.shape, max(0.0, -increase / ratio))
    high = np.full(mixed.shape, min(1.0, (1.0 - increase) / ratio))
    with np.errstate(all="ignore"):
        for _ in range(STEPS):
            middle = (low + high) / 2
            is_up = ratio * _slope(arm, ratio * middle + increase) + _slope(control, middle) > 0
            high = np.where(is_up, middle, high)
            low = np.where(is_up, low, middle)
        share = (low + high) / 2
        return mixed + _surprise(control, share) + _surprise(arm, ratio * share + increase)


@dataclass(frozen=True, slots=True)
class Rate:
    """The shares of two arms."""

    control: Trials
    arm: Trials
    normal: Contrast


def rate(pairs: Sequence[Pair]) -> Rate:
    return Rate(*trials(pairs), contrast(pairs))


def is_rate_beyond(of: Rate, alpha: float, one_sided: bool = False, increase: float = 0.0) -> Array:
    """Whether the interval of the rates excludes the increase; one-sided: whether it is above it."""
    normal = is_beyond(of.normal, (1 - rates.EXACT) * alpha, increase, one_sided)
    return _is_exactly_beyond(of, alpha, one_sided, increase) | (is_normal_rate(of.control, of.arm) & normal)


def _is_exactly_beyond(of: Rate, alpha: float, one_sided: bool, increase: float) -> Array:
    control, arm = of.control, of.arm
    with np.errstate(all="ignore"):
        is_above = arm.hits / arm.num - control.hits / control.num > increase
        exact = log_evidence_against(control, arm, increase) > -np.log(rates.EXACT * alpha)
    return exact & (is_above | (not one_sided)) & (arm.num > 0) & (control.num > 0)


def is_normal_rate(control: Trials, arm: Trials) -> Array:
    with np.errstate(all="ignore"):
        share = (control.hits + arm.hits) / (control.num + arm.num)
        return np.minimum(control.num, arm.num) * np.minimum(share, 1 - share) >= rates.ENOUGH_EVENTS


def log_gamma(x: Array | float) -> Array:
    """Stirling's series, shifted by eight: accurate to 1e-10 from 0.5 on."""
    x = np.asarray(x, float)
    product = np.ones_like(x)
    for step in range(8):
        product = product * (x + step)
    far = x + 8
    series = 1 / (12 * far) - 1 / (360 * far**3) + 1 / (1260 * far**5)
    return (far - 0.5) * np.log(far) - far + 0.5 * np.log(2 * np.pi) + series - np.log(product)


def _weights(pairs: Sequence[Pair], least: int) -> list[Array]:
    weights = []
    for control, arm in pairs:
        one, other = control.counts.sum(-1), arm.counts.sum(-1)
        is_enough = (one >= least) & (other >= least)
        weights.append(np.where(is_enough, one * other / np.maximum(one + other, 1), 0.0))
    return weights


def mean_of(shares: Sequence[Array], periods: Sequence[Counts]) -> Mean:
    estimate: Array | float = 0.0
    errors: Array | float = 0.0
    weights: Array | float = 0.0
    num: Array | float = 0.0
    is_known: Array | bool = True
    for share, one in zip(shares, periods, strict=True):
        count = one.counts.sum(-1)
        mean = np.where(share > 0, one.totals.sum(-1) / count, 0.0)
        estimate = estimate + np.where(share > 0, share * mean, 0.0)
        others = count[..., None] - one.counts
        is_known = is_known & ((share == 0) | (others > 0).all(-1))
        part = share[..., None] * (one.totals - mean[..., None] * one.counts) / np.maximum(others, 1e-9)
        is_in = share[..., None] > 0
        errors = errors + np.where(is_in, part, 0.0)
        weights = weights + np.where(is_in, share[..., None] * one.counts / count[..., None], 0.0)
        num = num + np.where(share > 0, count, 0.0)
    seen = (np.asarray(weights) > 0).sum(-1)
    variance = (np.asarray(errors) ** 2).sum(-1) * (seen - 1) / np.maximum(seen, 1)
    squares = (np.asarray(weights) ** 2).sum(-1)
    degrees = np.asarray(weights).sum(-1) ** 2 / squares - 1
    return Mean(
        np.asarray(estimate), np.where(is_known, variance, np.inf), degrees, np.asarray(errors), np.asarray(num)
    )


def _adjusted(
    control: Mean, arm: Mean, total: Array, shares: Sequence[Array], pairs: Sequence[Pair]
) -> tuple[Mean, Mean]:
    asked = []
    for side in (0, 1):
        sides = [pair[side] for pair in pairs]
        asked.append(mean_of(shares, [Counts(each.sizes, each.requests) for each in sides]))  # type: ignore[arg-type]
    variance = asked[0].variance + asked[1].variance
    degrees = variance**2 / sum(each.variance**2 / each.degrees for each in asked)
    off = np.abs(asked[1].estimate - asked[0].estimate)
    u = confidence_sequences.RHO2 * total
    z = np.sqrt((1 + 1 / u) * (np.log(1 + u) - 2 * np.log(PROMPTS_DIFFER)))
    may = np.isfinite(variance) & (off <= student(z, degrees) * np.sqrt(variance))
    sides = [(control, asked[0]), (arm, asked[1])]
    slope = sum((mean.errors * sizes.errors).sum(-1) for mean, sizes in sides) / sum(
        (sizes.errors**2).sum(-1) for _, sizes in sides
    )
    middle = (asked[0].estimate * control.num + asked[1].estimate * arm.num) / (control.num + arm.num)
    both = []
    for mean, sizes in sides:
        errors = mean.errors - slope[..., None] * sizes.errors
        after = mean.variance * (errors**2).sum(-1) / (mean.errors**2).sum(-1)
        both.append(
            replace(
                mean,
                estimate=np.where(may, mean.estimate - slope * (sizes.estimate - middle), mean.estimate),
                variance=np.where(may, after, mean.variance),
            )
        )
    return both[0], both[1]


def _no_surer(mean: Mean, other: Mean) -> Mean:
    is_smaller = (mean.estimate > 0) & (mean.estimate < other.estimate)
    factor = np.where(is_smaller, (mean.estimate / other.estimate) ** 2, 1.0)
    variance = other.variance * other.num / mean.num * factor
    is_more = variance > mean.variance
    return replace(
        mean,
        variance=np.where(is_more, variance, mean.variance),
        degrees=np.where(is_more, other.degrees, mean.degrees),
    )


def _mixed(seen: Trials) -> Array:
    misses = np.maximum(seen.num - seen.hits, 0.0)
    return log_gamma(seen.hits + 0.5) + log_gamma(misses + 0.5) - log_gamma(seen.hits + misses + 1) - np.log(np.pi)


def _surprise(seen: Trials, share: Array) -> Array:
    misses = np.maximum(seen.num - seen.hits, 0.0)
    hit = np.where(seen.hits > 0, seen.hits * np.log(share), 0.0)
    return -hit - np.where(misses > 0, misses * np.log1p(-share), 0.0)


def _slope(seen: Trials, share: Array) -> Array:
    misses = np.maximum(seen.num - seen.hits, 0.0)
    up = np.where(misses > 0, misses / (1 - share), 0.0)
    return up - np.where(seen.hits > 0, seen.hits / share, 0.0)

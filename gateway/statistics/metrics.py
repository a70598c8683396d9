"""Metrics by their names in rule files, as ratios of an arm's counts; and the arithmetic of counts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from gateway.observability.arm_stats import NUM_BUCKETS, ArmCounts, LatencyStats

T = TypeVar("T")


def add(*parts: ArmCounts) -> ArmCounts:
    """The sum of all parts, with the first one's key."""
    total: ArmCounts = _merge(parts, sum)
    return total


def subtract(later: ArmCounts, earlier: ArmCounts | None) -> ArmCounts:
    """The difference of two totals, never negative: if counts restarted in between (a worker died), what is missing is
    lost."""
    between: ArmCounts = _merge([later, earlier] if earlier else [later, ArmCounts(later.key)], _difference)
    return between


def _difference(values: Iterable[Any]) -> Any:
    later, earlier = values
    return max(later - earlier, type(later)())


def _merge(parts: Sequence[Any], number: Any) -> Any:
    """Merge dataclasses, lists and mappings leaf by leaf; keys are those of the first part."""
    first = parts[0]
    if isinstance(first, int | float):
        return number(parts)
    if isinstance(first, list):
        return [number(values) for values in zip(*parts, strict=True)]
    if isinstance(first, Mapping):
        keys = dict.fromkeys(key for part in parts for key in part)
        like = {key: next(part[key] for part in parts if key in part) for key in keys}
        merged = {key: _merge([part.get(key, type(like[key])()) for part in parts], number) for key in keys}
        return {key: value for key, value in merged.items() if value}  # empty bins are dropped
    if not hasattr(first, "__dataclass_fields__") or type(first).__dataclass_params__.frozen:
        return first
    merged = {each.name: _merge([getattr(part, each.name) for part in parts], number) for each in fields(first)}
    return type(first)(**merged)


LATENCIES = ("latency", "first_token", "per_token")
_QUANTILE = re.compile(rf"({'|'.join(LATENCIES)})_p(50|90|95|99)")
FEEDBACK = "feedback:"

_ZEROS = (0,) * NUM_BUCKETS


@dataclass(frozen=True, slots=True)
class Series:
    """One arm's metric in one period, by bucket: a mean is the sum of totals over the sum of counts.

    `sizes` (request bytes) and `requests` are the covariate of metrics that grow with the prompt.
    """

    totals: Sequence[float]
    counts: Sequence[float]
    sizes: Sequence[float] | None = None
    requests: Sequence[float] | None = None


def quantile_of(metric: str) -> tuple[str, float] | None:
    """The latency and the probability of a metric such as latency_p95; None for means."""
    match = _QUANTILE.fullmatch(metric)
    return (match[1], int(match[2]) / 100) if match else None


def is_rate(metric: str, arms: Iterable[ArmCounts]) -> bool:
    """Whether it is a proportion: of failed requests, or of values that are all 0 or 1."""
    if not metric.startswith(FEEDBACK):
        return metric == "error_rate"
    feedback = [each for arm in arms if (each := arm.feedback.get(metric.removeprefix(FEEDBACK)))]
    return all(
        each.squares == sum(each.total)
        and all(0 <= total <= count for total, count in zip(each.total, each.count, strict=True))
        for each in feedback
    )


def timing_of(latency: str, counts: ArmCounts) -> LatencyStats:
    timing: LatencyStats = getattr(counts, latency)
    return timing


def num_values(metric: str, counts: ArmCounts) -> float:
    """The number of an arm's values of a metric."""
    quantile = quantile_of(metric)
    return sum(series_of(quantile[0] if quantile is not None else metric, counts).counts)


def series_of(metric: str, counts: ArmCounts) -> Series:
    """Raises: ValueError if there is no such metric, or if it is a quantile, which is not a ratio of sums."""
    if metric == "error_rate":
        return Series(counts.errors, counts.requests)
    if metric in LATENCIES:
        timing = timing_of(metric, counts)
        return Series(timing.seconds, timing.count, counts.request_bytes, counts.requests)
    if metric == "output_tokens":
        return Series(counts.output_tokens, counts.generations, counts.request_bytes, counts.requests)
    if metric.startswith(FEEDBACK):
        feedback = counts.feedback.get(metric.removeprefix(FEEDBACK))
        return Series(feedback.total, feedback.count) if feedback else Series(_ZEROS, _ZEROS)
    raise ValueError(
        f"{metric!r} is no metric: error_rate, latency, first_token and per_token (and these with _p50, _p90, _p95 "
        "or _p99), output_tokens, and feedback:NAME are"
    )

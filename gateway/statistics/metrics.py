"""Metrics by their names in rule files: which counts of an arm they are the ratio of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.observability.arm_stats import NUM_BUCKETS, ArmCounts, LatencyStats

LATENCIES = ("latency", "first_token", "per_token")
_QUANTILE = re.compile(rf"({'|'.join(LATENCIES)})_p(50|90|95|99)")
FEEDBACK = "feedback:"

_ZEROS = (0,) * NUM_BUCKETS


class UnknownMetricError(ValueError):
    """No metric of this name is measured."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name!r} is no metric: error_rate, latency, first_token and per_token (and these with _p50, _p90, _p95 "
            "or _p99), output_tokens, and feedback:NAME are"
        )


@dataclass(frozen=True, slots=True)
class Series:
    """One arm's metric in one period, by bucket: a mean is the sum of totals over the sum of counts.

    `sizes` and `requests` are of what was asked, in bytes: the covariate of metrics that long prompts make larger.
    """

    totals: Sequence[float]
    counts: Sequence[float]
    sizes: Sequence[float] | None = None
    requests: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class Quantile:
    """Of which latency, and which one."""

    latency: str
    probability: float


def quantile_of(metric: str) -> Quantile | None:
    """What a metric such as latency_p95 asks for; None for means."""
    match = _QUANTILE.fullmatch(metric)
    return Quantile(match[1], int(match[2]) / 100) if match else None


def is_rate(metric: str, arms: Iterable[ArmCounts]) -> bool:
    """Whether it is a share: of requests that failed, or of values that are all 0 or 1."""
    if not metric.startswith(FEEDBACK):
        return metric == "error_rate"
    said = [each for arm in arms if (each := arm.feedback.get(metric.removeprefix(FEEDBACK)))]
    return all(
        each.squares == sum(each.total)
        and all(0 <= total <= count for total, count in zip(each.total, each.count, strict=True))
        for each in said
    )


def timing_of(latency: str, counts: ArmCounts) -> LatencyStats:
    timings: Mapping[str, LatencyStats] = {
        "latency": counts.latency,
        "first_token": counts.first_token,
        "per_token": counts.per_token,
    }
    return timings[latency]


def num_values(metric: str, counts: ArmCounts) -> float:
    """How many values of a metric an arm has."""
    quantile = quantile_of(metric)
    return sum(series_of(quantile.latency if quantile is not None else metric, counts).counts)


def series_of(metric: str, counts: ArmCounts) -> Series:
    """Raises: UnknownMetricError; of quantiles too, which are no ratio of sums."""
    if metric == "error_rate":
        return Series(counts.errors, counts.requests)
    if metric in LATENCIES:
        timing = timing_of(metric, counts)
        return Series(timing.seconds, timing.count, counts.request_bytes, counts.requests)
    if metric == "output_tokens":
        return Series(counts.output_tokens, counts.generations, counts.request_bytes, counts.requests)
    if metric.startswith(FEEDBACK):
        said = counts.feedback.get(metric.removeprefix(FEEDBACK))
        return Series(said.total, said.count) if said else Series(_ZEROS, _ZEROS)
    raise UnknownMetricError(metric)

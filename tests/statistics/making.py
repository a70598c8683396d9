"""Counts of arms, as traffic leaves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gateway.observability.arm_stats import NUM_BUCKETS, ArmCounts, ArmKey, Feedback, LatencyStats, bin_of
from gateway.statistics.values import Stratum

CONTROL, ARM = "control", "candidate"


def buckets_of(num: int, dice: np.random.Generator, requests_of_unit: int = 1) -> np.ndarray:
    """The buckets of `num` requests, of units that send `requests_of_unit` each."""
    return np.repeat(dice.integers(0, NUM_BUCKETS, -(-num // requests_of_unit)), requests_of_unit)[:num]


def arm_counts(
    name: str,
    buckets: np.ndarray | Sequence[int],
    errors: np.ndarray | Sequence[bool] | None = None,
    seconds: np.ndarray | Sequence[float] | None = None,
    sizes: np.ndarray | Sequence[float] | None = None,
    values: np.ndarray | Sequence[float] | None = None,
    units: Sequence[int] = (),
) -> ArmCounts:
    """The counts of requests with these buckets; `values` are feedback named rating, one for each request."""
    counts = ArmCounts(ArmKey("x", name))
    places = np.asarray(buckets, dtype=int)
    counts.requests = _ints(places)
    if errors is not None:
        counts.errors = _ints(places[np.asarray(errors, dtype=bool)])
    if sizes is not None:
        counts.request_bytes = _sums(places, sizes)
    if seconds is not None:
        for timing in (counts.latency, counts.first_token, counts.per_token):
            fill(timing, places, seconds)
        counts.output_tokens = [round(1000 * each) for each in counts.latency.seconds]
        counts.generations = _ints(places)
    if values is not None:
        squares = float(np.sum(np.asarray(values) ** 2))
        counts.feedback["rating"] = Feedback(_ints(places), _sums(places, values), squares, {})
    counts.units = _ints(np.asarray(units, dtype=int))
    return counts


def fill(timing: LatencyStats, places: np.ndarray, seconds: np.ndarray | Sequence[float]) -> None:
    timing.count = _ints(places)
    timing.seconds = _sums(places, seconds)
    timing.bins = {}
    for each in seconds:
        number = bin_of(float(each))
        timing.bins[number] = timing.bins.get(number, 0) + 1


def stratum(*arms: ArmCounts, shares: Mapping[str, float] | None = None) -> Stratum:
    """One period; shares are equal by default."""
    equal = {each.key.arm: 1 / len(arms) for each in arms}
    return Stratum({each.key.arm: each for each in arms}, shares or equal)


def _ints(places: np.ndarray) -> list[int]:
    return [int(each) for each in np.bincount(places, minlength=NUM_BUCKETS)]


def _sums(places: np.ndarray, values: np.ndarray | Sequence[float]) -> list[float]:
    return [float(each) for each in np.bincount(places, weights=np.asarray(values, float), minlength=NUM_BUCKETS)]

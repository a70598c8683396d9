"""Traffic of many experiments, and its counts, look by look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.power_formulas import Array, Counts, Pair
from bench.power_quantiles import Bins
from gateway.observability.arm_stats import NUM_BUCKETS


@dataclass(frozen=True, slots=True)
class Traffic:
    """The arrival of requests, and the arms' effects. Looks are a second apart."""

    rate: float = 20.0  # requests a second, of both arms
    seconds: int = 600
    ramp: Sequence[tuple[int, float]] = ((0, 0.5),)  # the arm's share from each second on
    unit: str = "request"  # request | session: of a few to hundreds of requests | user: `users` send all, all the time
    users: int = 60
    error_rate: float = 0.01
    harm: float = 0.0  # added to the arm's error rate
    slower: float = 1.0  # factor of the arm's latencies over the control's
    deviation: float = 0.5  # of latencies' logarithms
    drift: float = 1.0  # factor by which error rate and latency have grown at the end
    unit_deviation: float = 0.5  # of the logarithm of the common part of a session's or a user's latencies
    by_size: float = 0.0  # the power of its size by which a request's latency grows
    lost: float = 0.0  # share of the arm's units that never arrive


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of all experiments, one after another."""

    experiment: Array
    second: Array
    bucket: Array
    period: Array
    is_arm: Array
    is_error: Array
    seconds: Array
    size: Array
    is_first: Array  # of its unit

    def __len__(self) -> int:
        return len(self.second)


# The length of sessions has a Pareto distribution: half are below 4 requests, one in a thousand above 150.
_LEAST_LENGTH, _TAIL, _LONGEST = 2.0, 1.5, 1000
_PAUSE_SECONDS = 3.0
# This share of the sessions has trouble: all errors are theirs, except those that an arm adds.
_IN_TROUBLE = 0.1


def requests(of: Traffic, num_experiments: int, dice: np.random.Generator) -> Requests:
    if of.unit == "request":
        experiment = np.repeat(np.arange(num_experiments), dice.poisson(of.rate * of.seconds, num_experiments))
        num = len(experiment)
        unit, start = np.arange(num), dice.uniform(0, of.seconds, num)
        second, common, trouble = start, np.zeros(num), np.ones(num)
    elif of.unit == "user":
        experiment, unit, start, second, common, trouble = _users(of, num_experiments, dice)
    else:
        experiment, unit, start, second, common, trouble = _sessions(of, num_experiments, dice)
    num, num_units = len(second), int(unit.max()) + 1
    period = np.searchsorted([begins for begins, _ in of.ramp], start, side="right") - 1
    share = np.array([share for _, share in of.ramp])[period]
    # Nested intervals, as the gateway assigns: a unit keeps its arm when the share grows.
    is_arm = dice.random(num_units)[unit] < share
    time = second / of.seconds
    drift = of.drift**time
    size = dice.lognormal(6, 1, num)
    chance = np.minimum(of.error_rate * drift * trouble + of.harm * is_arm, 1.0)
    seconds = 0.1 * drift * np.exp(of.deviation * dice.standard_normal(num) + common)
    seconds *= np.where(is_arm, of.slower, 1.0) * (size / np.exp(6)) ** of.by_size
    _, first = np.unique(unit, return_index=True)
    is_first = np.zeros(num, bool)
    is_first[first] = True
    seen = Requests(
        experiment,
        second.astype(int),
        dice.integers(0, NUM_BUCKETS, num_units)[unit],
        np.searchsorted([begins for begins, _ in of.ramp], second, side="right") - 1,
        is_arm,
        dice.random(num) < chance,
        seconds,
        size,
        is_first,
    )
    if not of.lost:
        return seen
    kept = ~(is_arm & (dice.random(num_units)[unit] < of.lost))
    return Requests(*(getattr(seen, name)[kept] for name in Requests.__slots__))


def _users(of: Traffic, num_experiments: int, dice: np.random.Generator) -> tuple[Array, ...]:
    """Some users send ten times as much as others, each all the time."""
    nums = dice.poisson(of.rate * of.seconds, num_experiments)
    experiment = np.repeat(np.arange(num_experiments), nums)
    shares = dice.lognormal(0, 1, (num_experiments, of.users))
    drawn = [dice.choice(of.users, num, p=share / share.sum()) for num, share in zip(nums, shares, strict=True)]
    unit = experiment * of.users + np.concatenate(drawn)
    second = dice.uniform(0, of.seconds, len(unit))
    order = np.lexsort((second, experiment))
    unit, second = unit[order], second[order]
    num_units = num_experiments * of.users
    common = of.unit_deviation * dice.standard_normal(num_units)
    trouble = (dice.random(num_units) < _IN_TROUBLE) / _IN_TROUBLE
    return experiment, unit, np.zeros(len(unit)), second, common[unit], trouble[unit]


def _sessions(of: Traffic, num_experiments: int, dice: np.random.Generator) -> tuple[Array, ...]:
    mean = _LEAST_LENGTH * _TAIL / (_TAIL - 1)
    of_unit = np.repeat(np.arange(num_experiments), dice.poisson(of.rate * of.seconds / mean, num_experiments))
    num_units = len(of_unit)
    length = np.minimum(_LEAST_LENGTH * (1 + dice.pareto(_TAIL, num_units)), _LONGEST).astype(int)
    unit = np.repeat(np.arange(num_units), length)
    begin = dice.uniform(0, of.seconds, num_units)
    pause = dice.exponential(_PAUSE_SECONDS, len(unit))
    pause[np.concatenate([[0], np.cumsum(length)[:-1]])] = 0.0
    waited = np.cumsum(pause)
    second = begin[unit] + waited - waited[np.concatenate([[0], np.cumsum(length)[:-1]])][unit]
    is_in = second < of.seconds
    unit, second = unit[is_in], second[is_in]
    common = of.unit_deviation * dice.standard_normal(num_units)
    trouble = (dice.random(num_units) < _IN_TROUBLE) / _IN_TROUBLE
    return of_unit[unit], unit, begin[unit], second, common[unit], trouble[unit]


def counted(of: Traffic, seen: Requests, values: Array, num: int, among: Array | None = None) -> list[Pair]:
    """By period and arm: sums of `values` and numbers of requests by bucket, at the end of each second."""
    pairs = []
    for period in range(len(of.ramp)):
        arms = []
        for is_arm in (False, True):
            is_here = (seen.is_arm == is_arm) & (seen.period == period)
            one = is_here if among is None else is_here & among
            arms.append(
                Counts(
                    _summed(of, seen, one, num, values),
                    _summed(of, seen, one, num),
                    _summed(of, seen, is_here, num, seen.size) if of.by_size else None,
                    _summed(of, seen, is_here, num) if of.by_size else None,
                )
            )
        pairs.append((arms[0], arms[1]))
    return pairs


def units(of: Traffic, seen: Requests, num: int) -> list[tuple[Array, Array]]:
    """By period: units of the control and of the arm that were seen first in it."""
    found = []
    for period in range(len(of.ramp)):
        both = []
        for is_arm in (False, True):
            is_here = (seen.is_arm == is_arm) & (seen.period == period) & seen.is_first
            place = seen.experiment[is_here] * of.seconds + seen.second[is_here]
            firsts = np.bincount(place, minlength=num * of.seconds).reshape(num, of.seconds)
            both.append(np.cumsum(firsts, 1).astype(float))
        found.append((both[0], both[1]))
    return found


def binned(of: Traffic, seen: Requests, num: int) -> tuple[Bins, Bins]:
    """The latencies' bins of both arms, for one period."""
    number = np.where(seen.seconds <= 1e-5, 0, (np.log(seen.seconds / 1e-5) / 0.05).astype(int) + 1)
    first, width = int(number.min()), int(np.ptp(number)) + 1
    pair = counted(of, seen, seen.seconds, num)[0]
    both = []
    for is_arm in (False, True):
        is_here = seen.is_arm == is_arm
        place = (seen.experiment[is_here] * of.seconds + seen.second[is_here]) * width + number[is_here] - first
        bins = np.bincount(place, minlength=num * of.seconds * width).reshape(num, of.seconds, width)
        both.append(Bins(first, np.cumsum(bins, 1, dtype=np.int32), pair[is_arm]))
    return both[0], both[1]


def _summed(of: Traffic, seen: Requests, which: Array, num: int, values: Array | None = None) -> Array:
    place = (seen.experiment[which] * of.seconds + seen.second[which]) * NUM_BUCKETS + seen.bucket[which]
    weights = values[which].astype(float) if values is not None else None
    sums = np.bincount(place, weights, num * of.seconds * NUM_BUCKETS)
    return np.cumsum(sums.reshape(num, of.seconds, NUM_BUCKETS).astype(float), 1)

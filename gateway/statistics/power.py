"""How much traffic an experiment needs to see what somebody wants to see."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, erf, sqrt

from gateway.statistics.confidence_sequences import boundary
from gateway.statistics.means import ENOUGH
from gateway.statistics.rates import ENOUGH_EVENTS, EXACT

_MOST = 1e15


def needed(
    difference: float,
    deviation: float,
    share: float = 0.5,
    alpha: float = 0.05,
    power: float = 0.8,
    design_effect: float = 1.0,
) -> int:
    """Requests of both arms together until a true difference of means is found with a chance of `power`.

    `deviation` is a single request's standard deviation, `share` the arm's of both arms' requests, `design_effect` the
    variance between units over that of independent requests (1 for unit: request). A little more than is needed: looks
    before the last one count for nothing here (scripts/bench/experiment_power.py says how much they do).
    """
    if not difference or not 0 < share < 1:
        return int(_MOST)

    def is_enough(num: float) -> bool:
        time = num * share * (1 - share)
        errors = abs(difference) / deviation * sqrt(time / design_effect)
        return min(share, 1 - share) * num >= ENOUGH and errors >= boundary(time, alpha) + _normal_quantile(power)

    return _least(is_enough)


def needed_for_rate(
    before: float,
    after: float,
    share: float = 0.5,
    alpha: float = 0.05,
    power: float = 0.8,
    design_effect: float = 1.0,
) -> int:
    """The same for shares of requests, such as error rates; part of alpha is the exact sequence's."""
    middle = before + share * (after - before)
    deviation = sqrt(share * before * (1 - before) + (1 - share) * after * (1 - after))
    events = ENOUGH_EVENTS * design_effect / (min(share, 1 - share) * min(middle, 1 - middle))
    return max(needed(after - before, deviation, share, (1 - EXACT) * alpha, power, design_effect), ceil(events))


def _least(is_enough: Callable[[float], bool]) -> int:
    low, high = 1.0, 2.0
    while not is_enough(high) and high < _MOST:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return int(high)


def _normal_quantile(probability: float) -> float:
    low, high = -10.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        if (1 + erf(middle / sqrt(2))) / 2 < probability:
            low = middle
        else:
            high = middle
    return high

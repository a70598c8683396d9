"""Balancing policies: how an engine chooses among its endpoints.

A policy gets the endpoints that may serve, never none, and returns one. How busy an endpoint is counts the worker's own
requests in flight and those of others, as far as the engine reports them.

Weights are relative to their mean (`shares`), so that the measure stays a number of requests: an endpoint of twice the
mean weight with ten is as busy as one of the mean with five.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import count
from math import log
from typing import NamedTuple

from gateway.config.engine_specs import Balance, EndpointSpec
from gateway.upstream.endpoint import Endpoint

# The price of an endpoint whose first reply is still awaited: above that of any endpoint that has answered.
_UNKNOWN_SECONDS = 1e9
# Stands for a weight of 0: such endpoints are chosen when no other is left.
_LEAST_WEIGHT = 1e-6

Choose = Callable[[Sequence[Endpoint], str | None], Endpoint]


class Draw(NamedTuple):
    """Random choices, by weight or with equal chances, which are cheaper."""

    is_weighted: bool
    one: Callable[[Sequence[Endpoint]], Endpoint]
    two: Callable[[Sequence[Endpoint]], tuple[Endpoint, Endpoint]]  # the same one twice where there is only one


def shares(endpoints: Sequence[EndpointSpec]) -> dict[str, float] | None:
    """Each endpoint's weight relative to the mean, by its URL; None where all are equal."""
    weights = {endpoint.url: endpoint.weight for endpoint in endpoints}
    if len(set(weights.values())) < 2:
        return None
    positive = [weight for weight in weights.values() if weight]
    mean = sum(positive) / len(positive)
    return {url: weight / mean if weight else _LEAST_WEIGHT for url, weight in weights.items()}


def round_robin(draw: Draw) -> Choose:
    """One after the other; by weights as evenly as these allow.

    Source: nginx's smooth weighted round robin.
    """
    turns = count(random.randrange(1 << 16))  # workers do not start in step
    credit: dict[Endpoint, float] = {}

    def choose(endpoints: Sequence[Endpoint], session: str | None) -> Endpoint:
        return endpoints[next(turns) % len(endpoints)]

    def choose_by_weight(endpoints: Sequence[Endpoint], session: str | None) -> Endpoint:
        total = sum(endpoint.weight for endpoint in endpoints)
        for endpoint in endpoints:
            credit[endpoint] = credit.get(endpoint, random.random() * total) + endpoint.weight
        chosen = max(endpoints, key=credit.__getitem__)
        credit[chosen] -= total
        return chosen

    return choose_by_weight if draw.is_weighted else choose


def least_outstanding(draw: Draw) -> Choose:
    """The one with the fewest requests for its weight; equal ones are drawn, so that idle endpoints share the work."""

    def choose(endpoints: Sequence[Endpoint], session: str | None) -> Endpoint:
        fewest = min(endpoint.pressure for endpoint in endpoints)
        return draw.one([endpoint for endpoint in endpoints if endpoint.pressure == fewest])

    return choose


def power_of_two(draw: Draw) -> Choose:
    """The less busy of two drawn.

    Source: Mitzenmacher, The Power of Two Choices in Randomized Load Balancing (2001).
    """

    def choose(endpoints: Sequence[Endpoint], session: str | None) -> Endpoint:
        one, other = draw.two(endpoints)
        return one if one.pressure <= other.pressure else other

    return choose


def latency(draw: Draw) -> Choose:
    """Of two drawn the one with the lower expected time: peak EWMA of latency x (requests there + 1).

    Source: Finagle's PeakEwma. An endpoint without a measured latency is tried first, by one request at a time: one
    that never answers must not attract all of them.
    """

    def choose(endpoints: Sequence[Endpoint], session: str | None) -> Endpoint:
        one, other = draw.two(endpoints)
        return one if _expected_seconds(one) <= _expected_seconds(other) else other

    return choose


def by_session(draw: Draw) -> Choose:
    """Weighted rendezvous hashing: a session has the same endpoint on every worker, and an endpoint that leaves, or
    whose weight changes, moves only its own sessions. Requests without a session go by power of two.

    Source: Thaler and Ravishankar, Using Name-Based Mappings to Increase Hit Rates (1998); Schindelhauer and Schomaker,
    Weighted Distributed Hash Tables (2005): the logarithmic method.
    """
    choose_any = power_of_two(draw)

    def choose(endpoints: Sequence[Endpoint], session: str | None) -> Endpoint:
        if session is None:
            return choose_any(endpoints, session)

        def score(endpoint: Endpoint) -> float:
            digest = blake2b(f"{endpoint.url}\0{session}".encode(), digest_size=8).digest()
            return -endpoint.share / log((int.from_bytes(digest, "big") + 0.5) / 2.0**64)

        return max(endpoints, key=score)

    return choose


# `gateway.config.engine_specs.Balance` describes each. `prefix`: for requests without a prompt; see `prefix_index`.
POLICIES: dict[Balance, Callable[[Draw], Choose]] = {
    Balance.ROUND_ROBIN: round_robin,
    Balance.LEAST_OUTSTANDING: least_outstanding,
    Balance.POWER_OF_TWO: power_of_two,
    Balance.LATENCY: latency,
    Balance.SESSION: by_session,
    Balance.PREFIX: least_outstanding,
}


def _expected_seconds(endpoint: Endpoint) -> float:
    if not endpoint.latency:
        return endpoint.in_flight * _UNKNOWN_SECONDS
    return endpoint.latency * (endpoint.pressure + 1)


def _draw_two_evenly(endpoints: Sequence[Endpoint]) -> tuple[Endpoint, Endpoint]:
    size = len(endpoints)
    if size == 1:
        return endpoints[0], endpoints[0]
    first = int(random.random() * size)
    second = int(random.random() * (size - 1))
    return endpoints[first], endpoints[second + (second >= first)]


def _draw_by_weight(endpoints: Sequence[Endpoint]) -> Endpoint:
    if len(endpoints) == 1:
        return endpoints[0]
    return random.choices(endpoints, [endpoint.weight for endpoint in endpoints])[0]


def _draw_two_by_weight(endpoints: Sequence[Endpoint]) -> tuple[Endpoint, Endpoint]:
    first = _draw_by_weight(endpoints)
    rest = [endpoint for endpoint in endpoints if endpoint is not first]
    return first, _draw_by_weight(rest) if rest else first


EVENLY = Draw(False, random.choice, _draw_two_evenly)
BY_WEIGHT = Draw(True, _draw_by_weight, _draw_two_by_weight)

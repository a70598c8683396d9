"""Choosing among endpoints of which some are to get more of the work than others, each by its weight.

Weights are relative to their mean (`shares`), so that how busy an endpoint is stays a number of requests: one of twice
the mean weight with ten is as busy as one of the mean with five. Where all weights are equal nobody comes here.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from math import log

from gateway.config.specs import Balance, EndpointSpec
from gateway.upstream.balancing import Choose
from gateway.upstream.endpoint import Endpoint

# Stands for a weight of 0: such an endpoint is chosen among others of its kind, when nobody else is left.
_LEAST = 1e-6
_UNKNOWN_SECONDS = 1e9  # as in `gateway.upstream.balancing`


def shares(endpoints: Sequence[EndpointSpec]) -> dict[str, float] | None:
    """Each endpoint's weight relative to the mean, by its URL; None where all are equal."""
    weights = {endpoint.url: endpoint.weight for endpoint in endpoints}
    if len(set(weights.values())) < 2:
        return None
    positive = [weight for weight in weights.values() if weight]
    mean = sum(positive) / len(positive)
    return {url: weight / mean if weight else _LEAST for url, weight in weights.items()}


def round_robin() -> Choose:
    """One after the other, those of more weight more often, and as evenly as that can be.

    Source: nginx's smooth weighted round robin.
    """
    credit: dict[Endpoint, float] = {}

    def choose(endpoints: Sequence[Endpoint], session: str | None) -> Endpoint:
        total = sum(endpoint.weight for endpoint in endpoints)
        for endpoint in endpoints:  # workers do not start in step
            credit[endpoint] = credit.get(endpoint, random.random() * total) + endpoint.weight
        chosen = max(endpoints, key=credit.__getitem__)
        credit[chosen] -= total
        return chosen

    return choose


def least_outstanding(endpoints: Sequence[Endpoint], session: str | None) -> Endpoint:
    """The one with the fewest requests for its weight; among equals, as idle ones are, chance by their weights."""
    fewest = min(_pressure(endpoint) for endpoint in endpoints)
    return _draw([endpoint for endpoint in endpoints if _pressure(endpoint) == fewest])


def power_of_two(endpoints: Sequence[Endpoint], session: str | None) -> Endpoint:
    """The less busy for its weight of two drawn by their weights."""
    one, other = _draw_two(endpoints)
    return one if _pressure(one) <= _pressure(other) else other


def latency(endpoints: Sequence[Endpoint], session: str | None) -> Endpoint:
    """Of two drawn by their weights the one that promises to be done sooner."""
    one, other = _draw_two(endpoints)
    return one if _seconds_promised(one) <= _seconds_promised(other) else other


def by_session(endpoints: Sequence[Endpoint], session: str | None) -> Endpoint:
    """Weighted rendezvous hashing: an endpoint whose weight changes takes, or gives away, its own sessions alone; where
    all weights are equal it comes to the same as without them.

    Source: Schindelhauer and Schomaker, Weighted Distributed Hash Tables (2005): the logarithmic method.
    """
    if session is None:
        return power_of_two(endpoints, session)

    def score(endpoint: Endpoint) -> float:
        digest = blake2b(f"{endpoint.url}\0{session}".encode(), digest_size=8).digest()
        return -endpoint.weight / log((int.from_bytes(digest, "big") + 0.5) / 2.0**64)

    return max(endpoints, key=score)


def weighted_chooser(balance: Balance) -> Choose:
    """The function that a balance names, by weights; of `prefix` it is that for requests without a prompt."""
    if balance is Balance.ROUND_ROBIN:
        return round_robin()
    return _CHOOSERS[balance]


_CHOOSERS: Mapping[Balance, Choose] = {
    Balance.LEAST_OUTSTANDING: least_outstanding,
    Balance.POWER_OF_TWO: power_of_two,
    Balance.LATENCY: latency,
    Balance.SESSION: by_session,
    Balance.PREFIX: least_outstanding,
}


def _pressure(endpoint: Endpoint) -> float:
    return (endpoint.in_flight + endpoint.others) / endpoint.weight


def _seconds_promised(endpoint: Endpoint) -> float:
    if not endpoint.latency:
        return endpoint.in_flight * _UNKNOWN_SECONDS
    return endpoint.latency * (_pressure(endpoint) + 1)


def _draw(endpoints: Sequence[Endpoint]) -> Endpoint:
    if len(endpoints) == 1:
        return endpoints[0]
    return random.choices(endpoints, [endpoint.weight for endpoint in endpoints])[0]


def _draw_two(endpoints: Sequence[Endpoint]) -> tuple[Endpoint, Endpoint]:
    first = _draw(endpoints)
    rest = [endpoint for endpoint in endpoints if endpoint is not first]
    return first, _draw(rest) if rest else first

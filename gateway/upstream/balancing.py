"""Choosing among endpoints. Each function takes those that may serve, never none, and returns one.

How busy an endpoint is: the worker's own requests in flight, and those that others have there, as far as the engine
tells.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import count

from gateway.config.specs import Balance
from gateway.upstream.endpoint import Endpoint

# Where a first reply is waited for, nothing is known: a price above that of any endpoint that answers.
_UNKNOWN_SECONDS = 1e9

Choose = Callable[[Sequence[Endpoint], str | None], Endpoint]


def round_robin() -> Choose:
    """One after the other."""
    turns = count(random.randrange(1 << 16))  # workers do not start in step

    def choose(endpoints: Sequence[Endpoint], session: str | None) -> Endpoint:
        return endpoints[next(turns) % len(endpoints)]

    return choose


def least_outstanding(endpoints: Sequence[Endpoint], session: str | None) -> Endpoint:
    """The one with the fewest requests; chance among equals, so that idle endpoints share the work."""
    fewest = min(endpoint.in_flight + endpoint.others for endpoint in endpoints)
    return random.choice([endpoint for endpoint in endpoints if endpoint.in_flight + endpoint.others == fewest])


def power_of_two(endpoints: Sequence[Endpoint], session: str | None) -> Endpoint:
    """The less busy of two drawn by chance.

    Source: Mitzenmacher, The Power of Two Choices in Randomized Load Balancing (2001).
    """
    one, other = _draw_two(endpoints)
    return one if one.in_flight + one.others <= other.in_flight + other.others else other


def latency(endpoints: Sequence[Endpoint], session: str | None) -> Endpoint:
    """Of two drawn by chance the one that promises to be done sooner: peak EWMA of latency x (requests there + 1).

    Source: Finagle's PeakEwma. An endpoint without a measured latency is tried first, by one request at a time: one
    that never answers must not draw all of them.
    """
    one, other = _draw_two(endpoints)
    return one if _seconds_promised(one) <= _seconds_promised(other) else other


def by_session(endpoints: Sequence[Endpoint], session: str | None) -> Endpoint:
    """Rendezvous hashing: the same session finds the same endpoint on every worker and machine, and an endpoint that
    goes takes only its own sessions with it. Requests without a session go by power of two.

    Source: Thaler and Ravishankar, Using Name-Based Mappings to Increase Hit Rates (1998).
    """
    if session is None:
        return power_of_two(endpoints, session)
    return max(endpoints, key=lambda endpoint: blake2b(f"{endpoint.url}\0{session}".encode(), digest_size=8).digest())


def chooser(balance: Balance) -> Choose:
    """The function that a balance names; of `prefix` it is that for requests without a prompt."""
    if balance is Balance.ROUND_ROBIN:
        return round_robin()
    return _CHOOSERS[balance]


_CHOOSERS: dict[Balance, Choose] = {
    Balance.LEAST_OUTSTANDING: least_outstanding,
    Balance.POWER_OF_TWO: power_of_two,
    Balance.LATENCY: latency,
    Balance.SESSION: by_session,
    Balance.PREFIX: least_outstanding,
}


def _seconds_promised(endpoint: Endpoint) -> float:
    if not endpoint.latency:
        return endpoint.in_flight * _UNKNOWN_SECONDS
    return endpoint.latency * (endpoint.in_flight + endpoint.others + 1)


def _draw_two(endpoints: Sequence[Endpoint]) -> tuple[Endpoint, Endpoint]:
    size = len(endpoints)
    if size == 1:
        return endpoints[0], endpoints[0]
    first = int(random.random() * size)
    second = int(random.random() * (size - 1))
    return endpoints[first], endpoints[second + (second >= first)]

"""Levels of an engine's endpoints: which of them get work while those that come first are healthy.

A level is a priority, and within it the endpoints of the gateway's own zone come before all others. Source: Envoy's
priority levels with their overprovisioning factor, of which `healthy_share` is the inverse.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from zlib import crc32

from gateway.config.engine_specs import EndpointSpec, LocalitySpec
from gateway.upstream.endpoint import Endpoint


class Levels:
    """The levels of one engine's endpoints, the first one first; `preferred` are the endpoints of that one."""

    __slots__ = ("_counted", "_enough", "_healthy_share", "_level", "_num", "preferred")

    def __init__(self, level: Mapping[Endpoint, int], counted: Collection[Endpoint], healthy_share: float) -> None:
        """`level` is that of each endpoint; `counted` are those that are to get work."""
        self._num = max(level.values()) + 1
        self._level = level
        self._counted = counted
        self._healthy_share = healthy_share
        self.preferred = [endpoint for endpoint, place in level.items() if place == 0]
        # So many of the first level take all work, whatever model they are to serve
        self._enough = max(1.0, healthy_share * sum(endpoint in counted for endpoint in self.preferred))

    def choose(self, able: Sequence[Endpoint], served: Iterable[Endpoint], session: str | None) -> list[Endpoint]:
        """Those of the `able` endpoints, of which there is one at least, that are in the level of this request: one of
        the same session gets the same while health stays. `served` are the endpoints that could serve the request,
        whatever their health."""
        level = self._level
        first = [endpoint for endpoint in able if not level[endpoint]]
        if len(first) >= self._enough:  # mostly
            return first
        found: list[list[Endpoint]] = [[] for _ in range(self._num)]
        for endpoint in able:
            found[self._level[endpoint]].append(endpoint)
        numbers = [0] * self._num
        for endpoint in served:
            numbers[self._level[endpoint]] += endpoint in self._counted
        health = [min(1.0, len(here) / (number or 1)) for here, number in zip(found, numbers, strict=True)]
        point = random.random() if session is None else crc32(session.encode()) / 2**32
        for here, load in zip(found, loads(health, self._healthy_share), strict=True):
            point -= load
            if point < 0:
                return here
        return next(here for here in reversed(found) if here)  # rounding has left a rest


def levels_of(spec: LocalitySpec, endpoints: Sequence[Endpoint], declared: Collection[EndpointSpec]) -> Levels | None:
    """The levels of these endpoints, each of which is declared; None where all are in one."""
    ranks = [(each.priority, spec.zone is not None and each.zone != spec.zone) for each in declared]
    levels = {rank: place for place, rank in enumerate(sorted(set(ranks)))}
    if len(levels) < 2:
        return None
    level = {endpoint: levels[rank] for endpoint, rank in zip(endpoints, ranks, strict=True)}
    counted = {endpoint for endpoint, each in zip(endpoints, declared, strict=True) if each.weight}
    return Levels(level, counted, spec.healthy_share)


def loads(health: Sequence[float], healthy_share: float) -> list[float]:
    """The share of the work that each level gets, in sum 1; `health` is the healthy share of each one's endpoints.

    A level of which `healthy_share` is healthy takes all that is left to it, one with less takes as much less. Where
    all levels together are short of endpoints, each gets its part of the whole."""
    scores = [min(1.0, each / healthy_share) for each in health]
    total = sum(scores)
    if 0.0 < total < 1.0:
        return [score / total for score in scores]
    found, left = [], 1.0
    for score in scores:
        found.append(min(score, left))
        left -= found[-1]
    return found

"""Slow start: the share of an endpoint that joins its engine, or recovers, grows to its full one.

Source: Envoy's slow start mode, with its least share and a linear ramp.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.config.engine_specs import EngineSpec
from gateway.upstream.endpoint import NOT_READY, Endpoint

_LEAST_SHARE = 0.1


def observe_ready(spec: EngineSpec, endpoints: Iterable[Endpoint], now: float) -> None:
    """Note since when endpoints are ready; without probes, since when they are there."""
    for endpoint in endpoints:
        condition = endpoint.condition
        if condition in NOT_READY or (condition is None and spec.health.interval):
            endpoint.ready_since = None
        elif endpoint.ready_since is None:
            endpoint.ready_since = now


def ramped(
    spec: EngineSpec, endpoints: Iterable[Endpoint], weights: Mapping[str, float] | None, now: float
) -> Mapping[str, float] | None:
    """The weights of the moment by URL, None where all are equal; `weights` are those by the rules. Where all endpoints
    start together, each has its share of the rules."""
    factors = {
        endpoint.url: _LEAST_SHARE
        if endpoint.ready_since is None
        else min(1.0, max(_LEAST_SHARE, (now - endpoint.ready_since) / spec.slow_start))
        for endpoint in endpoints
    }
    if len(set(factors.values())) < 2:
        return weights
    return {url: factor * (weights[url] if weights is not None else 1.0) for url, factor in factors.items()}

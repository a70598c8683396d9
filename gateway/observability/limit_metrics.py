"""Limits as Prometheus' metrics; by limit alone, since whom a limit tells apart may be any number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gateway.observability.limit_stats import LimitSnapshot
from gateway.protocol import prometheus_text
from gateway.protocol.prometheus_text import PrometheusFamily

_COUNTERS: dict[str, tuple[str, Callable[[LimitSnapshot], int]]] = {
    "limit_admitted": ("Requests that a limit let go.", lambda limit: limit.admitted),
    "limit_refused": ("Requests that a limit refused.", lambda limit: limit.refused),
    "limit_waited": ("Requests of both that waited for Redis first.", lambda limit: limit.waited),
}
_GAUGES: dict[str, tuple[str, Callable[[LimitSnapshot], float]]] = {
    "limit_in_use": ("Requests under way that hold a slot of a limit.", lambda limit: limit.in_use),
    "limit_accounts": ("Those whom a limit tells apart, by worker.", lambda limit: limit.accounts),
    "limit_shared": ("Whether Redis decides; 0: some worker keeps to its own share.", lambda limit: limit.is_shared),
}


def limit_metrics(limits: Mapping[str, LimitSnapshot]) -> Iterator[PrometheusFamily]:
    """The metrics of all limits."""
    for name, (text, count) in _COUNTERS.items():
        counter = prometheus_text.counter(f"pointsman_{name}", text, labels=["limit"])
        for limit in limits.values():
            counter.add([limit.name], count(limit))
        yield counter
    for name, (text, value) in _GAUGES.items():
        gauge = prometheus_text.gauge(f"pointsman_{name}", text, labels=["limit"])
        for limit in limits.values():
            gauge.add([limit.name], value(limit))
        yield gauge

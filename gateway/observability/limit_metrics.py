"""Limits as Prometheus' metrics; by limit alone, since whom a limit tells apart may be any number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.observability.limit_stats import LimitSnapshot

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


def limit_metrics(limits: Mapping[str, LimitSnapshot]) -> Iterator[Metric]:
    """The metrics of all limits."""
    for name, (text, count) in _COUNTERS.items():
        counter = CounterMetricFamily(f"pointsman_{name}", text, labels=["limit"])
        for limit in limits.values():
            counter.add_metric([limit.name], count(limit))
        yield counter
    for name, (text, value) in _GAUGES.items():
        gauge = GaugeMetricFamily(f"pointsman_{name}", text, labels=["limit"])
        for limit in limits.values():
            gauge.add_metric([limit.name], value(limit))
        yield gauge

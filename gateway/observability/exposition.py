"""The counters of all workers as Prometheus' text."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.observability.exemplars import Exemplars
from gateway.observability.exposition_state import ExpositionState
from gateway.observability.metric_table import GROUPS, Metric
from gateway.protocol import prometheus_text
from gateway.protocol.prometheus_text import PrometheusFamily


def render(state: ExpositionState) -> bytes:
    return prometheus_text.write(_families(state))


def render_openmetrics(state: ExpositionState, exemplars: Exemplars) -> bytes:
    """The same in OpenMetrics, with exemplars."""
    return prometheus_text.write_openmetrics(_families(state), exemplars.text)


def _families(state: ExpositionState) -> Iterator[PrometheusFamily]:
    for is_present, metrics in GROUPS:
        if is_present(state):
            yield from (metric.family(state) for metric in metrics)


def all_metrics() -> Iterator[Metric]:
    """Each metric that a gateway may show, for the documentation and its checks."""
    for _, metrics in GROUPS:
        yield from metrics

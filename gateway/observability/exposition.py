"""The counters of all workers as Prometheus' text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.observability.arm_metrics import arm_metrics
from gateway.observability.arm_stats import ArmCounts, ArmKey
from gateway.observability.experiment_metrics import RunFacts, run_metrics
from gateway.observability.limit_metrics import limit_metrics
from gateway.observability.limit_stats import LimitSnapshot
from gateway.observability.metrics import SeriesKey, SeriesSnapshot
from gateway.observability.redis_stats import StoreUse
from gateway.observability.session_stats import SessionUse, session_metrics
from gateway.observability.shadow_metrics import ShadowCounts, shadow_metrics
from gateway.observability.store_metrics import store_metrics
from gateway.observability.token_metrics import LABELS, buckets, labels_of, token_metrics
from gateway.protocol.engine_load import Load
from gateway.protocol.readiness import Readiness

CONTENT_TYPE = CONTENT_TYPE_LATEST

_PLACE = ("engine", "endpoint")


@dataclass(frozen=True, slots=True)
class ExpositionState:
    """All that is told: the sum of the workers' counters, and what the control process itself knows."""

    series: Mapping[SeriesKey, SeriesSnapshot]
    connections: int
    health: Mapping[tuple[str, str], Readiness]  # (engine, endpoint) -> what the probes say
    breakers_open: Mapping[tuple[str, str], bool]  # (engine, endpoint) -> left out by some worker
    rules_number: int
    reloads_ok: int
    reloads_refused: int
    workers: int
    worker_restarts: int
    version: str
    models: Mapping[tuple[str, str], frozenset[str]] = field(
        default_factory=dict
    )  # (engine, endpoint) -> what it serves
    loads: Mapping[tuple[str, str], Load] = field(
        default_factory=dict
    )  # (engine, endpoint) -> what it says of its load
    drained: frozenset[tuple[str, str]] = frozenset()  # (engine, endpoint): they get no new work
    store: StoreUse | None = None  # None: there is no Redis
    sessions: SessionUse | None = None  # None: no worker has told
    redis_restarts: int = 0  # of the embedded one
    limits: Mapping[str, LimitSnapshot] = field(default_factory=dict)  # by name
    arms: Mapping[ArmKey, ArmCounts] = field(default_factory=dict)  # of experiments
    runs: Mapping[str, RunFacts] = field(default_factory=dict)  # by experiment
    shadows: Mapping[str, ShadowCounts] = field(default_factory=dict)  # by route
    descriptors: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # by worker's process id: open, at most


def render(state: ExpositionState) -> bytes:
    """The text of one scrape."""
    registry = CollectorRegistry()
    registry.register(_State(state))
    return generate_latest(registry)


class _State(Collector):
    def __init__(self, state: ExpositionState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._histograms()
        series = self._state.series.items()
        yield from token_metrics({key: each.tokens for key, each in series if each.tokens is not None})
        yield from limit_metrics(self._state.limits)
        yield from arm_metrics(self._state.arms.values())
        yield from run_metrics(self._state.runs)
        yield from shadow_metrics(self._state.shadows)
        yield from self._endpoints()
        yield from self._loads()
        if self._state.sessions is not None:
            yield from session_metrics(self._state.sessions)
        if self._state.store is not None:
            yield from store_metrics(self._state.store, self._state.redis_restarts)
        yield from self._process()

    def _requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("pointsman_requests", "Requests answered.", labels=[*LABELS, "status"])
        errors = CounterMetricFamily(
            "pointsman_errors",
            "Requests that the gateway failed or refused, or whose client left.",
            labels=[*LABELS, "reason"],
        )
        for key, series in self._state.series.items():
            labels = labels_of(key)
            for status, number in series.statuses.items():
                requests.add_metric([*labels, str(status)], number)
            for reason, number in series.errors.items():
                errors.add_metric([*labels, reason], number)
        yield requests
        yield errors
        yield self._counter("retries", "Tries after the first one.", lambda series: series.retries)
        yield self._counter("request_bytes", "Bytes of requests' bodies.", lambda series: series.request_bytes)
        yield self._counter("response_bytes", "Bytes of replies' bodies.", lambda series: series.response_bytes)
        yield self._counter(
            "request_messages",
            "Messages of gRPC streams that have ended, to engines.",
            lambda series: series.messages_sent,
        )
        yield self._counter(
            "response_messages",
            "Messages of gRPC streams that have ended, from engines.",
            lambda series: series.messages_received,
        )
        in_flight = GaugeMetricFamily("pointsman_in_flight", "Requests at an endpoint now.", labels=LABELS)
        for key, series in self._state.series.items():
            in_flight.add_metric(labels_of(key), series.in_flight)
        yield in_flight

    def _counter(self, name: str, text: str, value: Callable[[SeriesSnapshot], int]) -> Metric:
        family = CounterMetricFamily(f"pointsman_{name}", text, labels=LABELS)
        for key, series in self._state.series.items():
            family.add_metric(labels_of(key), value(series))
        return family

    def _histograms(self) -> Iterator[Metric]:
        yield self._histogram(
            "request_seconds", "From a request's head to the end of its reply.", lambda series: series.total
        )
        yield self._histogram(
            "first_byte_seconds", "From a request's head to its reply's first byte.", lambda series: series.first_byte
        )
        yield self._histogram(
            "upstream_seconds", "From sending the last try to the end of its reply.", lambda series: series.upstream
        )

    def _histogram(self, name: str, text: str, value: Callable[[SeriesSnapshot], tuple[list[int], float]]) -> Metric:
        family = HistogramMetricFamily(f"pointsman_{name}", text, labels=LABELS)
        for key, series in self._state.series.items():
            counts, total = value(series)
            family.add_metric(labels_of(key), buckets(counts), total)
        return family

    def _endpoints(self) -> Iterator[Metric]:
        healthy = GaugeMetricFamily("pointsman_endpoint_healthy", "Whether it says that it is ready.", labels=_PLACE)
        for key, condition in self._state.health.items():
            healthy.add_metric(key, float(condition is Readiness.READY))
        yield healthy
        breaker = GaugeMetricFamily(
            "pointsman_breaker_open", "Whether a worker leaves it out after failures.", labels=_PLACE
        )
        for key, is_open in self._state.breakers_open.items():
            breaker.add_metric(key, float(is_open))
        yield breaker
        draining = GaugeMetricFamily(
            "pointsman_endpoint_draining", "Whether an operator has it get no new work.", labels=_PLACE
        )
        for key in self._state.breakers_open:
            draining.add_metric(key, float(key in self._state.drained))
        yield draining

    def _loads(self) -> Iterator[Metric]:
        running = GaugeMetricFamily(
            "pointsman_engine_running", "Requests that it runs, by its own word.", labels=_PLACE
        )
        waiting = GaugeMetricFamily(
            "pointsman_engine_waiting", "Requests that wait in it, by its own word.", labels=_PLACE
        )
        kv_use = GaugeMetricFamily(
            "pointsman_engine_kv_use", "Share of its memory for keys and values that is taken.", labels=_PLACE
        )
        for key, load in self._state.loads.items():
            running.add_metric(key, load.running)
            waiting.add_metric(key, load.waiting)
            if load.kv_use is not None:
                kv_use.add_metric(key, load.kv_use)
        yield from (running, waiting, kv_use)

    def _descriptors(self) -> Iterator[Metric]:
        num_open = GaugeMetricFamily("pointsman_open_fds", "Open file descriptors of a worker.", labels=["worker"])
        most = GaugeMetricFamily("pointsman_max_fds", "How many of them it may have open.", labels=["worker"])
        for pid, (used, limit) in self._state.descriptors.items():
            num_open.add_metric([str(pid)], used)
            most.add_metric([str(pid)], limit or math.inf)
        yield from (num_open, most)

    def _process(self) -> Iterator[Metric]:
        state = self._state
        yield GaugeMetricFamily("pointsman_connections", "Open client connections.", value=state.connections)
        yield from self._descriptors()
        yield GaugeMetricFamily("pointsman_rules_number", "The rules' snapshot in force.", value=state.rules_number)
        reloads = CounterMetricFamily("pointsman_rules_reloads", "Readings of changed rule files.", labels=["result"])
        reloads.add_metric(["ok"], state.reloads_ok)
        reloads.add_metric(["refused"], state.reloads_refused)
        yield reloads
        yield GaugeMetricFamily("pointsman_workers", "Workers that serve.", value=state.workers)
        yield CounterMetricFamily(
            "pointsman_worker_restarts", "Workers that died and were replaced.", value=state.worker_restarts
        )
        info = GaugeMetricFamily("pointsman_info", "The version that runs.", labels=["version"])
        info.add_metric([state.version], 1)
        yield info

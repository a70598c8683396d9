"""The counters of all workers as Prometheus' text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from gateway.observability.arm_metrics import arm_metrics
from gateway.observability.arm_stats import ArmCounts, ArmKey
from gateway.observability.experiment_metrics import RunFacts, run_metrics
from gateway.observability.limit_metrics import limit_metrics
from gateway.observability.limit_stats import LimitSnapshot
from gateway.observability.metrics import LATENCY_BOUNDS, SeriesKey, SeriesSnapshot
from gateway.observability.redis_stats import StoreUse
from gateway.observability.session_stats import SessionUse, session_metrics
from gateway.observability.shadow_metrics import ShadowCounts, shadow_metrics
from gateway.observability.store_metrics import store_metrics
from gateway.observability.token_metrics import LABELS, labels_of, token_metrics
from gateway.protocol import prometheus_text
from gateway.protocol.engine_load import Load, Readiness
from gateway.protocol.prometheus_text import PrometheusFamily

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
    return prometheus_text.write(_State(state).collect())


class _State:
    def __init__(self, state: ExpositionState) -> None:
        self._state = state

    def collect(self) -> Iterator[PrometheusFamily]:
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

    def _requests(self) -> Iterator[PrometheusFamily]:
        requests = prometheus_text.counter("pointsman_requests", "Requests answered.", labels=[*LABELS, "status"])
        errors = prometheus_text.counter(
            "pointsman_errors",
            "Requests that the gateway failed or refused, or whose client left.",
            labels=[*LABELS, "reason"],
        )
        for key, series in self._state.series.items():
            labels = labels_of(key)
            for status, number in series.statuses.items():
                requests.add([*labels, str(status)], number)
            for reason, number in series.errors.items():
                errors.add([*labels, reason], number)
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
        in_flight = prometheus_text.gauge("pointsman_in_flight", "Requests at an endpoint now.", labels=LABELS)
        for key, series in self._state.series.items():
            in_flight.add(labels_of(key), series.in_flight)
        yield in_flight

    def _counter(self, name: str, text: str, value: Callable[[SeriesSnapshot], int]) -> PrometheusFamily:
        family = prometheus_text.counter(f"pointsman_{name}", text, labels=LABELS)
        for key, series in self._state.series.items():
            family.add(labels_of(key), value(series))
        return family

    def _histograms(self) -> Iterator[PrometheusFamily]:
        yield self._histogram(
            "request_seconds", "From a request's head to the end of its reply.", lambda series: series.total
        )
        yield self._histogram(
            "first_byte_seconds", "From a request's head to its reply's first byte.", lambda series: series.first_byte
        )
        yield self._histogram(
            "upstream_seconds", "From sending the last try to the end of its reply.", lambda series: series.upstream
        )

    def _histogram(
        self, name: str, text: str, value: Callable[[SeriesSnapshot], tuple[list[int], float]]
    ) -> PrometheusFamily:
        family = PrometheusFamily(f"pointsman_{name}", text, "histogram", LABELS)
        for key, series in self._state.series.items():
            counts, total = value(series)
            family.add_histogram(labels_of(key), LATENCY_BOUNDS, counts, total)
        return family

    def _endpoints(self) -> Iterator[PrometheusFamily]:
        healthy = prometheus_text.gauge(
            "pointsman_endpoint_healthy", "Whether it says that it is ready.", labels=_PLACE
        )
        for key, condition in self._state.health.items():
            healthy.add(key, float(condition is Readiness.READY))
        yield healthy
        breaker = prometheus_text.gauge(
            "pointsman_breaker_open", "Whether a worker leaves it out after failures.", labels=_PLACE
        )
        for key, is_open in self._state.breakers_open.items():
            breaker.add(key, float(is_open))
        yield breaker
        draining = prometheus_text.gauge(
            "pointsman_endpoint_draining", "Whether an operator has it get no new work.", labels=_PLACE
        )
        for key in self._state.breakers_open:
            draining.add(key, float(key in self._state.drained))
        yield draining

    def _loads(self) -> Iterator[PrometheusFamily]:
        running = prometheus_text.gauge(
            "pointsman_engine_running", "Requests that it runs, by its own word.", labels=_PLACE
        )
        waiting = prometheus_text.gauge(
            "pointsman_engine_waiting", "Requests that wait in it, by its own word.", labels=_PLACE
        )
        kv_use = prometheus_text.gauge(
            "pointsman_engine_kv_use", "Share of its memory for keys and values that is taken.", labels=_PLACE
        )
        for key, load in self._state.loads.items():
            running.add(key, load.running)
            waiting.add(key, load.waiting)
            if load.kv_use is not None:
                kv_use.add(key, load.kv_use)
        yield from (running, waiting, kv_use)

    def _descriptors(self) -> Iterator[PrometheusFamily]:
        num_open = prometheus_text.gauge("pointsman_open_fds", "Open file descriptors of a worker.", labels=["worker"])
        most = prometheus_text.gauge("pointsman_max_fds", "How many of them it may have open.", labels=["worker"])
        for pid, (used, limit) in self._state.descriptors.items():
            num_open.add([str(pid)], used)
            most.add([str(pid)], limit or math.inf)
        yield from (num_open, most)

    def _process(self) -> Iterator[PrometheusFamily]:
        state = self._state
        yield prometheus_text.gauge("pointsman_connections", "Open client connections.", value=state.connections)
        yield from self._descriptors()
        yield prometheus_text.gauge("pointsman_rules_number", "The rules' snapshot in force.", value=state.rules_number)
        reloads = prometheus_text.counter(
            "pointsman_rules_reloads", "Readings of changed rule files.", labels=["result"]
        )
        reloads.add(["ok"], state.reloads_ok)
        reloads.add(["refused"], state.reloads_refused)
        yield reloads
        yield prometheus_text.gauge("pointsman_workers", "Workers that serve.", value=state.workers)
        yield prometheus_text.counter(
            "pointsman_worker_restarts", "Workers that died and were replaced.", value=state.worker_restarts
        )
        info = prometheus_text.gauge("pointsman_info", "The version that runs.", labels=["version"])
        info.add([state.version], 1)
        yield info

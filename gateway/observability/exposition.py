"""The counters of all workers as Prometheus' text: one table of families."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gateway.observability.arm_stats import ArmCounts, ArmKey
from gateway.observability.metrics import LATENCY_BOUNDS, SeriesKey, SeriesSnapshot, TokensSnapshot
from gateway.observability.stats import LimitSnapshot, RunFacts, SessionUse, ShadowCounts, StoreUse
from gateway.protocol import prometheus_text
from gateway.protocol.engine_load import Load, Readiness
from gateway.protocol.prometheus_text import PrometheusFamily


@dataclass(frozen=True, slots=True)
class ExpositionState:
    """The input of a scrape: the sum of the workers' counters, and values of the control process."""

    series: Mapping[SeriesKey, SeriesSnapshot]
    connections: int
    health: Mapping[tuple[str, str], Readiness]  # by engine and endpoint
    breakers_open: Mapping[tuple[str, str], bool]  # of some worker
    rules_number: int
    reloads_ok: int
    reloads_refused: int
    workers: int
    worker_restarts: int
    version: str
    models: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    loads: Mapping[tuple[str, str], Load] = field(default_factory=dict)
    drained: frozenset[tuple[str, str]] = frozenset()
    store: StoreUse | None = None  # None: there is no Redis
    sessions: SessionUse | None = None  # None: no worker has reported
    redis_restarts: int = 0  # of the embedded one
    limits: Mapping[str, LimitSnapshot] = field(default_factory=dict)  # by name
    arms: Mapping[ArmKey, ArmCounts] = field(default_factory=dict)  # of experiments
    runs: Mapping[str, RunFacts] = field(default_factory=dict)  # by experiment
    shadows: Mapping[str, ShadowCounts] = field(default_factory=dict)  # by route
    descriptors: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # by process id: open, limit


Rows = Iterable[tuple[Iterable[str], Any]]  # label values, and a number or a histogram's counts and sum
RowsOf = Callable[[ExpositionState], Rows]


class _Metric(NamedTuple):
    kind: str  # counter, gauge or histogram
    name: str  # without "pointsman_", and a counter's "_total"
    help: str
    labels: tuple[str, ...]
    rows: RowsOf

    def family(self, state: ExpositionState) -> PrometheusFamily:
        name = f"pointsman_{self.name}_total" if self.kind == "counter" else f"pointsman_{self.name}"
        family = PrometheusFamily(name, self.help, self.kind, self.labels)
        for labels, value in self.rows(state):
            if self.kind == "histogram":
                family.add_histogram(tuple(labels), LATENCY_BOUNDS, *value)
            else:
                family.add(tuple(labels), value)
        return family


def render(state: ExpositionState) -> bytes:
    """The text of one scrape."""
    return prometheus_text.write(_families(state))


def _families(state: ExpositionState) -> Iterator[PrometheusFamily]:
    for is_present, metrics in _GROUPS:
        if is_present(state):
            yield from (metric.family(state) for metric in metrics)


def _labels_of(key: SeriesKey) -> tuple[str, ...]:
    return key.route, key.arm, key.engine, key.endpoint


def _series(value: Callable[[SeriesSnapshot], Any]) -> RowsOf:
    return lambda state: ((_labels_of(key), value(series)) for key, series in state.series.items())


def _counts(values: Callable[[SeriesSnapshot], Mapping[Any, int]]) -> RowsOf:
    """By a further label."""
    return lambda state: (
        ((*_labels_of(key), str(label)), number)
        for key, series in state.series.items()
        for label, number in values(series).items()
    )


def _tokens(value: Callable[[TokensSnapshot], Any]) -> RowsOf:
    return lambda state: (
        (_labels_of(key), value(series.tokens)) for key, series in state.series.items() if series.tokens is not None
    )


def _limits(value: Callable[[LimitSnapshot], float]) -> RowsOf:
    return lambda state: (((limit.name,), value(limit)) for limit in state.limits.values())


def _arms(value: Callable[[ArmCounts], float]) -> RowsOf:
    return lambda state: (((arm.key.experiment, arm.key.arm), value(arm)) for arm in state.arms.values())


def _feedback(value: Callable[[Any], float]) -> RowsOf:
    return lambda state: (
        ((arm.key.experiment, arm.key.arm, name), value(feedback))
        for arm in state.arms.values()
        for name, feedback in arm.feedback.items()
    )


def _shadows(value: Callable[[ShadowCounts], float]) -> RowsOf:
    return lambda state: (((route,), value(counts)) for route, counts in state.shadows.items())


def _shadow_counts(values: Callable[[ShadowCounts], Mapping[str, int]]) -> RowsOf:
    return lambda state: (
        ((route, label), number) for route, counts in state.shadows.items() for label, number in values(counts).items()
    )


def _sessions(value: Callable[[SessionUse], float]) -> RowsOf:
    return lambda state: [((), value(state.sessions))] if state.sessions is not None else []


def _session_counts(values: Callable[[SessionUse], Mapping[Any, int]]) -> RowsOf:
    return lambda state: values(state.sessions).items() if state.sessions is not None else []


def _store(value: Callable[[StoreUse], float]) -> RowsOf:
    return lambda state: [((), value(state.store))] if state.store is not None else []


def _loads(value: Callable[[Load], float | None]) -> RowsOf:
    return lambda state: ((key, number) for key, load in state.loads.items() if (number := value(load)) is not None)


def _one(value: Callable[[ExpositionState], float]) -> RowsOf:
    """A metric without labels."""
    return lambda state: [((), value(state))]


_SERIES = ("route", "arm", "engine", "endpoint")
_PLACE = ("engine", "endpoint")
_ARM = ("experiment", "arm")
_FAILURES = ("late", "failed", "refused", "skipped")


def _c(name: str, help: str, labels: tuple[str, ...], rows: RowsOf) -> _Metric:
    return _Metric("counter", name, help, labels, rows)


def _g(name: str, help: str, labels: tuple[str, ...], rows: RowsOf) -> _Metric:
    return _Metric("gauge", name, help, labels, rows)


def _h(name: str, help: str, rows: RowsOf) -> _Metric:
    return _Metric("histogram", name, help, _SERIES, rows)


_REQUESTS = (
    _c("requests", "Requests answered.", (*_SERIES, "status"), _counts(lambda series: series.statuses)),
    _c(
        "errors",
        "Requests that the gateway failed or refused, or whose client left.",
        (*_SERIES, "reason"),
        _counts(lambda series: series.errors),
    ),
    _c("retries", "Tries after the first one.", _SERIES, _series(lambda series: series.retries)),
    _c("request_bytes", "Bytes of request bodies.", _SERIES, _series(lambda series: series.request_bytes)),
    _c("response_bytes", "Bytes of reply bodies.", _SERIES, _series(lambda series: series.response_bytes)),
    _c("request_messages", "Messages to engines, of ended gRPC streams.", _SERIES, _series(lambda s: s.messages_sent)),
    _c(
        "response_messages",
        "Messages from engines, of ended gRPC streams.",
        _SERIES,
        _series(lambda series: series.messages_received),
    ),
    _g("in_flight", "Requests at an endpoint now.", _SERIES, _series(lambda series: series.in_flight)),
    _h("request_seconds", "From the head of a request to the end of its reply.", _series(lambda s: s.total)),
    _h(
        "first_byte_seconds",
        "From the head of a request to the first byte of its reply.",
        _series(lambda s: s.first_byte),
    ),
    _h("upstream_seconds", "From sending the last try to the end of its reply.", _series(lambda s: s.upstream)),
    _c("prompt_tokens", "Tokens of prompts, as engines counted them.", _SERIES, _tokens(lambda tokens: tokens.prompt)),
    _c("cached_tokens", "Tokens of prompts in the engines' caches.", _SERIES, _tokens(lambda tokens: tokens.cached)),
    _c(
        "completion_tokens",
        "Tokens generated; events, for streams of engines that do not count tokens.",
        _SERIES,
        _tokens(lambda tokens: tokens.completion),
    ),
    _c(
        "cancelled_tokens",
        "Tokens generated for clients that left before the end.",
        _SERIES,
        _tokens(lambda tokens: tokens.cancelled),
    ),
    _c(
        "resumed_generations",
        "Generations that broke off and continued at another endpoint.",
        _SERIES,
        _tokens(lambda tokens: tokens.resumed),
    ),
    _h(
        "first_token_seconds",
        "From the head of a request to the first token of its streamed reply.",
        _tokens(lambda tokens: tokens.first_token),
    ),
    _h("per_token_seconds", "Mean time between the tokens of a streamed reply.", _tokens(lambda t: t.per_token)),
    _h("cancel_seconds", "From a client's leaving to the engine's notification.", _tokens(lambda tokens: tokens.stop)),
    _c("limit_admitted", "Requests that a limit admitted.", ("limit",), _limits(lambda limit: limit.admitted)),
    _c("limit_refused", "Requests that a limit refused.", ("limit",), _limits(lambda limit: limit.refused)),
    _c("limit_waited", "Requests that waited for Redis first.", ("limit",), _limits(lambda limit: limit.waited)),
    _g("limit_in_use", "Requests under way that hold a slot.", ("limit",), _limits(lambda limit: limit.in_use)),
    _g("limit_accounts", "Accounts of a limit in the workers.", ("limit",), _limits(lambda limit: limit.accounts)),
    _g(
        "limit_shared",
        "1: Redis decides; 0: some worker uses its own share.",
        ("limit",),
        _limits(lambda limit: limit.is_shared),
    ),
)
_ARM_METRICS = (
    _c("arm_requests", "Inferences counted for experiments.", _ARM, _arms(lambda arm: sum(arm.requests))),
    _c("arm_errors", "Those that failed.", _ARM, _arms(lambda arm: sum(arm.errors))),
    _c(
        "arm_crossed",
        "Requests answered by another arm's engine after a failover; not counted.",
        _ARM,
        _arms(lambda arm: arm.crossed),
    ),
    _c("arm_forced", "Requests with a forced arm; not counted.", _ARM, _arms(lambda arm: arm.forced)),
    _c("arm_joules", "Energy, where engines report it.", _ARM, _arms(lambda arm: arm.joules)),
    _c("arm_feedback_values", "Values of feedback.", (*_ARM, "name"), _feedback(lambda feedback: sum(feedback.count))),
    _c(
        "arm_feedback_labels",
        "Labels of feedback.",
        (*_ARM, "name"),
        _feedback(lambda feedback: sum(feedback.labels.values())),
    ),
)
_RUN_METRICS = (
    _g(
        "experiment_status",
        "1 for the status of the run.",
        ("experiment", "status"),
        lambda state: (((name, run.status), 1) for name, run in state.runs.items()),
    ),
    _g(
        "experiment_step",
        "The step of the ramp; 0 outside a ramp.",
        ("experiment",),
        lambda state: (((name,), run.step) for name, run in state.runs.items()),
    ),
    _g(
        "arm_share",
        "Share of the experiment's units.",
        _ARM,
        lambda state: (((name, arm), share) for name, run in state.runs.items() for arm, share in run.shares.items()),
    ),
)
_SHADOW_METRICS = (
    _c("shadow_captured", "Requests copied to be mirrored.", ("route",), _shadows(lambda counts: counts.captured)),
    _c("shadow_mirrored", "Requests sent to a candidate.", ("route",), _shadows(lambda counts: counts.mirrored)),
    _c(
        "shadow_outcomes",
        "Mirrored requests by the outcome of the comparison.",
        ("route", "outcome"),
        _shadow_counts(lambda counts: counts.outcomes),
    ),
    _c(
        "shadow_dropped",
        "Sampled requests that were not mirrored, by reason.",
        ("route", "reason"),
        _shadow_counts(lambda counts: counts.dropped),
    ),
)
_ENDPOINT_METRICS = (
    _g(
        "endpoint_healthy",
        "Whether the endpoint is ready.",
        _PLACE,
        lambda state: ((key, condition is Readiness.READY) for key, condition in state.health.items()),
    ),
    _g(
        "breaker_open",
        "Whether a worker's circuit breaker is open.",
        _PLACE,
        lambda state: state.breakers_open.items(),
    ),
    _g(
        "endpoint_draining",
        "Whether an operator has drained the endpoint.",
        _PLACE,
        lambda state: ((key, key in state.drained) for key in state.breakers_open),
    ),
    _g("engine_running", "Running requests, as the engine reports.", _PLACE, _loads(lambda load: load.running)),
    _g("engine_waiting", "Waiting requests, as the engine reports.", _PLACE, _loads(lambda load: load.waiting)),
    _g("engine_kv_use", "Share of the engine's key-value cache in use.", _PLACE, _loads(lambda load: load.kv_use)),
)
_SESSION_METRICS = (
    _c("sessions_created", "New sessions.", (), _sessions(lambda use: use.created)),
    _c("sessions_read", "Sessions that workers have read from Redis.", (), _sessions(lambda use: use.read)),
    _c(
        "sessions_unread",
        "Sessions that continued without Redis, which was late or away.",
        (),
        _sessions(lambda use: use.unread),
    ),
    _c("sessions_shed", "New sessions sent elsewhere than their overloaded home.", (), _sessions(lambda use: use.shed)),
    _g("sessions_known", "Sessions in the workers' caches.", (), _sessions(lambda use: use.known)),
    _c(
        "sessions_moved",
        "Sessions that moved from an endpoint that was drained, unavailable, or removed from the rules.",
        (*_PLACE, "reason"),
        _session_counts(lambda use: use.moved),
    ),
    _c(
        "sequences_lost",
        "Sequences that ended with their endpoint.",
        _PLACE,
        _session_counts(lambda use: use.sequences_lost),
    ),
    _c(
        "sequences_moved",
        "Sequences replayed at another endpoint, since theirs was lost or drained.",
        (*_PLACE, "reason"),
        _session_counts(lambda use: use.sequences_moved),
    ),
)
_STORE_METRICS = (
    _c("redis_calls", "Pipelines sent to Redis.", (), _store(lambda use: use.calls)),
    _c("redis_seconds", "Total seconds of pipelines with a reply.", (), _store(lambda use: use.seconds)),
    _c(
        "redis_failures",
        "Failed calls of Redis: late (missed the deadline), failed (unreachable), refused (a wrong type, no memory), "
        "skipped (not sent, after earlier failures).",
        ("reason",),
        lambda state: (((reason,), getattr(state.store, reason)) for reason in _FAILURES),
    ),
    _c("redis_dropped", "Commands that were never written.", (), _store(lambda use: use.dropped)),
    _g("redis_available", "Workers for which Redis answers.", (), _store(lambda use: use.available)),
    _c("redis_restarts", "Restarts of the embedded Redis.", (), _one(lambda state: state.redis_restarts)),
    _c("news_heard", "Events that workers received from others.", (), _store(lambda use: use.received)),
    _c("news_gaps", "Times that a worker missed events, and read all state again.", (), _store(lambda use: use.gaps)),
    _g("news_live", "Workers that receive events.", (), _store(lambda use: use.live)),
)
_PROCESS_METRICS = (
    _g("connections", "Open client connections.", (), _one(lambda state: state.connections)),
    _g(
        "open_fds",
        "Open file descriptors of a worker.",
        ("worker",),
        lambda state: (((str(pid),), used) for pid, (used, _) in state.descriptors.items()),
    ),
    _g(
        "max_fds",
        "Maximum of open file descriptors of a worker.",
        ("worker",),
        lambda state: (((str(pid),), limit or math.inf) for pid, (_, limit) in state.descriptors.items()),
    ),
    _g("rules_number", "Number of the rules in force.", (), _one(lambda state: state.rules_number)),
    _c(
        "rules_reloads",
        "Readings of changed rule files.",
        ("result",),
        lambda state: ((("ok",), state.reloads_ok), (("refused",), state.reloads_refused)),
    ),
    _g("workers", "Workers that serve.", (), _one(lambda state: state.workers)),
    _c("worker_restarts", "Workers that died and were replaced.", (), _one(lambda state: state.worker_restarts)),
    _g("info", "The version that runs.", ("version",), lambda state: [((state.version,), 1)]),
)
_GROUPS: tuple[tuple[Callable[[ExpositionState], bool], tuple[_Metric, ...]], ...] = (
    (lambda state: True, _REQUESTS),
    (lambda state: bool(state.arms), _ARM_METRICS),
    (lambda state: bool(state.runs), _RUN_METRICS),
    (lambda state: bool(state.shadows), _SHADOW_METRICS),
    (lambda state: True, _ENDPOINT_METRICS),
    (lambda state: state.sessions is not None, _SESSION_METRICS),
    (lambda state: state.store is not None, _STORE_METRICS),
    (lambda state: True, _PROCESS_METRICS),
)

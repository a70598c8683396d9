"""The gateway's metrics: one table of families."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import astuple
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from gateway.observability.arm_stats import ArmKey, Feedback
from gateway.observability.exposition_state import ExpositionState
from gateway.observability.metrics import LATENCY_BOUNDS
from gateway.observability.stats import SourceStatus
from gateway.protocol.engine_load import Readiness
from gateway.protocol.prometheus_text import PrometheusFamily

Rows = Iterable[tuple[Iterable[str], Any]]  # label values, and a number or a histogram
RowsOf = Callable[[ExpositionState], Rows]


class Metric(NamedTuple):
    kind: str  # counter, gauge or histogram
    name: str  # without "pointsman_", and a counter's "_total"
    help: str
    labels: tuple[str, ...]
    rows: RowsOf

    @property
    def full_name(self) -> str:
        return f"pointsman_{self.name}_total" if self.kind == "counter" else f"pointsman_{self.name}"

    def family(self, state: ExpositionState) -> PrometheusFamily:
        family = PrometheusFamily(self.full_name, self.help, self.kind, self.labels)
        for labels, value in self.rows(state):
            if self.kind == "histogram":
                family.add_histogram(tuple(labels), LATENCY_BOUNDS, value.counts, value.sum)
            else:
                family.add(tuple(labels), value)
        return family


def _each(mapping: str, value: str | Callable[[Any], Any]) -> RowsOf:
    """The values of a mapping's items, where they are known, by its keys."""
    value_of = attrgetter(value) if isinstance(value, str) else value
    return lambda state: (
        (_labels(key), number)
        for key, item in getattr(state, mapping).items()
        if (number := value_of(item)) is not None
    )


def _by(mapping: str, name: str) -> RowsOf:
    """The counts in each of a mapping's items, by its key and one more label."""
    return lambda state: (
        ((*_labels(key), str(label)), number)
        for key, item in getattr(state, mapping).items()
        for label, number in getattr(item, name).items()
    )


def _labels(key: Any) -> tuple[str, ...]:
    return (str(key),) if isinstance(key, str | int) else astuple(key) if isinstance(key, ArmKey) else key


def _tokens(name: str) -> RowsOf:
    return _each("series", lambda series: getattr(series.tokens, name, None))


def _feedback(value: Callable[[Feedback], float]) -> RowsOf:
    return lambda state: (
        ((*_labels(key), name), value(feedback))
        for key, arm in state.arms.items()
        for name, feedback in arm.feedback.items()
    )


def _one(path: str) -> RowsOf:
    value_of = attrgetter(path)
    return lambda state: [((), value_of(state))]


def _session_counts(name: str) -> RowsOf:
    return lambda state: getattr(state.sessions, name).items()


_SERIES = ("route", "arm", "engine", "endpoint")
_PLACE = ("engine", "endpoint")
_ARM = ("experiment", "arm")
_SOURCE = ("engine", "source")
_ENGINE = ("engine",)
_FAILURES = ("late", "failed", "refused", "skipped")


_c, _g = partial(Metric, "counter"), partial(Metric, "gauge")


def _h(name: str, help: str, rows: RowsOf) -> Metric:
    return Metric("histogram", name, help, _SERIES, rows)


_REQUESTS = (
    _c("requests", "Requests answered.", (*_SERIES, "status"), _by("series", "statuses")),
    _c(
        "errors",
        "Requests that the gateway failed or refused, or whose client left.",
        (*_SERIES, "reason"),
        _by("series", "errors"),
    ),
    _c("retries", "Tries after the first one.", _SERIES, _each("series", "retries")),
    _c("request_bytes", "Bytes of request bodies.", _SERIES, _each("series", "request_bytes")),
    _c("response_bytes", "Bytes of reply bodies.", _SERIES, _each("series", "response_bytes")),
    _c("request_messages", "Messages to engines, of ended gRPC streams.", _SERIES, _each("series", "messages_sent")),
    _c(
        "response_messages",
        "Messages from engines, of ended gRPC streams.",
        _SERIES,
        _each("series", "messages_received"),
    ),
    _c(
        "fallbacks",
        "Requests that went to a fallback engine, by the reason.",
        ("route", "engine", "fallback", "reason"),
        lambda state: state.fallbacks.items(),
    ),
    _c(
        "hedges",
        "Second attempts of slow inferences: won, lost to the first one, or failed.",
        ("engine", "outcome"),
        lambda state: state.hedges.items(),
    ),
    _c(
        "hedges_suppressed",
        "Slow inferences without a second attempt: request, overloaded, endpoint or budget.",
        ("engine", "reason"),
        lambda state: state.hedges_suppressed.items(),
    ),
    _c(
        "endpoint_waits",
        "Requests that waited for an endpoint to come up, by what became of them.",
        ("engine", "outcome"),
        lambda state: state.endpoint_waits.items(),
    ),
    _g("endpoint_waiting", "Requests that wait for an endpoint.", ("engine",), _each("endpoint_waiting", int)),
    _g("in_flight", "Requests at an endpoint now.", _SERIES, _each("series", "in_flight")),
    _h("request_seconds", "From the head of a request to the end of its reply.", _each("series", "total")),
    _h(
        "first_byte_seconds",
        "From the head of a request to the first byte of its reply.",
        _each("series", "first_byte"),
    ),
    _h("upstream_seconds", "From sending the last try to the end of its reply.", _each("series", "upstream")),
    _c("prompt_tokens", "Tokens of prompts, as engines counted them.", _SERIES, _tokens("prompt")),
    _c("cached_tokens", "Tokens of prompts in the engines' caches.", _SERIES, _tokens("cached")),
    _c(
        "completion_tokens",
        "Tokens generated; events, for streams of engines that do not count tokens.",
        _SERIES,
        _tokens("completion"),
    ),
    _c("cancelled_tokens", "Tokens generated for clients that left before the end.", _SERIES, _tokens("cancelled")),
    _c(
        "resumed_generations",
        "Generations that broke off and continued at another endpoint.",
        _SERIES,
        _tokens("resumed"),
    ),
    _h(
        "first_token_seconds",
        "From the head of a request to the first token of its streamed reply.",
        _tokens("first_token"),
    ),
    _h("per_token_seconds", "Mean time between the tokens of a streamed reply.", _tokens("per_token")),
    _h("cancel_seconds", "From a client's leaving to the engine's notification.", _tokens("stop")),
    _c("limit_admitted", "Requests that a limit admitted.", ("limit",), _each("limits", "admitted")),
    _c("limit_refused", "Requests that a limit refused.", ("limit",), _each("limits", "refused")),
    _c("limit_waited", "Requests that waited for Redis first.", ("limit",), _each("limits", "waited")),
    _g("limit_in_use", "Requests under way that hold a slot.", ("limit",), _each("limits", "in_use")),
    _g("limit_accounts", "Accounts of a limit in the workers.", ("limit",), _each("limits", "accounts")),
    _c("overload_admitted", "Requests that an engine with overload took.", ("engine",), _each("overloads", "admitted")),
    _c("overload_queued", "Requests that had to wait for it.", ("engine",), _each("overloads", "queued")),
    _c(
        "overload_refused",
        "Requests that it refused: full, late, waited, displaced or shed.",
        ("engine", "class", "reason"),
        lambda state: (
            ((engine, name, reason), number)
            for engine, overload in state.overloads.items()
            for name, reasons in overload.refused.items()
            for reason, number in reasons.items()
        ),
    ),
    _g("overload_in_flight", "Admitted requests under way.", ("engine",), _each("overloads", "in_flight")),
    _g("overload_waiting", "Requests in its queue.", ("engine", "class"), _by("overloads", "waiting")),
    _g(
        "overload_limit",
        "Requests that an endpoint gets at a time from all workers.",
        ("engine", "endpoint"),
        _by("overloads", "limits"),
    ),
    _g(
        "limit_shared",
        "1: Redis decides; 0: some worker uses its own share.",
        ("limit",),
        _each("limits", lambda limit: not limit.is_local),
    ),
)
_ARM_METRICS = (
    _c("arm_requests", "Inferences counted for experiments.", _ARM, _each("arms", lambda arm: sum(arm.requests))),
    _c("arm_errors", "Those that failed.", _ARM, _each("arms", lambda arm: sum(arm.errors))),
    _c(
        "arm_crossed",
        "Requests answered by another arm's engine after a failover; not counted.",
        _ARM,
        _each("arms", "crossed"),
    ),
    _c("arm_forced", "Requests with a forced arm; not counted.", _ARM, _each("arms", "forced")),
    _c(
        "arm_guessed",
        "Requests of sessions whose arm was a guess, since Redis had not answered; not counted.",
        _ARM,
        _each("arms", "guessed"),
    ),
    _c("arm_guessed_sessions", "Sessions whose arm was a guess.", _ARM, _each("arms", "guessed_units")),
    _c("arm_joules", "Energy, where engines report it.", _ARM, _each("arms", "joules")),
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
    _g("experiment_step", "The step of the ramp; 0 outside a ramp.", ("experiment",), _each("runs", "step")),
    _g("arm_share", "Share of the experiment's units.", _ARM, _by("runs", "shares")),
)
_SHADOW_METRICS = (
    _c("shadow_captured", "Requests copied to be mirrored.", ("route",), _each("shadows", "captured")),
    _c("shadow_mirrored", "Requests sent to a candidate.", ("route",), _each("shadows", "mirrored")),
    _c(
        "shadow_outcomes",
        "Mirrored requests by the outcome of the comparison.",
        ("route", "outcome"),
        _by("shadows", "outcomes"),
    ),
    _c(
        "shadow_dropped",
        "Sampled requests that were not mirrored, by reason.",
        ("route", "reason"),
        _by("shadows", "dropped"),
    ),
)
_BUDGET_METRICS = (
    _c("budget_refused", "Requests refused since a budget was exhausted.", ("budget",), _each("budgets_refused", int)),
    _g("budget_accounts", "Accounts of a budget in the current window.", ("budget",), _each("budgets", "accounts")),
    _g("budget_exhausted", "Those that are exhausted.", ("budget",), _each("budgets", "exhausted")),
    _g(
        "budget_reset_seconds",
        "When the window ends, in seconds since 1970.",
        ("budget",),
        _each("budgets", "reset_at"),
    ),
    _g(
        "budget_spent",
        "Requests, tokens and spend of all accounts in the current window.",
        ("budget", "unit"),
        _by("budgets", "spent"),
    ),
    _g(
        "budget_used_ratio",
        "Share of an account's budget that is used: of the 20 accounts that have used most.",
        ("budget", "account"),
        lambda state: (
            ((name, each.account), each.used) for name, budget in state.budgets.items() for each in budget.shown
        ),
    ),
)
_ENDPOINT_METRICS = (
    _g(
        "endpoint_healthy",
        "Whether the endpoint is ready.",
        _PLACE,
        _each("health", lambda condition: condition is Readiness.READY),
    ),
    _g("breaker_open", "Whether a worker's circuit breaker is open.", _PLACE, _each("breakers_open", bool)),
    _g(
        "endpoint_draining",
        "Whether the endpoint is drained: by an operator, or since it leaves its source.",
        _PLACE,
        lambda state: ((key, key in state.drained) for key in state.breakers_open),
    ),
    _g("engine_running", "Running requests, as the engine reports.", _PLACE, _each("loads", "running")),
    _g("engine_waiting", "Waiting requests, as the engine reports.", _PLACE, _each("loads", "waiting")),
    _g("engine_kv_use", "Share of the engine's key-value cache in use.", _PLACE, _each("loads", "kv_use")),
)


def _sources(value: Callable[[SourceStatus], float]) -> RowsOf:
    return lambda state: (((each.engine, each.source), value(each)) for each in state.sources)


_SOURCE_METRICS = (
    _g("source_endpoints", "Endpoints that a source has found.", _SOURCE, _sources(lambda each: each.endpoints)),
    _g("source_leaving", "Endpoints that have left it and are drained.", _SOURCE, _sources(lambda each: each.leaving)),
    _g(
        "source_left_out",
        "Endpoints beyond max_endpoints, which are not used.",
        _SOURCE,
        _sources(lambda each: each.left_out),
    ),
    _c("source_failures", "Times that a source did not answer.", _SOURCE, _sources(lambda each: each.failures)),
    _g(
        "source_failing",
        "Whether a source does not answer, so that its endpoints stay as they were.",
        _SOURCE,
        _sources(lambda each: bool(each.error)),
    ),
    _g(
        "source_answered_seconds",
        "When a source answered the last time, in seconds since 1970.",
        _SOURCE,
        _sources(lambda each: each.answered_at),
    ),
)
_PREFIX_METRICS = (
    _c("prefix_requests", "Requests that were balanced by their prompts.", _ENGINE, _each("prefixes", "requests")),
    _c(
        "prefix_followed",
        "Those that went to an endpoint which has seen the beginning of the prompt.",
        _ENGINE,
        _each("prefixes", "followed"),
    ),
    _c("prefix_blocks", "Blocks of their prompts.", _ENGINE, _each("prefixes", "blocks")),
    _c(
        "prefix_followed_blocks",
        "Those that the chosen endpoint has seen.",
        _ENGINE,
        _each("prefixes", "followed_blocks"),
    ),
    _c("kv_events", "Events of an engine's prefix caches.", _ENGINE, _each("cache_events", "events")),
    _c("kv_event_gaps", "Times that some were lost.", _ENGINE, _each("cache_events", "gaps")),
    _c("kv_prompts", "Prompts found by the engine's tokens.", _ENGINE, _each("cache_events", "prompts")),
    _c(
        "kv_unplaced_blocks",
        "Cached blocks that follow unknown ones, or for which there is no room.",
        _ENGINE,
        _each("cache_events", "unplaced"),
    ),
    _g("kv_blocks", "Cached blocks that are known.", _ENGINE, _each("cache_events", "blocks")),
)
_SESSION_METRICS = (
    _c("sessions_created", "New sessions.", (), _one("sessions.created")),
    _c("sessions_read", "Sessions that workers have read from Redis.", (), _one("sessions.read")),
    _c(
        "sessions_unread", "Sessions that continued without Redis, which was late or away.", (), _one("sessions.unread")
    ),
    _c("sessions_shed", "New sessions sent elsewhere than their overloaded home.", (), _one("sessions.shed")),
    _g("sessions_known", "Sessions in the workers' caches.", (), _one("sessions.known")),
    _c(
        "sessions_moved",
        "Sessions that moved from an endpoint that was drained, unavailable, or removed from the rules.",
        (*_PLACE, "reason"),
        _session_counts("moved"),
    ),
    _c("sequences_lost", "Sequences that ended with their endpoint.", _PLACE, _session_counts("sequences_lost")),
    _c(
        "sequences_moved",
        "Sequences replayed at another endpoint, since theirs was lost or drained.",
        (*_PLACE, "reason"),
        _session_counts("sequences_moved"),
    ),
)
_STORE_METRICS = (
    _c("redis_calls", "Pipelines sent to Redis.", (), _one("store.calls")),
    _c("redis_seconds", "Total seconds of pipelines with a reply.", (), _one("store.seconds")),
    _c(
        "redis_failures",
        "Failed calls of Redis: late (missed the deadline), failed (unreachable), refused (a wrong type, no memory), "
        "skipped (not sent, after earlier failures).",
        ("reason",),
        lambda state: (((reason,), getattr(state.store, reason)) for reason in _FAILURES),
    ),
    _c("redis_dropped", "Commands that were never written.", (), _one("store.dropped")),
    _g("redis_available", "Workers for which Redis answers.", (), _one("store.available")),
    _c("redis_restarts", "Restarts of the embedded Redis.", (), _one("redis_restarts")),
    _c("news_heard", "Events that workers received from others.", (), _one("store.received")),
    _c("news_gaps", "Times that a worker missed events, and read all state again.", (), _one("store.gaps")),
    _g("news_live", "Workers that receive events.", (), _one("store.live")),
)
_PROCESS_METRICS = (
    _g("connections", "Open client connections.", (), _one("connections")),
    _g("open_fds", "Open file descriptors of a worker.", ("worker",), _each("descriptors", itemgetter(0))),
    _g(
        "max_fds",
        "Maximum of open file descriptors of a worker.",
        ("worker",),
        _each("descriptors", lambda numbers: numbers[1] or math.inf),
    ),
    _g("rules_number", "Number of the rules in force.", (), _one("rules_number")),
    _c(
        "rules_reloads",
        "Readings of changed rule files.",
        ("result",),
        lambda state: ((("ok",), state.reloads_ok), (("refused",), state.reloads_refused)),
    ),
    _g("workers", "Workers that serve.", (), _one("workers")),
    _c("worker_restarts", "Workers that died and were replaced.", (), _one("worker_restarts")),
    _g("info", "The version that runs.", ("version",), lambda state: [((state.version,), 1)]),
)
_TRACE_METRICS = (
    _c(
        "traced_requests",
        "Requests whose spans workers have recorded, or dropped, since there were too many.",
        ("outcome",),
        lambda state: (
            (((outcome,), number) for outcome, number in state.traces.requests.items())
            if state.traces is not None
            else ()
        ),
    ),
    _c(
        "trace_spans",
        "Spans that the collector has taken (exported), or not (failed).",
        ("outcome",),
        lambda state: (
            (((outcome,), number) for outcome, number in state.traces.spans.items()) if state.traces is not None else ()
        ),
    ),
)
GROUPS: tuple[tuple[Callable[[ExpositionState], bool], tuple[Metric, ...]], ...] = (
    (lambda state: True, _REQUESTS),
    (lambda state: bool(state.arms), _ARM_METRICS),
    (lambda state: bool(state.runs), _RUN_METRICS),
    (lambda state: bool(state.shadows), _SHADOW_METRICS),
    (lambda state: bool(state.budgets), _BUDGET_METRICS),
    (lambda state: True, _ENDPOINT_METRICS),
    (lambda state: bool(state.sources), _SOURCE_METRICS),
    (lambda state: bool(state.prefixes), _PREFIX_METRICS),
    (lambda state: state.sessions is not None, _SESSION_METRICS),
    (lambda state: state.store is not None, _STORE_METRICS),
    (lambda state: state.traces is not None, _TRACE_METRICS),
    (lambda state: True, _PROCESS_METRICS),
)

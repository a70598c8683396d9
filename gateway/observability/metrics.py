"""Counting on the hot path: plain attributes and lists, no locks, no label lookups.

A worker keeps one `RequestSeries` for each (route, arm, engine, endpoint) that it has seen. The control process asks
every worker for a `CountersSnapshot`, adds them up and writes Prometheus' text (see `exposition`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from gateway.observability.arm_stats import ArmCounts
from gateway.observability.arms import Arms
from gateway.observability.stats import LimitSnapshot, SessionUse, StoreUse
from gateway.protocol.engine_load import Load
from gateway.protocol.prometheus_text import Histogram

Key = TypeVar("Key")

# Seconds. From the gateway's own tenth of a millisecond to a long generation.
LATENCY_BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
)


# The arm of mirrored requests: work for engines, but no requests of the route's clients.
SHADOW_ARM = "shadow"


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """The labels of a series; an empty text where a request never got that far (no route, no endpoint)."""

    route: str = ""
    arm: str = ""
    engine: str = ""
    endpoint: str = ""


class Tokens:
    """The tokens of one key's generations.

    Of streamed replies, `first_token` runs from a request's head to the first token, `per_token` is the mean time
    between the others; `stop` runs from a client's leaving to the notification of the engine; all in seconds.
    `cancelled` are tokens generated for clients that left.
    """

    __slots__ = ("cached", "cancelled", "completion", "first_token", "per_token", "prompt", "resumed", "stop")

    def __init__(self) -> None:
        self.prompt = 0
        self.completion = 0
        self.cached = 0
        self.cancelled = 0
        self.resumed = 0
        self.first_token = Histogram(LATENCY_BOUNDS)
        self.per_token = Histogram(LATENCY_BOUNDS)
        self.stop = Histogram(LATENCY_BOUNDS)


@dataclass(slots=True)
class TokensSnapshot:
    """Tokens as plain values."""

    prompt: int
    completion: int
    cached: int
    cancelled: int
    resumed: int
    first_token: tuple[list[int], float]
    per_token: tuple[list[int], float]
    stop: tuple[list[int], float]


class RequestSeries:
    """The requests of one key.

    `total` runs from the request's head to the end of its reply, `first_byte` to the reply's first byte, `upstream`
    from the last try's sending to the end of its reply.
    """

    __slots__ = (
        "errors",
        "first_byte",
        "in_flight",
        "key",
        "messages_received",
        "messages_sent",
        "request_bytes",
        "response_bytes",
        "retries",
        "statuses",
        "tokens",
        "total",
        "upstream",
    )

    def __init__(self, key: SeriesKey) -> None:
        self.key = key
        self.tokens: Tokens | None = None  # where a language model was asked
        self.statuses: dict[int, int] = {}
        self.errors: dict[str, int] = {}
        self.retries = 0
        self.in_flight = 0
        self.request_bytes = 0
        self.response_bytes = 0
        self.messages_sent = 0  # of streams, to engines
        self.messages_received = 0
        self.total = Histogram(LATENCY_BOUNDS)
        self.first_byte = Histogram(LATENCY_BOUNDS)
        self.upstream = Histogram(LATENCY_BOUNDS)

    def count(self, status: int, total: float, first_byte: float, upstream: float) -> None:
        """Count a reply that has ended; times in seconds."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        # What `Histogram.observe` does, three times on the hot path
        histogram = self.total
        histogram.counts[bisect_left(LATENCY_BOUNDS, total)] += 1
        histogram.sum += total
        histogram = self.first_byte
        histogram.counts[bisect_left(LATENCY_BOUNDS, first_byte)] += 1
        histogram.sum += first_byte
        histogram = self.upstream
        histogram.counts[bisect_left(LATENCY_BOUNDS, upstream)] += 1
        histogram.sum += upstream

    def count_tokens(self) -> Tokens:
        """Its token counters, created on first use."""
        if self.tokens is None:
            self.tokens = Tokens()
        return self.tokens

    def count_failure(self, status: int, total: float) -> None:
        """Count a reply of the gateway itself."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.total.observe(total)

    def count_error(self, reason: str) -> None:
        self.errors[reason] = self.errors.get(reason, 0) + 1


@dataclass(slots=True)
class SeriesSnapshot:
    """A series as plain values: what travels from a worker to the control process."""

    key: SeriesKey
    statuses: dict[int, int]
    errors: dict[str, int]
    retries: int
    in_flight: int
    request_bytes: int
    response_bytes: int
    messages_sent: int
    messages_received: int
    total: tuple[list[int], float]
    first_byte: tuple[list[int], float]
    upstream: tuple[list[int], float]
    tokens: TokensSnapshot | None = None


@dataclass(slots=True)
class CountersSnapshot:
    """One worker's counters at one moment."""

    series: list[SeriesSnapshot] = field(default_factory=list)
    connections: int = 0  # open client connections
    rules_number: int = 0  # the rules' snapshot in use
    breakers_open: dict[tuple[str, str], bool] = field(default_factory=dict)  # (engine, endpoint url) -> left out now
    loads: dict[tuple[str, str], Load] = field(default_factory=dict)  # the same -> what its replies tell of its load
    store: StoreUse | None = None  # None: there is no Redis
    sessions: SessionUse | None = None
    limits: list[LimitSnapshot] = field(default_factory=list)
    arms: list[ArmCounts] = field(default_factory=list)  # of experiments, since the worker began
    captures: dict[tuple[str, str], int] = field(default_factory=dict)  # (route, captured | why not) -> requests
    descriptors: tuple[int, int] = (0, 0)  # file descriptors: open, and how many may be (0: any number)


class Metrics:
    """All series of one worker, and its experiments' arms; the last `num_recent` of their requests can get feedback."""

    def __init__(self, num_recent: int = 0) -> None:
        self.arms = Arms(num_recent)
        self._series: dict[SeriesKey, RequestSeries] = {}
        self.unrouted = self.series(SeriesKey())

    def series(self, key: SeriesKey) -> RequestSeries:
        found = self._series.get(key)
        if found is None:
            found = self._series[key] = RequestSeries(key)
        return found

    def snapshot(self) -> list[SeriesSnapshot]:
        return [_frozen(series) for series in self._series.values()]


def _frozen(series: RequestSeries) -> SeriesSnapshot:
    return SeriesSnapshot(
        key=series.key,
        statuses=dict(series.statuses),
        errors=dict(series.errors),
        retries=series.retries,
        in_flight=series.in_flight,
        request_bytes=series.request_bytes,
        response_bytes=series.response_bytes,
        messages_sent=series.messages_sent,
        messages_received=series.messages_received,
        total=_copy(series.total),
        first_byte=_copy(series.first_byte),
        upstream=_copy(series.upstream),
        tokens=_frozen_tokens(series.tokens) if series.tokens is not None else None,
    )


def _frozen_tokens(tokens: Tokens) -> TokensSnapshot:
    return TokensSnapshot(
        prompt=tokens.prompt,
        completion=tokens.completion,
        cached=tokens.cached,
        cancelled=tokens.cancelled,
        resumed=tokens.resumed,
        first_token=_copy(tokens.first_token),
        per_token=_copy(tokens.per_token),
        stop=_copy(tokens.stop),
    )


def _copy(histogram: Histogram) -> tuple[list[int], float]:
    return list(histogram.counts), histogram.sum


def add_up(snapshots: Iterable[list[SeriesSnapshot]]) -> dict[SeriesKey, SeriesSnapshot]:
    """Sum several workers' series by key."""
    sums: dict[SeriesKey, SeriesSnapshot] = {}
    for snapshot in snapshots:
        for series in snapshot:
            known = sums.get(series.key)
            sums[series.key] = series if known is None else _sum(known, series)
    return sums


def _sum(one: SeriesSnapshot, other: SeriesSnapshot) -> SeriesSnapshot:
    return SeriesSnapshot(
        key=one.key,
        statuses=_sum_counts(one.statuses, other.statuses),
        errors=_sum_counts(one.errors, other.errors),
        retries=one.retries + other.retries,
        in_flight=one.in_flight + other.in_flight,
        request_bytes=one.request_bytes + other.request_bytes,
        response_bytes=one.response_bytes + other.response_bytes,
        messages_sent=one.messages_sent + other.messages_sent,
        messages_received=one.messages_received + other.messages_received,
        total=_sum_histograms(one.total, other.total),
        first_byte=_sum_histograms(one.first_byte, other.first_byte),
        upstream=_sum_histograms(one.upstream, other.upstream),
        tokens=_sum_tokens(one.tokens, other.tokens),
    )


def _sum_tokens(one: TokensSnapshot | None, other: TokensSnapshot | None) -> TokensSnapshot | None:
    if one is None or other is None:
        return one or other
    return TokensSnapshot(
        prompt=one.prompt + other.prompt,
        completion=one.completion + other.completion,
        cached=one.cached + other.cached,
        cancelled=one.cancelled + other.cancelled,
        resumed=one.resumed + other.resumed,
        first_token=_sum_histograms(one.first_token, other.first_token),
        per_token=_sum_histograms(one.per_token, other.per_token),
        stop=_sum_histograms(one.stop, other.stop),
    )


def _sum_counts(one: dict[Key, int], other: dict[Key, int]) -> dict[Key, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in one.keys() | other.keys()}


def _sum_histograms(one: tuple[list[int], float], other: tuple[list[int], float]) -> tuple[list[int], float]:
    return [a + b for a, b in zip(one[0], other[0], strict=True)], one[1] + other[1]

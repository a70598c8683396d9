"""Counting on the hot path: plain attributes and lists, no locks, no label lookups.

A worker keeps one `RequestSeries` for each (route, arm, engine, endpoint) that it has seen. The control process asks
every worker for a `CountersSnapshot`, adds them up and writes Prometheus' text (see `exposition`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gateway.observability.arm_stats import ArmCounts, ArmKey
from gateway.observability.arms import Arms
from gateway.observability.stats import LimitSnapshot, OverloadSnapshot, PrefixUse, SessionUse, StoreUse, add_up
from gateway.protocol.engine_load import Load
from gateway.protocol.prometheus_text import Histogram

# Seconds. From the gateway's own tenth of a millisecond to a long generation.
LATENCY_BOUNDS: tuple[float, ...] = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
)


# The arm of mirrored requests: work for engines, but no requests of the route's clients.
SHADOW_ARM = "shadow"
# Stands for all endpoints that discovery has found and lost again.
GONE = "gone"


class SeriesKey(NamedTuple):
    """The labels of a series; an empty text where a request never got that far (no route, no endpoint)."""

    route: str = ""
    arm: str = ""
    engine: str = ""
    endpoint: str = ""


class FallbackKey(NamedTuple):
    """The labels of a counter of fallbacks."""

    route: str
    engine: str  # that has failed
    fallback: str  # the engine in its place
    reason: str


def _latencies() -> Histogram:
    return Histogram(LATENCY_BOUNDS)


@dataclass(slots=True, eq=False)
class Tokens:
    """The tokens of one key's generations.

    Of streamed replies, `first_token` runs from a request's head to the first token, `per_token` is the mean time
    between the others; `stop` runs from a client's leaving to the notification of the engine; all in seconds.
    `cancelled` are tokens generated for clients that left.
    """

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    cancelled: int = 0
    resumed: int = 0
    first_token: Histogram = field(default_factory=_latencies)
    per_token: Histogram = field(default_factory=_latencies)
    stop: Histogram = field(default_factory=_latencies)


@dataclass(slots=True, eq=False)
class RequestSeries:
    """The requests of one key.

    `total` runs from the request's head to the end of its reply, `first_byte` to the reply's first byte, `upstream`
    from the last try's sending to the end of its reply.
    """

    key: SeriesKey
    tokens: Tokens | None = None  # of language models
    statuses: dict[int, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    in_flight: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    messages_sent: int = 0  # of streams, to engines
    messages_received: int = 0
    total: Histogram = field(default_factory=_latencies)
    first_byte: Histogram = field(default_factory=_latencies)
    upstream: Histogram = field(default_factory=_latencies)

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
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.total.observe(total)

    def count_error(self, reason: str) -> None:
        self.errors[reason] = self.errors.get(reason, 0) + 1


@dataclass
class CountersSnapshot:
    """One worker's counters at one moment, or the sum of several. The worker counts on in the same objects."""

    series: Mapping[SeriesKey, RequestSeries] = field(default_factory=dict)
    connections: int = 0  # open client connections
    breakers_open: Mapping[tuple[str, str], bool] = field(default_factory=dict)  # by engine and endpoint
    loads: Mapping[tuple[str, str], Load] = field(default_factory=dict)  # the same: as replies report it
    store: StoreUse | None = None  # None: there is no Redis
    sessions: SessionUse | None = None  # None: no worker has reported
    limits: Mapping[str, LimitSnapshot] = field(default_factory=dict)  # by name
    overloads: Mapping[str, OverloadSnapshot] = field(default_factory=dict)  # by engine
    prefixes: Mapping[str, PrefixUse] = field(default_factory=dict)  # the same
    budgets_refused: Mapping[str, int] = field(default_factory=dict)  # requests, by budget
    arms: Mapping[ArmKey, ArmCounts] = field(default_factory=dict)  # of experiments
    fallbacks: Mapping[FallbackKey, int] = field(default_factory=dict)  # requests that went to a fallback
    hedges: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by engine and outcome
    hedges_suppressed: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by engine and reason
    endpoint_waits: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by engine and outcome: that waited
    endpoint_waiting: Mapping[str, int] = field(default_factory=dict)  # requests that wait now, by engine
    captures: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by route, and "captured" or why not
    descriptors: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # by process id: open, limit (0: none)

    def totals(self) -> CountersSnapshot:
        """What remains of it when its worker has ended."""
        return CountersSnapshot(
            series={key: replace(series, in_flight=0) for key, series in self.series.items()},
            store=replace(self.store, available=0, live=0) if self.store is not None else None,
            sessions=replace(self.sessions, known=0) if self.sessions is not None else None,
            limits={
                name: LimitSnapshot(name, limit.admitted, limit.refused, limit.waited)
                for name, limit in self.limits.items()
            },
            overloads={name: overload.totals() for name, overload in self.overloads.items()},
            prefixes=self.prefixes,
            budgets_refused=self.budgets_refused,
            arms=self.arms,
            fallbacks=self.fallbacks,
            hedges=self.hedges,
            hedges_suppressed=self.hedges_suppressed,
            endpoint_waits=self.endpoint_waits,
            captures=self.captures,
        )


def joined(parts: Sequence[CountersSnapshot]) -> CountersSnapshot:
    """The counters of one worker from their parts, of which the last has all but the series and the endpoints."""
    whole = replace(parts[-1], series={}, breakers_open={}, loads={})
    for part in parts:
        for name in ("series", "breakers_open", "loads"):
            getattr(whole, name).update(getattr(part, name))
    return whole


class Metrics:
    """All series of one worker, and its experiments' arms; the last `num_recent` of their requests can get feedback."""

    def __init__(self, num_recent: int = 0) -> None:
        self.arms = Arms(num_recent)
        self.by_key: dict[SeriesKey, RequestSeries] = {}
        self.unrouted = self.series(SeriesKey())
        self.fallbacks: Counter[FallbackKey] = Counter()
        self.hedges: Counter[tuple[str, str]] = Counter()
        self.hedges_suppressed: Counter[tuple[str, str]] = Counter()

    def merge_gone(self, places: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
        """Add up the series of endpoints that are gone, by engine and URL: addresses that come and go must not fill the
        memory. Returns those that still have requests."""
        busy: set[tuple[str, str]] = set()
        for key, series in list(self.by_key.items()):
            place = key.engine, key.endpoint
            if place not in places:
                continue
            if series.in_flight:
                busy.add(place)
                continue
            gone = key._replace(endpoint=GONE)
            self.by_key[gone] = add_up([self.series(gone), self.by_key.pop(key)])
        return busy

    def series(self, key: SeriesKey) -> RequestSeries:
        found = self.by_key.get(key)
        if found is None:
            found = self.by_key[key] = RequestSeries(key)
        return found

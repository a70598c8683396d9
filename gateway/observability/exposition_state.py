"""What a scrape of the metrics reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.observability.metrics import CountersSnapshot
from gateway.observability.span_export import TraceCounts
from gateway.observability.stats import BudgetUse, CacheEvents, RunFacts, ShadowCounts, SourceStatus
from gateway.protocol.advertised_models import AdvertisedModels
from gateway.protocol.engine_load import Readiness


@dataclass
class ExpositionState(CountersSnapshot):
    """The input of a scrape: the sum of the workers' counters, and values of the control process."""

    health: Mapping[tuple[str, str], Readiness] = field(default_factory=dict)  # by engine and endpoint
    models: Mapping[tuple[str, str], AdvertisedModels] = field(default_factory=dict)  # the same
    drained: Collection[tuple[str, str]] = ()
    sources: Sequence[SourceStatus] = ()  # of endpoints
    cache_events: Mapping[str, CacheEvents] = field(default_factory=dict)  # by engine
    rules_number: int = 0
    reloads_ok: int = 0
    reloads_refused: int = 0
    workers: int = 0
    worker_restarts: int = 0
    version: str = ""
    redis_restarts: int = 0  # of the embedded one
    runs: Mapping[str, RunFacts] = field(default_factory=dict)  # by experiment
    shadows: Mapping[str, ShadowCounts] = field(default_factory=dict)  # by route
    budgets: Mapping[str, BudgetUse] = field(default_factory=dict)  # by name
    traces: TraceCounts | None = None  # where requests are traced

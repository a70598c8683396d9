"""When an engine's requests are hedged, and how many. Pure: times are arguments.

A hedge is due once a request has waited longer than a percentile of its model's latencies. A first attempt that a hedge
has overtaken counts with the time until then, which is above the percentile in any case, so that hedging does not
shorten the delay. Hedges have a budget by counts, as gRPC's retry throttling has: each request adds a part of a token,
and each hedge takes a whole one.

Sources: Dean and Barroso, The Tail at Scale (2013); gRPC's proposal A6; Finagle's BackupRequestFilter.
"""

from __future__ import annotations

from enum import Enum
from math import ceil, log2
from typing import Protocol

from gateway.config.engine_specs import EngineSpec
from gateway.config.hedging_specs import HedgingSpec
from gateway.protocol.advertised_models import ModelName

# The buckets of latencies: eight for each doubling, from a tenth of a millisecond to nearly two minutes.
_SHORTEST = 1e-4
_PER_DOUBLING = 8
_NUM_BUCKETS = 20 * _PER_DOUBLING
# A window ends after so many seconds, once it has enough latencies.
_WINDOW_SECONDS = 30.0
_FEWEST_SAMPLES = 30
# The percentile is computed again after so many more latencies.
_REFRESH_AFTER = 32
# Models whose latencies are told apart; all others count as one.
_MAX_MODELS = 256


class Suppressed(Enum):
    """Why a request that has waited for long enough is not hedged."""

    REQUEST = "request"  # it may do harm twice, or is not at hand any more
    OVERLOADED = "overloaded"  # the engine has as many requests as it can do, or more
    ENDPOINT = "endpoint"  # no other one takes requests
    BUDGET = "budget"


class LatencyPercentile:
    """A percentile of the latencies in the present window and the one before; 0 while there are too few."""

    __slots__ = ("_counts", "_fewest", "_num_new", "_past", "_share", "_size", "_started_at", "value")

    def __init__(self, share: float, now: float) -> None:
        self._share = share
        self._fewest = max(_FEWEST_SAMPLES, ceil(2 / (1 - share)))
        self._counts = [0] * _NUM_BUCKETS
        self._past = [0] * _NUM_BUCKETS
        self._size = 0  # of the present window
        self._num_new = 0  # since `value` was computed
        self._started_at = now
        self.value = 0.0  # seconds: the upper bound of its bucket

    def __repr__(self) -> str:
        return f"<LatencyPercentile {self._share:g}: {self.value:.4g} s>"

    def observe(self, seconds: float, now: float) -> None:
        at = int(log2(seconds / _SHORTEST) * _PER_DOUBLING) + 1 if seconds > _SHORTEST else 0
        self._counts[at if at < _NUM_BUCKETS else _NUM_BUCKETS - 1] += 1
        self._size += 1
        self._num_new += 1
        if self._num_new >= _REFRESH_AFTER or (not self.value and self._size >= self._fewest):
            self._refresh(now)

    def _refresh(self, now: float) -> None:
        self._num_new = 0
        counts = [count + past for count, past in zip(self._counts, self._past, strict=True)]
        if sum(counts) < self._fewest:
            return
        above = sum(counts) * (1 - self._share)
        at = _NUM_BUCKETS
        while above >= 0 and at > 0:
            at -= 1
            above -= counts[at]
        self.value = _SHORTEST * 2 ** (at / _PER_DOUBLING)
        if now - self._started_at >= _WINDOW_SECONDS and self._size >= self._fewest:
            self._past, self._counts = self._counts, [0] * _NUM_BUCKETS
            self._size, self._started_at = 0, now


class HedgeBudget:
    """A token bucket by counts: each request adds `share` of a token, up to `most`; a hedge takes one."""

    __slots__ = ("_most", "_share", "tokens")

    def __init__(self, share: float, most: int) -> None:
        self._share = share
        self._most = float(most)
        self.tokens = 1.0 if share else 0.0

    def add(self) -> None:
        """A request that may be hedged is sent."""
        tokens = self.tokens + self._share
        self.tokens = tokens if tokens < self._most else self._most

    def take(self) -> bool:
        """Whether one more hedge is allowed; counts it where it is."""
        if self.tokens < 1.0 - 1e-9:
            return False
        self.tokens -= 1.0
        return True


class HedgingPolicy:
    """The hedging of one engine in one worker."""

    __slots__ = ("_latencies", "_others", "budget", "spec")

    def __init__(self, spec: HedgingSpec, now: float) -> None:
        self.spec = spec
        self.budget = HedgeBudget(spec.budget, spec.burst)
        self._latencies: dict[ModelName | None, LatencyPercentile] = {}
        self._others = LatencyPercentile(spec.delay.percentile, now)

    def latencies(self, model: ModelName | None, now: float) -> LatencyPercentile:
        """Those of a model."""
        found = self._latencies.get(model)
        if found is None:
            if len(self._latencies) >= _MAX_MODELS:  # clients may invent names
                return self._others
            found = self._latencies[model] = LatencyPercentile(self.spec.delay.percentile, now)
        return found

    def delay(self, latencies: LatencyPercentile) -> float:
        """How long a request waits for its first attempt alone; 0 while that is unknown."""
        spec = self.spec
        if spec.delay.seconds:
            return spec.delay.seconds
        value = latencies.value
        return value if not value or value > spec.min_delay else spec.min_delay


class HasHedging(Protocol):
    """An engine, by these rules or by earlier ones."""

    @property
    def spec(self) -> EngineSpec: ...
    @property
    def hedging(self) -> HedgingPolicy | None: ...


def hedging_of_engine(spec: HedgingSpec, before: HasHedging | None, now: float) -> HedgingPolicy:
    """The hedging of an engine that declares it; that of the engine `before`, where its declaration is the same."""
    known = before.hedging if before is not None else None
    return known if known is not None and known.spec == spec else HedgingPolicy(spec, now)

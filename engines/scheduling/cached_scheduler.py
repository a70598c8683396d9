"""A scheduler behind the response cache: what the cache has is answered from there, the rest goes on."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from engines.core.calls import InferenceCall, Sink
from engines.core.messages import InferResponse
from engines.scheduling.cache import ResponseCache, is_cached, key_of
from engines.scheduling.interfaces import Clock, Instance, RequestScheduler
from engines.scheduling.ordering import Order


class CacheStatistics(Protocol):
    """Told how long the cache took, in nanoseconds."""

    def cache_hit(self, call: InferenceCall, looked_up_ns: int) -> None:
        """The cache has the answer to a call; it is told before the call ends."""
        ...

    def cache_miss(self, call: InferenceCall, took_ns: int) -> None:
        """It was looked up in vain, and the answer has been put there; that took so long together."""
        ...


def cached(
    config: Any,
    version: str,
    scheduler: RequestScheduler,
    cache: ResponseCache | None,
    clock: Clock,
    statistics: CacheStatistics,
) -> RequestScheduler:
    """The scheduler of a version of a model, behind the cache where the model uses it. Ensembles too."""
    if cache is None or not is_cached(config):
        return scheduler
    return CachedScheduler(scheduler, cache, version, clock, statistics, config.dynamic_batching.preserve_ordering)


class CachedScheduler:
    def __init__(
        self,
        scheduler: RequestScheduler,
        cache: ResponseCache,
        version: str,
        clock: Clock,
        statistics: CacheStatistics,
        preserve_ordering: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self._version = version
        self._clock = clock
        self._statistics = statistics
        self._order = Order() if preserve_ordering else None  # answers of the cache stand in line with the others
        self._num_looked_up = 0

    def __repr__(self) -> str:
        return f"<CachedScheduler: {self._num_looked_up} being looked up, {self._scheduler}>"

    @property
    def num_pending(self) -> int:
        return self._num_looked_up + self._scheduler.num_pending

    def submit(self, call: InferenceCall) -> None:
        if self._order is not None:
            self._order.join(call)
        key = key_of(call.request, self._version)
        if key is None:
            self._scheduler.submit(call)
            return
        lookup = _Lookup(self, call, key, self._clock.now_ns())
        self._num_looked_up += 1
        call.on_cancel = lookup.cancel
        self._cache.get(key, lookup.found)

    def instance_changed(self, instance: Instance) -> None:
        self._scheduler.instance_changed(instance)

    def stop(self) -> None:
        self._scheduler.stop()

    def looked_up(self, lookup: _Lookup, response: InferResponse | None) -> None:
        """The cache has said what it has."""
        self._num_looked_up -= 1
        call = lookup.call
        took_ns = self._clock.now_ns() - lookup.since_ns
        self._cache.looked_up(response is not None, took_ns)
        if call.is_over:
            return
        call.on_cancel = None
        if response is not None:
            self._statistics.cache_hit(call, took_ns)
            call.respond(response, is_final=True)
            return
        call.through(partial(_Keeper, self, call, lookup.key, took_ns))
        self._scheduler.submit(call)

    def keep(self, call: InferenceCall, key: str, response: InferResponse, looked_up_ns: int) -> None:
        """Put an answer into the cache."""
        before = self._clock.now_ns()
        self._cache.put(key, response)
        took_ns = self._clock.now_ns() - before
        self._cache.insertion_ns += took_ns
        self._statistics.cache_miss(call, looked_up_ns + took_ns)


class _Lookup:
    __slots__ = ("_scheduler", "call", "key", "since_ns")

    def __init__(self, scheduler: CachedScheduler, call: InferenceCall, key: str, since_ns: int) -> None:
        self._scheduler = scheduler
        self.call = call
        self.key = key
        self.since_ns = since_ns

    def cancel(self) -> None:
        self.call.fail_cancelled()

    def found(self, response: InferResponse | None) -> None:
        self._scheduler.looked_up(self, response)


class _Keeper:
    """The sink of a call whose answer is to be kept."""

    __slots__ = ("_call", "_key", "_looked_up_ns", "_scheduler", "_sink")

    def __init__(
        self, scheduler: CachedScheduler, call: InferenceCall, key: str, looked_up_ns: int, sink: Sink
    ) -> None:
        self._scheduler = scheduler
        self._call = call
        self._key = key
        self._looked_up_ns = looked_up_ns
        self._sink = sink

    def __call__(self, response: InferResponse | None, is_final: bool) -> None:
        if response is not None and response.error is None and is_final and self._call.num_responses == 1:
            self._scheduler.keep(self._call, self._key, response, self._looked_up_ns)
        self._sink(response, is_final)

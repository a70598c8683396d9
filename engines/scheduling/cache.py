"""The response cache, and the scheduler behind it: responses to equal requests are computed once.

Source: Triton's `response_cache.md`, core `cache_manager.cc`. Unlike Triton's, the key is a cryptographic hash and
covers datatypes, shapes, parameters and the requested outputs too, so that requests never collide by chance.
"""

from __future__ import annotations

from functools import partial
from hashlib import blake2b
from operator import attrgetter
from typing import Any, Protocol

from engines.core.calls import InferenceCall, Sink
from engines.core.messages import InferRequest, InferResponse, SharedMemory, TensorData
from engines.scheduling.cache_stores import LocalStore, RedisStore
from engines.scheduling.interfaces import Clock, Instance, RequestScheduler
from engines.scheduling.queues import Order


class ResponseCache:
    """One cache for all models of a host. Durations are nanoseconds in all, as its callers have measured them."""

    __slots__ = ("insertion_ns", "lookup_ns", "num_hits", "num_lookups", "store")

    def __init__(self, store: LocalStore | RedisStore) -> None:
        self.store = store
        self.num_lookups = self.num_hits = 0
        self.lookup_ns = self.insertion_ns = 0

    def looked_up(self, has_found: bool, took_ns: int) -> None:
        self.num_lookups += 1
        self.num_hits += has_found
        self.lookup_ns += took_ns

    def put(self, key: str, response: InferResponse) -> None:
        """Store a response, except for errors and for data in shared memory."""
        if response.error is None and not any(isinstance(tensor.data, SharedMemory) for tensor in response.outputs):
            self.store.put(key, InferResponse(tuple(map(_owned, response.outputs)), dict(response.parameters)))


def is_cached(config: Any) -> bool:
    """Whether a model's responses may be cached: the configuration enables it, and each request has one response that
    depends on nothing but the request."""
    return bool(
        config.response_cache.enable
        and not config.model_transaction_policy.decoupled
        and not config.HasField("sequence_batching")
    )


def key_of(request: InferRequest, version: str) -> str | None:
    """The cache key of a request, None if its data is in shared memory, which a client may change at any time.
    `version` is the version that serves it."""
    hashed = blake2b(digest_size=32)

    def add(*parts: object) -> None:
        text = repr(parts).encode()
        hashed.update(len(text).to_bytes(8, "little"))
        hashed.update(text)

    add(request.model, version, sorted((output.name, output.num_classes) for output in request.outputs))
    add(sorted(request.parameters.items()))
    if any(output.shared_memory is not None for output in request.outputs):
        return None
    for tensor in sorted(request.inputs, key=attrgetter("name")):
        data = tensor.data
        if isinstance(data, SharedMemory):
            return None
        add(tensor.name, tensor.datatype, tuple(tensor.shape), len(data) if isinstance(data, bytes) else data.nbytes)
        hashed.update(data)
    return hashed.hexdigest()


def _owned(tensor: TensorData) -> TensorData:
    """A tensor with its own copy of the data: a view's memory may be reused."""
    if not isinstance(tensor.data, memoryview):
        return tensor
    return TensorData(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data))


class CacheStatistics(Protocol):
    """Receives the times of the cache, in nanoseconds."""

    def cache_hit(self, call: InferenceCall, looked_up_ns: int) -> None:
        """The cache has the response; called before the call ends."""

    def cache_miss(self, call: InferenceCall, took_ns: int) -> None:
        """The cache lacked the response and has stored it now; both together took `took_ns`."""


class CachedScheduler:
    """The scheduler of a version of a model or ensemble, behind the cache."""

    def __init__(
        self,
        config: Any,
        version: str,
        scheduler: RequestScheduler,
        cache: ResponseCache,
        clock: Clock,
        statistics: CacheStatistics,
    ) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self._version = version
        self._clock = clock
        self._statistics = statistics
        # Responses of the cache keep the order too.
        self._order = Order() if config.dynamic_batching.preserve_ordering else None
        self._num_looked_up = 0

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
        self._num_looked_up += 1
        call.on_cancel = call.fail_cancelled
        self._cache.store.get(key, partial(self._looked_up, call, key, self._clock.now_ns()))

    def instance_changed(self, instance: Instance) -> None:
        self._scheduler.instance_changed(instance)

    def stop(self) -> None:
        self._scheduler.stop()

    def _looked_up(self, call: InferenceCall, key: str, since_ns: int, response: InferResponse | None) -> None:
        self._num_looked_up -= 1
        took_ns = self._clock.now_ns() - since_ns
        self._cache.looked_up(response is not None, took_ns)
        if call.is_over:
            return
        call.on_cancel = None
        if response is not None:
            self._statistics.cache_hit(call, took_ns)
            call.respond(response, is_final=True)
            return
        call.through(lambda sink: partial(self._respond, call, key, took_ns, sink))
        self._scheduler.submit(call)

    def _respond(
        self,
        call: InferenceCall,
        key: str,
        looked_up_ns: int,
        sink: Sink,
        response: InferResponse | None,
        is_final: bool,
    ) -> None:
        """Store the only response of a call in the cache, and pass it on."""
        if response is not None and response.error is None and is_final and call.num_responses == 1:
            before = self._clock.now_ns()
            self._cache.put(key, response)
            took_ns = self._clock.now_ns() - before
            self._cache.insertion_ns += took_ns
            self._statistics.cache_miss(call, looked_up_ns + took_ns)
        sink(response, is_final)

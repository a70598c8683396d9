"""The response cache: what a model has once answered to the same inputs it need not compute again.

Source: Triton's `response_cache.md`, core `cache_manager.cc`. Unlike there, the key is a cryptographic hash and covers
datatypes, shapes, parameters and the wanted outputs too, so that no two requests are taken for the same by chance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

from engines.core.messages import InferRequest, InferResponse, SharedMemory, TensorData

Found = Callable[[InferResponse | None], None]


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """Of a store: `share` is how much of its room is taken, from 0 to 1."""

    num_entries: int
    num_evicted: int
    share: float


class Store(Protocol):
    """Where responses are kept."""

    def get(self, key: str, found: Found) -> None:
        """Call `found` once, at once or later, with the response or with None."""
        ...

    def put(self, key: str, response: InferResponse) -> None:
        """Keep a response, whose data is `bytes`, if there is room."""
        ...

    @property
    def usage(self) -> CacheUsage | None:
        """None where only the store's own server knows."""
        ...


class ResponseCache:
    """One cache for all models of a host. Durations are nanoseconds in all, as its callers have measured them."""

    __slots__ = ("_store", "insertion_ns", "lookup_ns", "num_hits", "num_lookups")

    def __init__(self, store: Store) -> None:
        self._store = store
        self.num_lookups = self.num_hits = 0
        self.lookup_ns = self.insertion_ns = 0

    def __repr__(self) -> str:
        return f"<ResponseCache: {self._store!r}>"

    @property
    def usage(self) -> CacheUsage | None:
        """Of its store; None where only the store's own server knows."""
        return self._store.usage

    def looked_up(self, has_found: bool, took_ns: int) -> None:
        """Count a lookup that has ended."""
        self.num_lookups += 1
        self.num_hits += has_found
        self.lookup_ns += took_ns

    def get(self, key: str, found: Found) -> None:
        """Look up a response; `found` is called once, at once or later, with it or with None."""
        self._store.get(key, found)

    def put(self, key: str, response: InferResponse) -> None:
        """Keep a response; an error, or one that went to shared memory, is not kept."""
        if response.error is None and not any(isinstance(tensor.data, SharedMemory) for tensor in response.outputs):
            self._store.put(key, InferResponse(tuple(map(_owned, response.outputs)), dict(response.parameters)))


def is_cached(config: Any) -> bool:
    """Whether a model's responses may come from the cache: it says so, and gives one answer to each request that hangs
    on nothing but the request."""
    return bool(
        config.response_cache.enable
        and not config.model_transaction_policy.decoupled
        and not config.HasField("sequence_batching")
    )


def key_of(request: InferRequest, version: str) -> str | None:
    """What requests that have the same answer share, None where one cannot be told: its data is in shared memory, which
    a client may change at any time. `version` is the one that is asked, whatever the request says."""
    hashed = blake2b(digest_size=32)

    def add(*parts: object) -> None:
        text = repr(parts).encode()
        hashed.update(len(text).to_bytes(8, "little"))
        hashed.update(text)

    add(request.model, version, sorted((output.name, output.num_classes) for output in request.outputs))
    add(sorted(request.parameters.items()))
    if any(output.shared_memory is not None for output in request.outputs):
        return None
    for tensor in sorted(request.inputs, key=_name):
        data = tensor.data
        if isinstance(data, SharedMemory):
            return None
        add(tensor.name, tensor.datatype, tuple(tensor.shape), len(data) if isinstance(data, bytes) else data.nbytes)
        hashed.update(data)
    return hashed.hexdigest()


def _name(tensor: TensorData) -> str:
    return tensor.name


def _owned(tensor: TensorData) -> TensorData:
    """A tensor whose data no one else holds: a view may be of memory that is used again."""
    data = tensor.data
    return (
        tensor
        if not isinstance(data, memoryview)
        else TensorData(tensor.name, tensor.datatype, tensor.shape, bytes(data))
    )

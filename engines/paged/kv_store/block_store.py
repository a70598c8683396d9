"""Blocks in a store of states: their keys and sizes, and whether, how and at what cost they are written and read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from engines.paged.base.options import EngineOptions
from engines.paged.base.transfer import HostCopy
from engines.paged.base.types import GenerateRequest
from engines.paged.cache.memory import KVCache
from engines.paged.kv_store.codec import CODECS, BlockCodec, BlockIdentity, BlockKeys
from engines.paged.ops.reference import Ops
from engines.state.factory import open_store, read_secret
from engines.state.interfaces import State, StateStore
from engines.state.redis_store import RedisStateStore

_WEIGHT = 0.3  # of the newest read
_FADING = 0.9  # factor of an estimate that has ruled a read out
_SMALL_BYTES = 64 << 10  # a smaller read measures the round trip, a larger one the bandwidth


class ReadCost:
    """Estimates the time of reads: a fetch is worth it if tokens / prefill rate > bytes / bandwidth + round trip.

    An estimate that rules reads out is not measured again, so it fades: after some refusals the next fetch is tried.
    Several threads may update it: each estimate is one number, and the last update wins.
    """

    def __init__(self) -> None:
        self.round_trip_seconds: float | None = None
        self.seconds_per_byte: float | None = None

    def learn(self, num_bytes: int, seconds: float) -> None:
        """Record a read."""
        if num_bytes < _SMALL_BYTES:
            self.round_trip_seconds = _mean(self.round_trip_seconds, seconds)
            return
        transfer = max(0.0, seconds - (self.round_trip_seconds or 0.0))
        self.seconds_per_byte = _mean(self.seconds_per_byte, transfer / num_bytes)

    def seconds(self, num_bytes: int) -> float:
        """The expected time of a read, 0 while nothing is measured."""
        return (self.round_trip_seconds or 0.0) + num_bytes * (self.seconds_per_byte or 0.0)

    def is_worth(self, num_tokens: int, num_bytes: int, prefill_seconds_per_token: float) -> bool:
        """Whether to fetch; true while the prefill rate is unknown (0)."""
        if not prefill_seconds_per_token or num_tokens * prefill_seconds_per_token > self.seconds(num_bytes):
            return True
        if self.round_trip_seconds is not None:
            self.round_trip_seconds *= _FADING
        if self.seconds_per_byte is not None:
            self.seconds_per_byte *= _FADING
        return False


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)


class BlockMemory:
    """Copies of blocks out of the cache's memory and into it: the model's cache and, behind it, a draft model's. Used
    on the engine's thread."""

    def __init__(self, caches: Sequence[KVCache], ops: Ops) -> None:
        self._ops = ops
        self._caches = tuple(caches)

    @property
    def device(self) -> torch.device:
        return self._ops.device

    @property
    def is_asynchronous(self) -> bool:
        """Whether copies are made later, in the device's order."""
        return self.device.type != "cpu"

    @property
    def dtype(self) -> torch.dtype:
        return self._caches[0].keys.dtype

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of one block in each array: [L, S, G, D]."""
        both = [tensor for cache in self._caches for tensor in (cache.keys, cache.values)]
        return [(tensor.shape[0], *tensor.shape[2:]) for tensor in both]

    @torch.inference_mode()
    def copy_out(self, blocks: Sequence[int]) -> HostCopy:
        """The content of blocks after the device's queued work: keys and values of each cache, [n, 2, L, S, G, D]."""
        ids = self._ops.staging.put(blocks, torch.int64)
        return HostCopy(self.device, *(self._ops.pack_blocks(cache.keys, cache.values, ids) for cache in self._caches))

    @torch.inference_mode()
    def copy_in(self, blocks: Sequence[int], arrays: Sequence[Tensor]) -> None:
        """Fill blocks before the next step: [n, L, S, G, D] of each array, on the host."""
        ids = self._ops.staging.put(blocks, torch.int64)
        for cache, both in zip(self._caches, zip(arrays[::2], arrays[1::2], strict=True), strict=True):
            packed = self._ops.staging.copy(torch.stack(both, dim=1))
            self._ops.unpack_blocks(packed, cache.keys, cache.values, ids)


# Bytes of one read: few enough for a deadline over a slow network, enough that round trips do not count.
READ_BYTES = 8 << 20
# A value is its block and an envelope: a much larger value is not ours, and is deleted unread.
_MOST_ENVELOPE = 4096


@dataclass(frozen=True, slots=True)
class Filled:
    """A full block: the request that it was computed for, its name in the prefix cache, its number in memory."""

    request: GenerateRequest
    name: bytes
    block: int


# The share of a fetch's deadline that one reply of the store may take: a fetch has several.
_ANSWER_SHARE = 0.25


class BlockStore:
    """The store of the option kv_store. Any thread may read; `memory` belongs to the engine's thread."""

    def __init__(
        self, options: EngineOptions, memory: BlockMemory, model: str, draft: str | None, adapters: Mapping[str, str]
    ) -> None:
        """`model`, `draft` and `adapters` are fingerprints.

        Raises: EngineError that names the problem with the URL or the secret's file.
        """
        assert options.kv_store is not None
        secret = None if options.kv_secret_file is None else read_secret(options.kv_secret_file)
        deadline_seconds = options.kv_deadline * _ANSWER_SHARE
        self.store: StateStore = open_store(
            options.kv_store, secret=secret, ttl_seconds=options.kv_ttl, deadline_seconds=deadline_seconds
        )
        self.memory = memory
        self.block_size = options.block_size
        self.cost = ReadCost()
        dtype = str(memory.dtype).removeprefix("torch.")
        identity = BlockIdentity(model, dtype, options.block_size, options.kv_codec, options.deterministic, draft)
        self._keys = BlockKeys(identity, adapters, secret)
        self._codec = BlockCodec(memory.shapes, memory.dtype, CODECS[options.kv_codec])
        where = str(self.store.address) if isinstance(self.store, RedisStateStore) else "this process"
        self.about = (  # for the log
            f"{where}: {self.block_bytes / 1024:,.0f} KiB a block ({options.kv_codec}), kept {options.kv_ttl / 3600:g} "
            f"h after its last use{', sealed' if secret else ''}; waits {options.kv_deadline:g} s"
        )

    @property
    def block_bytes(self) -> int:
        """Stored size of one block."""
        return self._codec.num_bytes

    # Writing

    def should_write(self, filled: Filled) -> bool:
        """Whether a block should be copied: it was not written lately, and the write queue has room."""
        return self.store.wants(self._keys.of(filled.request, filled.name), self.block_bytes)

    def put(self, filled: Sequence[Filled], copied: HostCopy) -> None:
        """Queue blocks to be written: `copied` holds them in this order, on the host."""
        packed = copied.values()

        def put(place: int, each: Filled) -> None:
            def make() -> State | None:
                return self._codec.encode([array for blocks in packed for array in blocks[place]])

            key = self._keys.of(each.request, each.name)
            self.store.put(key, self.block_bytes, make, each.request.cache_salt)

        for place, each in enumerate(filled):
            put(place, each)

    # Reading

    def is_worth(self, num_blocks: int, prefill_seconds_per_token: float) -> bool:
        """Whether `num_blocks` are expected to be read sooner than computed."""
        num_tokens = num_blocks * self.block_size
        return self.cost.is_worth(num_tokens, num_blocks * self.block_bytes, prefill_seconds_per_token)

    def find(self, request: GenerateRequest, names: Sequence[bytes]) -> int:
        """How many blocks of this chain's beginning are stored."""
        started_at = perf_counter()
        keys = [self._keys.of(request, name) for name in names]
        sizes = self.store.sizes(keys)
        self.cost.learn(0, perf_counter() - started_at)
        largest = self.block_bytes + _MOST_ENVELOPE
        if strange := [key for key, size in zip(keys, sizes, strict=True) if size > largest]:
            self.store.delete(strange)
        return next((place for place, size in enumerate(sizes) if not 0 < size <= largest), len(names))

    def read(self, request: GenerateRequest, names: Sequence[bytes]) -> Iterator[list[Tensor]]:
        """Blocks of a chain in order, in bounded reads, until one is missing: [n, L, S, G, D] of each array."""
        a_read = max(1, READ_BYTES // self.block_bytes)
        for start in range(0, len(names), a_read):
            some = names[start : start + a_read]
            started_at = perf_counter()
            states = self.store.get([self._keys.of(request, name) for name in some], request.cache_salt)
            whole: list[State] = []
            for state in states:
                if state is None:
                    break
                whole.append(state)
            if whole:
                yield self._codec.decode(whole)
                self.cost.learn(len(whole) * self.block_bytes, perf_counter() - started_at)
            if len(whole) < len(some):
                return

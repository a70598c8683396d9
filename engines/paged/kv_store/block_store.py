"""Blocks in a store of states: what each is called there, how large it is, how it is written and read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from torch import Tensor

from engines.paged.api_types import GenerateRequest
from engines.paged.kv_store.codec import BlockCodec
from engines.paged.kv_store.cost import ReadCost
from engines.paged.kv_store.keys import BlockKeys
from engines.paged.kv_store.memory import BlockMemory
from engines.paged.runner.host_copy import HostCopy
from engines.state.interfaces import StateStore
from engines.state.values import State

# One read: little enough to come within a deadline over a slow network, enough that round trips do not count.
READ_BYTES = 8 << 20
# A value is its block and an envelope: what is much larger was not written by us, and is deleted unread.
_MOST_ENVELOPE = 4096


@dataclass(frozen=True, slots=True)
class Filled:
    """A block that is full: of whose text, its name in the prefix cache, its number in memory."""

    request: GenerateRequest
    name: bytes
    block: int


class BlockStore:
    """Any thread may read; `memory` is the engine's thread's."""

    def __init__(
        self, store: StateStore, keys: BlockKeys, codec: BlockCodec, memory: BlockMemory, about: str, block_size: int
    ) -> None:
        """`about` tells people of the store."""
        self.store = store
        self.memory = memory
        self.about = about
        self.block_size = block_size
        self.cost = ReadCost()
        self._keys = keys
        self._codec = codec

    def __repr__(self) -> str:
        return f"<BlockStore {self._keys!r} {self._codec!r} {self.cost!r} in {self.store!r}>"

    @property
    def block_bytes(self) -> int:
        """Of one block as it is kept."""
        return self._codec.num_bytes

    # Writing

    def wants(self, filled: Filled) -> bool:
        """Whether it is worth copying: it was not written lately, and there is room for it to wait."""
        return self.store.wants(self._keys.of(filled.request, filled.name), self.block_bytes)

    def put(self, filled: Sequence[Filled], copied: HostCopy) -> None:
        """Have blocks written, some time soon: `copied` holds them in this order, and all of it is on the host."""
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
        """Whether so many blocks are read sooner than computed, as far as is known."""
        num_tokens = num_blocks * self.block_size
        return self.cost.is_worth(num_tokens, num_blocks * self.block_bytes, prefill_seconds_per_token)

    def find(self, request: GenerateRequest, names: Sequence[bytes]) -> int:
        """How many blocks of this chain's beginning are there."""
        started_at = perf_counter()
        keys = [self._keys.of(request, name) for name in names]
        sizes = self.store.sizes(keys)
        self.cost.learn(0, perf_counter() - started_at)
        largest = self.block_bytes + _MOST_ENVELOPE
        if strange := [key for key, size in zip(keys, sizes, strict=True) if size > largest]:
            self.store.delete(strange)
        return next((place for place, size in enumerate(sizes) if not 0 < size <= largest), len(names))

    def read(self, request: GenerateRequest, names: Sequence[bytes]) -> Iterator[list[Tensor]]:
        """Blocks of a chain in their order, in bounded reads, until one is not there: [n, L, S, G, D] of each array."""
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

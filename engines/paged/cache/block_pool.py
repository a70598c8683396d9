"""The states and holders of cache blocks. Pure bookkeeping: the memory is `memory.KVCache`.

A block is in one of three states:

    used      its reference count is above 0
    cached    it has no holder, but a name and complete content, and is found by its name
    empty     neither

Empty blocks are allocated first, then cached ones, least recently freed first.

A name is a chain of sha256 over the tokens: the same in each process and on each machine.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

# Blocks inspected for a run: about a context's worth, in microseconds.
_LARGEST_SEARCH = 512

NULL_BLOCK = 0  # never allocated: tables are padded with it, and padding rows write there


class BlockPool:
    """Blocks 1 .. num_blocks - 1."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool has at least 2 blocks, not {num_blocks}")
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._names: list[bytes | None] = [None] * num_blocks
        self._by_name: dict[bytes, int] = {}
        # Both in the order of allocation.
        self._empty: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._cursor = 1  # where the search for the next run begins
        self.num_evicted = 0  # names dropped for room
        self.on_evicted: Callable[[bytes | None], None] | None = None  # called with a dropped name; None: with all

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated."""
        return len(self._empty) + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - 1 - self.num_free

    @property
    def capacity(self) -> int:
        return self.num_blocks - 1

    def references(self, block: int) -> int:
        """The number of holders."""
        return self._references[block]

    def allocate(self, count: int, after: int = NULL_BLOCK, room: int = 0) -> list[int]:
        """Allocate blocks, neighbours where possible, as a run is read in one piece: those behind block `after` where
        they are empty, else a run with `room` more empty blocks behind it, for the sequence to grow into.

        Raises: ValueError where `count` exceeds `num_free`.
        """
        if count > self.num_free:
            raise ValueError(f"{count} blocks wanted, {self.num_free} free")
        blocks: list[int] = []
        if after != NULL_BLOCK:
            while len(blocks) < count and after + 1 in self._empty:
                after += 1
                blocks.append(self._take(after))
        missing = count - len(blocks)
        start = self._find_run(missing + room) if missing and not blocks else None
        if start is not None:
            blocks += [self._take(block) for block in range(start, start + missing)]
        else:
            # Blocks of one sequence were freed together, last first: sorted they are a run again.
            blocks += sorted(self._take_any() for _ in range(missing))
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Hold used or cached blocks once more."""
        for block in blocks:
            if not self._references[block]:
                del self._cached[block]
            self._references[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Free a sequence's blocks, the last first, so that the beginning of a prompt stays cached longest."""
        for block in reversed(blocks):
            references = self._references[block] - 1
            assert references >= 0, f"block {block} is let go of twice"
            self._references[block] = references
            if not references:
                if self._names[block] is None:
                    self._empty[block] = None
                else:
                    self._cached[block] = None

    def name(self, block: int, name: bytes) -> None:
        """Name the content of a used block that is full. Another block of that name keeps it."""
        if self._names[block] is None and self._by_name.setdefault(name, block) == block:
            self._names[block] = name

    def find(self, names: Iterable[bytes]) -> list[int]:
        """The blocks of the longest cached beginning of this chain."""
        blocks = []
        for name in names:
            block = self._by_name.get(name)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_cached(self, blocks: Iterable[int]) -> int:
        """How many of these have no holder: sharing them reduces `num_free` by as many."""
        return sum(not self._references[block] for block in blocks)

    def forget(self) -> None:
        """Drop all names; used blocks stay used."""
        for block in self._by_name.values():
            self._names[block] = None
        self._by_name.clear()
        self._empty.update(self._cached)
        self._cached.clear()
        if self.on_evicted is not None:
            self.on_evicted(None)

    def _find_run(self, size: int) -> int | None:
        """The first block of a run of empty neighbours, searched from the end of the last one; None after a bounded
        search."""
        length, block = 0, self._cursor
        for _ in range(_LARGEST_SEARCH):
            if block == self.num_blocks:
                length, block = 0, 1
            length = length + 1 if block in self._empty else 0
            block += 1
            if length == size:
                self._cursor = block
                return block - size
        self._cursor = block
        return None

    def _take(self, block: int) -> int:
        del self._empty[block]
        self._references[block] = 1
        return block

    def _take_any(self) -> int:
        if self._empty:
            block, _ = self._empty.popitem(last=False)
        else:
            block, _ = self._cached.popitem(last=False)
            name = self._names[block]
            assert name is not None
            del self._by_name[name]
            self._names[block] = None
            self.num_evicted += 1
            if self.on_evicted is not None:
                self.on_evicted(name)
        self._references[block] = 1
        return block


_SCHEME = b"pointsman kv 1"


def root_hash(namespace: str) -> bytes:
    """The root of a sequence's chain. Sequences of different namespaces (adapter, tenant) share nothing."""
    return hashlib.sha256(_SCHEME + namespace.encode()).digest()


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The name of the block with these tokens behind the block named `parent`."""
    return hashlib.sha256(parent + array("i", tokens).tobytes()).digest()

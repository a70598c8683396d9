"""The blocks of sequences, and which of them others may share."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Any

from engines.paged.cache.block_pool import NULL_BLOCK, BlockPool
from engines.paged.scheduling.sequence import Sequence, SequenceStatus

# Blocks left empty behind a new sequence where there are enough; a longer answer continues elsewhere.
_LARGEST_ROOM = 64
# Called with a sequence, the name of a full block, and the block.
OnFull = Callable[[Sequence, bytes, int], None]
# Called with a sequence, and the places [first, end) of its blocks that have a name now.
OnNamed = Callable[[Sequence, int, int], None]


class BlockManager:
    """Allocates blocks from a pool, names them once they are full, shares them, and copies them before they are
    written."""

    def __init__(self, pool: BlockPool, block_size: int, *, shares: bool, chunk_tokens: int | None) -> None:
        """`shares`: equal prefixes are computed once. `chunk_tokens`: only whole chunks of prompts are shared."""
        if chunk_tokens is not None and chunk_tokens % block_size:
            raise ValueError(f"chunks of {chunk_tokens} tokens are not whole blocks of {block_size}")
        self.pool = pool
        self.block_size = block_size
        self._shares = shares
        self._chunk_tokens = chunk_tokens
        self.on_full: OnFull | None = None
        self.on_named: OnNamed | None = None

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def fits(self, sequence: Sequence, reserve: int) -> bool:
        """Whether blocks for all tokens of a waiting sequence are free, and `reserve` more."""
        shared, _ = self._cached_prefix(sequence)
        num_needed = self.num_blocks(sequence.num_tokens) - len(shared) + self.pool.num_cached(shared)
        return num_needed + reserve <= self.pool.num_free

    def occupy(self, sequence: Sequence) -> None:
        """Give a sequence blocks for all its tokens: cached ones, then new ones."""
        shared, num_computed = self._cached_prefix(sequence)
        self.pool.share(shared)
        missing = self.num_blocks(sequence.num_tokens) - len(shared)
        room = self.num_blocks(sequence.max_tokens) - self.num_blocks(sequence.num_tokens)
        last = shared[-1] if shared else NULL_BLOCK
        sequence.blocks = shared + self.pool.allocate(missing, last, min(room, _LARGEST_ROOM))
        sequence.num_computed = num_computed
        sequence.num_named = min(len(shared), num_computed // self.block_size)
        if self.on_full is not None and self._shares:
            for name, block in zip(sequence.names(sequence.num_named), shared, strict=False):
                self.on_full(sequence, name, block)
        if self.on_named is not None and sequence.num_named:  # blocks from a store have no event yet
            self.on_named(sequence, 0, sequence.num_named)

    def chain(self, sequence: Sequence) -> tuple[list[bytes], int]:
        """The names of the blocks that a sequence may share, and how many of the first are cached."""
        if not self._shares or sequence.scores_prompt or sequence.choice:
            return [], 0
        names = sequence.names((sequence.num_tokens - 1) // self.block_size)
        self._cut_to_chunks(names)
        return names, len(self.pool.find(names))

    def adopt(self, names: Many[bytes], first: int, reserve: int) -> list[tuple[int, int]]:
        """Allocate blocks for stored content: the names of a chain from place `first` on that are not cached, as long
        as `reserve` blocks stay free.
        Returns: (place, block) of each, to be filled before the next step. Like all cached blocks they have no holder
        and are found by name."""
        here = [self.pool.find((name,)) for name in names]
        held = [block for cached in here for block in cached]
        self.pool.share(held)  # they must not be evicted for the blocks behind them
        missing = [place for place in range(first, len(names)) if not here[place]]
        del missing[max(0, self.pool.num_free - reserve) :]
        blocks = self.pool.allocate(len(missing))
        for place, block in zip(missing, blocks, strict=True):
            self.pool.name(block, names[place])
            here[place] = [block]
        self.pool.free([block for cached in here for block in cached])
        return list(zip(missing, blocks, strict=True))

    def has_room(self, sequence: Sequence, end: int) -> bool:
        """Whether `extend` finds the blocks that it needs."""
        missing, is_shared = self._missing(sequence, end)
        return missing + is_shared <= self.pool.num_free

    def extend(self, sequence: Sequence, end: int) -> tuple[int, int] | None:
        """Allocate blocks to write positions up to `end`; the copy to make first, (from, to), or None."""
        missing, is_shared = self._missing(sequence, end)
        copy = None
        if is_shared:
            index = sequence.num_computed // self.block_size
            old, (new,) = sequence.blocks[index], self.pool.allocate(1)
            sequence.blocks[index] = new
            self.pool.free((old,))
            copy = old, new
        if missing:
            last = sequence.blocks[-1] if sequence.blocks else NULL_BLOCK
            sequence.blocks += self.pool.allocate(missing, after=last)
        return copy

    def release(self, sequence: Sequence) -> None:
        """Free all blocks of a sequence."""
        self.pool.free(sequence.blocks)
        sequence.blocks = []
        sequence.num_computed = sequence.num_named = 0

    def publish_full(self, sequence: Sequence) -> None:
        """Name the blocks that are full of known tokens, so that other sequences find them."""
        if not self._shares or sequence.status is not SequenceStatus.RUNNING:
            return
        num_tokens = min(sequence.num_computed, len(sequence.tokens))
        if self._chunk_tokens is not None:
            num_tokens = min(num_tokens, sequence.num_prompt // self._chunk_tokens * self._chunk_tokens)
        full = num_tokens // self.block_size
        if full > sequence.num_named:
            names = sequence.names(full)
            for index in range(sequence.num_named, full):
                self.pool.name(sequence.blocks[index], names[index])
                if self.on_full is not None:
                    self.on_full(sequence, names[index], sequence.blocks[index])
            if self.on_named is not None:
                self.on_named(sequence, sequence.num_named, full)
            sequence.num_named = full

    def move(self, moves: list[tuple[Sequence, Sequence, list[int]]]) -> None:
        """Continue sequences from others of their request (beams): (sequence, parent, its tokens from now on). A block
        that two of them write is copied."""
        inherited = [(list(parent.blocks), parent.num_computed) for _, parent, _ in moves]
        for blocks, _ in inherited:
            self.pool.share(blocks)
        for (sequence, _, tokens), (blocks, num_computed) in zip(moves, inherited, strict=True):
            sequence.rewrite(tokens)
            if sequence.status is not SequenceStatus.RUNNING:
                self.pool.free(blocks)  # it waits for room, and recomputes everything
                continue
            self.pool.free(sequence.blocks)
            sequence.blocks = blocks
            sequence.num_computed = min(num_computed, len(blocks) * self.block_size)
            sequence.num_named = min(sequence.num_named, sequence.num_computed // self.block_size)

    def _cached_prefix(self, sequence: Sequence) -> tuple[list[int], int]:
        """Blocks that hold the first tokens of a sequence, and how many tokens these are. The last token is always
        recomputed, for the logits that follow it."""
        parent = sequence.parent
        if (
            parent is not None
            and self._chunk_tokens is None
            and parent.status is SequenceStatus.RUNNING
            and parent.num_computed >= sequence.num_prompt
            and len(sequence.tokens) == sequence.num_prompt
        ):
            return parent.blocks[: self.num_blocks(sequence.num_prompt)], sequence.num_prompt - 1
        if not self._shares or sequence.scores_prompt:
            return [], 0
        blocks = self.pool.find(sequence.names((sequence.num_tokens - 1) // self.block_size))
        self._cut_to_chunks(blocks)
        return blocks, len(blocks) * self.block_size

    def _cut_to_chunks(self, blocks: list[Any]) -> None:
        if self._chunk_tokens is not None:
            blocks_per_chunk = self._chunk_tokens // self.block_size
            del blocks[len(blocks) // blocks_per_chunk * blocks_per_chunk :]

    def _missing(self, sequence: Sequence, end: int) -> tuple[int, bool]:
        """How many blocks to allocate so that positions up to `end` can be written, and whether the first one written
        is shared and must be copied."""
        first = sequence.num_computed // self.block_size
        is_shared = first < len(sequence.blocks) and self.pool.references(sequence.blocks[first]) > 1
        return max(0, self.num_blocks(end) - len(sequence.blocks)), is_shared

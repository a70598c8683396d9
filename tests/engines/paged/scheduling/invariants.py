"""Invariants of the scheduler's bookkeeping."""

from collections.abc import Iterable, Sequence

from engines.paged.cache.block_pool import NULL_BLOCK, BlockPool
from engines.paged.scheduling.scheduler import Scheduler
from engines.paged.scheduling.sequence import SequenceStatus


def check_pool(pool: BlockPool, held: Iterable[Sequence[int]]) -> None:
    """Assert that the pool's counts match the blocks of each holder."""
    counts = [0] * pool.num_blocks
    for blocks in held:
        for block in blocks:
            counts[block] += 1
    assert counts == pool._references, "references are not those that are held"
    assert not counts[NULL_BLOCK], "the null block has a holder"
    free = set(pool._empty) | set(pool._cached)
    assert len(free) == len(pool._empty) + len(pool._cached), "a block is both empty and cached"
    assert free == {block for block in range(1, pool.num_blocks) if not counts[block]}, "a block is lost"
    for block in pool._empty:
        assert pool._names[block] is None, f"empty block {block} has a name"
    for block in pool._cached:
        assert pool._names[block] is not None, f"cached block {block} has no name"
    assert pool._by_name == {name: block for block, name in enumerate(pool._names) if name is not None}


def check_scheduler(scheduler: Scheduler) -> None:
    """Assert that the blocks, slots and states of all sequences match."""
    manager = scheduler.block_manager
    check_pool(scheduler.pool, [sequence.blocks for sequence in scheduler.running])
    for sequence in scheduler.running:
        assert sequence.status is SequenceStatus.RUNNING, sequence
        assert sequence.num_computed <= len(sequence.blocks) * manager.block_size, sequence
        assert len(sequence.blocks) <= manager.num_blocks(max(sequence.max_tokens, sequence.num_tokens)), sequence
    for status, others in (
        (SequenceStatus.WAITING, set(scheduler.waiting)),
        (SequenceStatus.FETCHING, scheduler.fetching),
    ):
        for sequence in others:
            assert not sequence.blocks and sequence.slot == -1 and sequence.status is status, sequence
    assert not scheduler.fetching & set(scheduler.waiting)
    slots = [sequence.slot for sequence in scheduler.running]
    assert sorted(slots + scheduler._slots) == list(range(scheduler.max_sequences)), "a slot is lost"

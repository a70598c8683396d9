"""The block pool: allocation, sharing, naming and eviction."""

import random

import pytest

from engines.paged.cache.block_pool import BlockPool
from tests.engines.paged.scheduling.invariants import check_pool


def test_blocks_come_in_runs() -> None:
    """A new sequence gets contiguous blocks and grows into the gap left behind them."""
    pool = BlockPool(100)
    first = pool.allocate(3, room=4)
    second = pool.allocate(2, room=4)
    assert (first, second) == ([1, 2, 3], [8, 9])
    for _ in range(4):
        first += pool.allocate(1, after=first[-1])
    assert first == [1, 2, 3, 4, 5, 6, 7]
    assert pool.allocate(1, after=7) == [14]  # 8 is taken


def test_what_one_sequence_let_go_of_is_a_run_again() -> None:
    """In a pool of cached blocks, an allocation evicts the contiguous blocks that were freed first."""
    pool = BlockPool(13)
    holders = [pool.allocate(4) for _ in range(3)]
    for holder in holders:
        for block in holder:
            pool.name(block, bytes([block]))
    for holder in (holders[1], holders[0], holders[2]):
        pool.free(holder)
    assert pool.allocate(4) == [5, 6, 7, 8]
    assert pool.num_evicted == 4


def test_the_end_of_a_prompt_is_forgotten_before_its_beginning() -> None:
    """Eviction takes the last block of a cached chain first, so that its beginning can still be found."""
    pool = BlockPool(4)
    chain = pool.allocate(3)
    names = [b"a", b"b", b"c"]
    for block, name in zip(chain, names, strict=True):
        pool.name(block, name)
    pool.free(chain)
    assert pool.find(names) == chain
    pool.allocate(1)
    assert pool.find(names) == chain[:2]


def test_more_than_there_is_cannot_be_had() -> None:
    """An allocation that exceeds the free blocks fails and changes nothing; the null block is never allocated."""
    pool = BlockPool(4)
    with pytest.raises(ValueError, match="4 blocks wanted, 3 free"):
        pool.allocate(4)
    assert sorted(pool.allocate(3)) == [1, 2, 3]
    with pytest.raises(ValueError, match="a pool has at least 2 blocks, not 1"):
        BlockPool(1)


def test_of_two_equal_blocks_one_is_known() -> None:
    """Of two blocks with equal content only the first is named; the second is empty once it is freed."""
    pool = BlockPool(5)
    first, second = pool.allocate(1), pool.allocate(1)
    pool.name(first[0], b"x")
    pool.name(second[0], b"x")
    pool.free(second)
    assert pool.find([b"x"]) == first
    check_pool(pool, [first])


@pytest.mark.parametrize("seed", range(5))
def test_random_walks_keep_the_books(seed: int) -> None:
    """After each random step every block is used, cached or empty, and its reference count equals its number of
    holders."""
    dice = random.Random(seed)
    pool = BlockPool(30)
    held: list[list[int]] = []
    for _ in range(400):
        choice = dice.random()
        if choice < 0.4 and pool.num_free:
            held.append(pool.allocate(dice.randrange(1, min(5, pool.num_free) + 1), room=dice.randrange(4)))
            for block in held[-1]:
                pool.name(block, bytes([dice.randrange(40)]))
        elif choice < 0.5 and held:
            shared = list(dice.choice(held))
            pool.share(shared)
            held.append(shared)
        elif choice < 0.6 and (found := pool.find([bytes([dice.randrange(40)])])):
            pool.share(found)
            held.append(found)
        elif choice < 0.62:
            pool.forget()
        elif held:
            pool.free(held.pop(dice.randrange(len(held))))
        check_pool(pool, held)

"""The choice between reading and computing a stored block, by measured costs."""

import pytest

from engines.paged.kv_store.block_store import ReadCost

MIB = 1 << 20
# Tokens, bytes, prefill seconds per token -> whether to read, with a round trip of 1 ms and 100 MiB/s.
CASES = [
    (2000, 32 * MIB, 0.001, True),  # 2 s to compute, 0.32 s to read
    (2000, 250 * MIB, 0.001, False),  # 2.5 s to read
    (16, 1, 0.00005, False),  # 0.8 ms to compute: less than a round trip
    (16, 1, 0.0001, True),
    (2000, 250 * MIB, 0.0, True),  # the prefill rate is unknown
]


def known() -> ReadCost:
    cost = ReadCost()
    cost.learn(0, 0.001)
    cost.learn(100 * MIB, 1.001)
    return cost


@pytest.mark.parametrize("tokens, num_bytes, prefill, is_worth", CASES)
def test_the_cheaper_path_is_chosen(tokens: int, num_bytes: int, prefill: float, is_worth: bool) -> None:
    """A block is read if tokens / prefill rate > bytes / bandwidth + round trip."""
    assert known().is_worth(tokens, num_bytes, prefill) is is_worth


def test_what_is_not_known_is_tried() -> None:
    """Without measurements a block is read."""
    assert ReadCost().is_worth(16, 1 << 30, 0.0001)


def test_the_newest_reads_count_most() -> None:
    """The estimate follows the latest reads, so that a slower network is noticed soon."""
    cost = known()
    for _ in range(10):
        cost.learn(100 * MIB, 10.0)
    assert 9.0 < cost.seconds(100 * MIB) < 10.1


def test_an_estimate_that_rules_reads_out_fades() -> None:
    """A slow read does not disable the store for good: after a few refusals a read is tried again."""
    cost = known()
    answers = [cost.is_worth(2000, 250 * MIB, 0.001) for _ in range(4)]
    assert answers == [False, False, False, True]

"""What a worker's connections share."""

from itertools import islice, pairwise

from gateway.dataplane.context.data_plane import random_ids


def test_request_ids_cannot_be_guessed() -> None:
    """An id has 128 random bits: neither its neighbours nor other ids of the worker tell any of them."""
    ids = list(islice(random_ids(), 1000))
    assert len(set(ids)) == 1000
    numbers = [int(each, 16) for each in ids]
    assert {len(each) for each in ids} == {32}
    ones = [sum(number >> bit & 1 for number in numbers) for bit in range(128)]
    assert min(ones) > 350, "a bit that hardly changes"  # 500 is expected; 350 is 9.5 standard deviations away
    assert max(ones) < 650, "a bit that hardly changes"
    alike = [128 - (one ^ other).bit_count() for one, other in pairwise(numbers)]
    assert max(alike) < 120, "two that follow each other have most bits in common"

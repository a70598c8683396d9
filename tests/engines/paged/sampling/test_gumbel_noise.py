"""The sampling noise: known results, equivalent implementations, and statistics."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from engines.paged.ops.reference.gumbel_noise import (
    add_noise_,
    gumbel,
    noise_at,
    row_key,
    row_keys,
    splitmix64,
    squares32,
)

MASK = (1 << 64) - 1


def squares32_of_the_paper(ctr: int, key: int) -> int:
    """The C code of arXiv:2004.06278, line by line, in Python."""
    y = x = ctr * key & MASK
    z = y + key & MASK
    x = x * x + y & MASK
    x = x >> 32 | x << 32 & MASK
    x = x * x + z & MASK
    x = x >> 32 | x << 32 & MASK
    x = x * x + y & MASK
    x = x >> 32 | x << 32 & MASK
    return (x * x + z & MASK) >> 32


def signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def test_splitmix64_is_the_published_one():
    """splitmix64 of state 0 begins with the numbers of its published test, state by state."""
    assert splitmix64(0) == 0xE220A8397B1DCDAF
    assert splitmix64(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4
    assert splitmix64(2 * 0x9E3779B97F4A7C15 & MASK) == 0x06C45D188009454F


@pytest.mark.parametrize("key", [0xC58EFD154CE32F6D, 1, MASK, row_key(0, 0), row_key(7, 2**31)])
def test_squares32_is_the_papers(key):
    """The counter generator gives the numbers of the paper's C code, for any counter and key of 64 bits."""
    counters = [0, 1, 2, 255, 151_936, 2**31, 2**32 - 1, 2**32, 2**63, MASK]
    expected = [squares32_of_the_paper(counter, key) for counter in counters]
    got = squares32(torch.tensor([signed(counter) for counter in counters]), torch.tensor(signed(key)))
    assert got.tolist() == expected


def test_known_answers():
    """A seed, position and id yield these 32 bits and this key: a reference for backends in any language."""
    assert [f"{row_key(seed, position):016x}" for seed, position in ((0, 0), (42, 7), (MASK, 100_000))] == KEYS
    assert [squares32_of_the_paper(token + 1, row_key(42, 7)) for token in (0, 1, 2, 31_999)] == BITS


KEYS = ["a706dd2f4d197e6f", "fe2f108189f83df7", "f3dbbe3f81d565ed"]
BITS = [2485047928, 236595177, 3554029284, 2834982229]


def test_keys_of_rows():
    """The keys of many rows equal those of each row, for seeds as unsigned bits, in both implementations."""
    from engines.paged.ops.reference import gumbel_noise

    seeds, positions = [0, 1, 42, signed(MASK), signed(1 << 63)], [0, 5, 7, 100_000, 2**31]
    expected = [signed(row_key(seed & MASK, position)) for seed, position in zip(seeds, positions, strict=True)]
    assert row_keys(torch.tensor(seeds), torch.tensor(positions)).tolist() == expected
    elsewhere = gumbel_noise._splitmix64(gumbel_noise._splitmix64(torch.tensor(seeds)) + torch.tensor(positions)) | 1
    assert elsewhere.tolist() == expected


@pytest.mark.parametrize("vocabulary", [1, 2, 31, 16 * 1024, 16 * 1024 + 1, 50_000])
def test_fast_is_slow(vocabulary):
    """The CPU's fast noise of whole rows equals the plain definition's, to two units in the last place."""
    keys = row_keys(torch.tensor([3, -9]), torch.tensor([0, 4000]))
    fast = add_noise_(torch.zeros(2, vocabulary), keys)
    slow = noise_at(keys[:, None], torch.arange(vocabulary))
    torch.testing.assert_close(fast, slow, rtol=3e-7, atol=3e-7)


def test_rows_do_not_know_each_other():
    """A row's noise is bit-identical alone and in a batch."""
    keys = row_keys(torch.arange(5), torch.arange(5) * 11)
    together = add_noise_(torch.zeros(5, 999), keys)
    alone = [add_noise_(torch.zeros(1, 999), keys[i : i + 1]) for i in range(5)]
    assert torch.equal(together, torch.cat(alone))


def test_noise_is_finite_at_the_ends():
    """The smallest and the largest 32 bits give finite noise, and higher bits never give more noise."""
    bits = torch.tensor([0, 1, 2**31, 2**32 - 512, 2**32 - 2, 2**32 - 1])
    noise = gumbel(bits)
    assert torch.isfinite(noise).all()
    assert (noise.diff() <= 0).all()
    assert noise[0].item() == pytest.approx(33 * math.log(2), rel=1e-6)
    assert noise[2].item() == pytest.approx(-math.log(math.log(2)), rel=1e-6)
    assert noise[5].item() == pytest.approx(-math.log(24 * math.log(2)), rel=1e-6)


def uniform_counts(bits: torch.Tensor, shift: int) -> np.ndarray:
    """How often each of the 256 values of a byte occurs."""
    return np.bincount((bits >> shift).flatten().numpy() & 255, minlength=256)


def grid(kind: str) -> torch.Tensor:
    """Random words along one axis: ids of a row, positions at one id, or seeds at one position."""
    many = torch.arange(100_000)
    if kind == "ids":
        return squares32(many + 1, row_keys(torch.tensor([1]), torch.tensor([9])))
    if kind == "positions":
        return squares32(torch.tensor([[1], [18]]), row_keys(torch.zeros(100_000, dtype=torch.int64), many))
    return squares32(torch.tensor([[1], [18]]), row_keys(many, torch.zeros(100_000, dtype=torch.int64)))


@pytest.mark.parametrize("kind", ["ids", "positions", "seeds"])
@pytest.mark.parametrize("shift", [0, 8, 16, 24])
def test_bytes_are_uniform(kind, shift):
    """Every byte of the random words is uniform along ids, positions and seeds."""
    assert 1e-4 < stats.chisquare(uniform_counts(grid(kind), shift)).pvalue < 1 - 1e-4


@pytest.mark.parametrize("kind", ["ids", "positions", "seeds"])
def test_neighbours_are_independent(kind):
    """The upper four bits of a word are independent of those of the next."""
    upper = (grid(kind) >> 28).flatten().numpy()
    pairs = np.bincount(upper[:-1] * 16 + upper[1:], minlength=256).reshape(16, 16)
    assert stats.chi2_contingency(pairs).pvalue > 1e-4


def test_the_same_id_at_the_next_position():
    """An id's noise at one position is independent of its and its neighbour's noise at the next."""
    keys = row_keys(torch.full((200,), 5), torch.arange(200))
    words = squares32(torch.arange(1, 1001), keys[:, None]) >> 28
    for next_words in (words[1:], words[1:].roll(1, dims=1)):
        pairs = torch.bincount((words[:-1] * 16 + next_words).flatten(), minlength=256).reshape(16, 16)
        assert stats.chi2_contingency(pairs.numpy()).pvalue > 1e-4


def test_tokens_come_as_often_as_they_should():
    """The argmax of log probability plus noise selects each token with its probability."""
    probabilities = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.04, 0.0099, 0.0001])
    keys = row_keys(torch.full((200_000,), 3), torch.arange(200_000))
    scores = probabilities.log() + noise_at(keys[:, None], torch.arange(7))
    counts = torch.bincount(scores.argmax(1), minlength=7).numpy()
    assert (
        stats.chisquare(counts, probabilities.double().numpy() * 200_000 / probabilities.double().sum().item()).pvalue
        > 1e-4
    )

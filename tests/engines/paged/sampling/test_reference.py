"""Sampling: the effect of temperature, filters, penalties and masks, independent of other rows."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from engines.paged.ops.interface import SamplingBatch
from engines.paged.ops.reference import sampling as reference
from engines.paged.ops.reference.filters import filtered_ids, keep_
from engines.paged.ops.reference.sampling import logprobs_of, sample, top_logprobs, unpacked


def batch(rows, **fields):
    """A batch of rows sampled at temperature 1 by default; a number applies to all rows."""
    results = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seeds": 0, "positions": 0} | fields
    types = {"top_k": torch.int32, "seeds": torch.int64, "positions": torch.int64}
    for name in ("temperature", "top_k", "top_p", "min_p", "seeds", "positions"):
        value = results[name]
        value = value if isinstance(value, list) else [value] * rows
        results[name] = torch.tensor(value, dtype=types.get(name, torch.float32))
    return SamplingBatch(**results)


def choose(logits, **fields):
    logits = torch.tensor(logits)
    return sample(logits, batch(logits.shape[0], **fields))[0].tolist()


def draws(logits, count, **fields):
    """How often each token occurs in `count` draws at different positions."""
    rows = torch.tensor([logits]).expand(count, -1).contiguous()
    tokens, _ = sample(rows, batch(count, positions=list(range(count)), **fields))
    return np.bincount(tokens.numpy(), minlength=len(logits))


def test_greedy_takes_the_highest_and_the_first_of_equals():
    """At temperature 0 the token with the highest logit is chosen, the lowest id among equals."""
    assert choose([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0]], temperature=0.0) == [1, 0]
    assert choose([[1.0, 3.0, 3.0, 2.0]], temperature=0.0, is_greedy=True) == [1]


def test_temperature_draws_by_the_softmax():
    """The frequency of a token is softmax(logits / temperature)."""
    logits = [2.0, 1.0, 0.0, -1.0]
    expected = torch.tensor(logits).div(0.7).softmax(0).double().numpy() * 20_000
    assert stats.chisquare(draws(logits, 20_000, temperature=0.7), expected * 20_000 / expected.sum()).pvalue > 1e-4


def test_filters_renormalise():
    """The tokens that top-k keeps are drawn by the softmax over them, and no others occur."""
    counts = draws([2.0, 1.0, 0.0, 2.5], 20_000, top_k=2)
    assert counts[1] == counts[2] == 0
    expected = torch.tensor([2.0, 2.5]).softmax(0).double().numpy() * 20_000
    assert stats.chisquare(counts[[0, 3]], expected * 20_000 / expected.sum()).pvalue > 1e-4


FILTERS = [
    # probabilities, top_k, top_p, min_p, the remaining ids
    ([0.4, 0.3, 0.2, 0.1], 3, 1.0, 0.0, [0, 1, 2]),
    ([0.4, 0.3, 0.2, 0.1], 4, 1.0, 0.0, [0, 1, 2, 3]),
    ([0.4, 0.3, 0.2, 0.1], 9, 1.0, 0.0, [0, 1, 2, 3]),
    ([0.1, 0.2, 0.3, 0.4], 1, 1.0, 0.0, [3]),
    ([0.25, 0.25, 0.25, 0.25], 2, 1.0, 0.0, [0, 1]),
    ([0.1, 0.3, 0.3, 0.3], 2, 1.0, 0.0, [1, 2]),
    ([0.4, 0.3, 0.2, 0.1], 0, 0.65, 0.0, [0, 1]),
    ([0.4, 0.3, 0.2, 0.1], 0, 0.39, 0.0, [0]),
    ([0.4, 0.3, 0.2, 0.1], 0, 0.41, 0.0, [0, 1]),
    ([0.4, 0.3, 0.2, 0.1], 0, 1e-6, 0.0, [0]),
    ([0.25, 0.25, 0.25, 0.25], 0, 0.45, 0.0, [0, 1]),
    ([0.4, 0.3, 0.2, 0.1], 0, 1.0, 0.45, [0, 1, 2]),
    ([0.4, 0.3, 0.2, 0.1], 0, 1.0, 1.0, [0]),
    # top-p applies to what top-k left: 0.4 / 0.7 = 0.57 is less than 0.6
    ([0.4, 0.3, 0.2, 0.1], 2, 0.6, 0.0, [0, 1]),
    ([0.4, 0.3, 0.2, 0.1], 2, 0.55, 0.0, [0]),
    ([0.4, 0.3, 0.2, 0.1], 3, 0.95, 0.6, [0, 1]),
]


@pytest.mark.parametrize("probabilities, top_k, top_p, min_p, left", FILTERS)
def test_what_filters_leave(probabilities, top_k, top_p, min_p, left):
    """top-k keeps k tokens, top-p the fewest whose sum reaches p, min-p those close to the likeliest; equals are
    ordered by id."""
    scores = torch.tensor(probabilities).log()
    assert filtered_ids(scores.numpy(), top_k, top_p, min_p).tolist() == left
    kept = keep_(scores[None].clone(), torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p]))
    assert kept.isfinite().nonzero()[:, 1].tolist() == left


@settings(max_examples=150, deadline=None)
@example(seed=0, size=110, spread=0.0, steps=None, top_k=0, top_p=0.5, min_p=0.0)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 3000),
    spread=st.sampled_from([0.0, 0.1, 1.0, 4.0, 15.0]),
    steps=st.sampled_from([None, 1.0, 0.125]),
    top_k=st.sampled_from([0, 1, 2, 7, 50, 999]),
    top_p=st.sampled_from([1.0, 0.999, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 1e-4, 0.05, 1.0]),
)
def test_fast_filters_are_the_slow_ones(seed, size, spread, steps, top_k, top_p, min_p):
    """The fast filters keep the same tokens as a full sort, also among equals."""
    scores = torch.randn(1, size, generator=torch.Generator().manual_seed(seed)) * spread
    scores = scores if steps is None else (scores / steps).round() * steps
    slow = keep_(scores.clone(), torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p]))
    assert filtered_ids(scores[0].numpy(), top_k, top_p, min_p).tolist() == slow[0].isfinite().nonzero()[:, 0].tolist()


def test_flat_vocabulary():
    """top-p of a uniform vocabulary keeps the lower ids, however large the vocabulary."""
    assert filtered_ids(np.zeros(100_000, np.float32), 0, 0.5, 0.0).tolist() == list(range(50_000))


MIXED = {
    "temperature": [0.0, 1.0, 0.7, 1.3, 1.0, 2.0],
    "top_k": [5, 0, 20, 0, 0, 3],
    "top_p": [0.5, 1.0, 0.9, 0.8, 1.0, 1.0],
    "min_p": [0.0, 0.0, 0.0, 0.0, 0.2, 0.01],
    "seeds": [1, 2, 3, -4, 5, 2**63 - 1],
    "positions": [0, 1, 2, 3, 4, 5],
}


def test_rows_do_not_know_each_other():
    """A row's token and log probability are bit-identical alone, in a batch, and in another order."""
    logits = torch.randn(6, 2000, generator=torch.Generator().manual_seed(3)) * 3
    tokens, logprobs = sample(logits, batch(6, **MIXED))
    for order in ([0], [5], [3, 1, 4], [5, 4, 3, 2, 1, 0]):
        part = {name: [values[i] for i in order] for name, values in MIXED.items()}
        some_tokens, some_logprobs = sample(logits[order], batch(len(order), **part))
        assert torch.equal(some_tokens, tokens[order])
        assert torch.equal(some_logprobs, logprobs[order])


def test_all_devices_choose_alike():
    """Rows sampled together, as on a GPU, get the tokens that the CPU samples row by row."""
    logits = torch.randn(300, 500, generator=torch.Generator().manual_seed(4)) * 3
    fields = {name: values * 50 for name, values in MIXED.items()} | {"positions": list(range(300))}
    assert torch.equal(
        reference._choose_together(logits, batch(300, **fields)), sample(logits, batch(300, **fields))[0]
    )


def test_log_probabilities_are_the_models_own():
    """The log probability is that of the unmodified logits, at any temperature and penalties."""
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    bias = {"bias_rows": torch.tensor([0]), "bias_ids": torch.tensor([2]), "bias_values": torch.tensor([-100.0])}
    tokens, logprobs = sample(logits, batch(1, temperature=0.0, **bias))
    assert tokens.tolist() == [1]
    torch.testing.assert_close(logprobs, torch.tensor([1.0, 2.0, 3.0]).log_softmax(0)[1:2])
    assert logits.tolist() == [[1.0, 2.0, 3.0]]


def test_top_logprobs():
    """The likeliest tokens are in descending order, the lower id first among equals, also at the end of the list."""
    ids, logprobs = top_logprobs(torch.tensor([[0.0, 2.0, -1.0, 2.0, -0.5], [-3.0, -3.0, -3.0, -3.0, -2.0]]), 3)
    assert ids.tolist() == [[1, 3, 0], [4, 0, 1]]
    expected = torch.tensor([0.0, 2.0, -1.0, 2.0, -0.5]).log_softmax(0)[[1, 3, 0]]
    torch.testing.assert_close(logprobs[0], expected)
    assert top_logprobs(torch.zeros(1, 4), 9)[0].tolist() == [[0, 1, 2, 3]]
    many = torch.randn(3, 500, generator=torch.Generator().manual_seed(1)).mul(4).round()
    assert torch.equal(reference._top_together(many, 40), top_logprobs(many, 40)[0])


def test_logprobs_of_given_tokens():
    """A prompt's own tokens get their log probabilities."""
    logits = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    expected = logits.log_softmax(1)[[0, 1], [1, 1]]
    torch.testing.assert_close(logprobs_of(logits, torch.tensor([1, 1], dtype=torch.int32)), expected)


def table(rows, size, cells, dtype):
    made = torch.zeros(rows, size, dtype=dtype)
    for row, token, value in cells:
        made[row, token] = value
    return made


def penalised(logits, **fields):
    """The logits after a batch's penalties."""
    logits = torch.tensor(logits)
    return reference.adjust_(logits, batch(logits.shape[0], **fields)).tolist()


def test_repetition_penalty():
    """The repetition penalty divides positive and multiplies negative logits of tokens in the prompt or the output."""
    made = penalised(
        [[2.0, -2.0, 2.0, 2.0], [2.0, -2.0, 2.0, 2.0]],
        repetition=torch.tensor([2.0, 1.0]),
        seen_in_prompt=table(2, 4, [(0, 0, True), (0, 1, True), (1, 2, True)], torch.bool),
        output_counts=table(2, 4, [(0, 2, 3)], torch.int32),
    )
    assert made == [[1.0, -4.0, 1.0, 2.0], [2.0, -2.0, 2.0, 2.0]]


def test_presence_and_frequency_penalties():
    """The presence penalty is subtracted once per distinct token of the output, the frequency penalty once per
    occurrence."""
    made = penalised(
        [[2.0, 2.0, 2.0]],
        presence=torch.tensor([0.5]),
        frequency=torch.tensor([0.25]),
        output_counts=table(1, 3, [(0, 1, 1), (0, 2, 4)], torch.int32),
    )
    assert made == [[2.0, 1.25, 0.5]]


def words(rows, size, allowed):
    made = np.zeros((rows, (size + 31) // 32), np.uint32)
    for row, token in allowed:
        made[row, token // 32] |= np.uint32(1 << token % 32)
    return torch.from_numpy(made.view(np.int32))


def test_masks_forbid_tokens():
    """A token whose bit is not set is never chosen, at any temperature; a row with all bits set is unrestricted."""
    logits = torch.zeros(2, 70)
    logits[:, 69] = 50.0
    allowed = words(2, 70, [(0, 3), (0, 31), (0, 64), *((1, token) for token in range(70))])
    for seed in range(30):
        row, free = sample(logits, batch(2, seeds=seed, allowed=allowed))[0].tolist()
        assert row in (3, 31, 64)
        assert free == 69
    assert sample(logits, batch(2, temperature=0.0, allowed=allowed, top_k=2))[0].tolist() == [3, 69]


def test_masks_and_filters_together():
    """Filters apply after the mask: top-k keeps three allowed tokens, although others are likelier."""
    logits = [5.0, 1.0, 5.0, 0.5, 5.0, 0.0]
    counts = draws(logits, 300, top_k=2, allowed=words(300, 6, [(i, t) for i in range(300) for t in (1, 3, 5)]))
    assert counts.nonzero()[0].tolist() == [1, 3]
    fewer = draws(logits, 50, top_k=4, top_p=0.9, allowed=words(50, 6, [(i, t) for i in range(50) for t in (1, 3)]))
    assert fewer.nonzero()[0].tolist() == [1, 3]


def test_masks_on_any_device_are_the_processors():
    """The GPU's mask implementation forbids the same tokens as the CPU's."""
    generator = torch.Generator().manual_seed(2)
    allowed = torch.randint(-(2**31), 2**31, (4, 4), generator=generator, dtype=torch.int64).to(torch.int32)
    allowed[3] = -1
    logits = reference.adjust_(torch.zeros(4, 101), batch(4, allowed=allowed))
    assert torch.equal(unpacked(allowed, 101), logits == 0)
    assert logits[:3].isinf().any(1).all() and not logits[3].any()


def test_bias_adds_up():
    """Biases of one token add up, and one of minus infinity forbids it."""
    made = penalised(
        [[1.0, 1.0], [1.0, 1.0]],
        bias_rows=torch.tensor([0, 0, 1]),
        bias_ids=torch.tensor([1, 1, 0]),
        bias_values=torch.tensor([2.0, 0.5, -torch.inf]),
    )
    assert made == [[1.0, 3.5], [-torch.inf, 1.0]]


@pytest.mark.parametrize("fields", [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"temperature": 0.0}])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_broken_logits_break_nothing(fields, value):
    """Non-finite logits of a broken model yield a valid token."""
    token = choose([[value] * 8], **fields)[0]
    assert 0 <= token < 8


def test_tiny_temperature_is_greedy():
    """A temperature whose division overflows selects the highest logit."""
    assert choose([[1.0, 5.0, 2.0]], temperature=1e-38) == [1]

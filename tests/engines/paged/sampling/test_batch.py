"""Sampling batches: the batch that is updated from step to step equals one built from the texts alone."""

import math
import random
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from engines.paged.base.transfer import Staging
from engines.paged.base.types import SamplingParams
from engines.paged.ops.reference.sampling import sample
from engines.paged.sampling.batch import SampledRows, SamplingBatches

VOCABULARY = 50
EOS = frozenset({49})
CPU = torch.device("cpu")


@dataclass
class Text:
    """A sequence as the engine stores it."""

    prompt: list[int]
    answer: list[int] = field(default_factory=list)

    @property
    def tokens(self):
        return self.prompt + self.answer

    @property
    def num_prompt(self):
        return len(self.prompt)


def encode(text):
    """One token per letter: a is 1; a preceding space makes a word's first letter another token."""
    spaced, letters = text.startswith(" "), text.strip()
    ids = [ord(letter) - 96 for letter in letters]
    return [ids[0] + 20, *ids[1:]] if spaced and ids else ids


def batches():
    return SamplingBatches(VOCABULARY, Staging(CPU), EOS, encode)


def entry(state, *drafts):
    return SampledRows(state, len(state.history.tokens), drafts)


def test_columns():
    """Each row has its sequence's parameters, its seed's bits, and the position of the token it draws."""
    made = batches()
    a = made.admit(Text([1, 2]), SamplingParams(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1), 2**64 - 1)
    b = made.admit(Text([1], [5, 6, 7]), SamplingParams(temperature=0.0), 5)
    batch = made.build([entry(a, 8, 9), entry(b)])
    assert batch.temperature.tolist() == [0.5, 0.5, 0.5, 0.0]
    assert batch.top_k.tolist() == [3, 3, 3, 0]
    assert batch.top_p.tolist() == pytest.approx([0.9, 0.9, 0.9, 1.0])
    assert batch.min_p.tolist() == pytest.approx([0.1, 0.1, 0.1, 0.0])
    assert batch.seeds.tolist() == [-1, -1, -1, 5]
    assert batch.positions.tolist() == [2, 3, 4, 4]
    assert not batch.is_greedy and not batch.is_unfiltered
    assert batch.output_counts is batch.bias_rows is batch.allowed is None


def test_what_a_batch_need_not_do():
    """A batch knows whether all rows are greedy, and whether none is filtered."""
    made = batches()
    greedy = made.admit(Text([1]), SamplingParams(temperature=0.0, top_k=3), 1)
    plain = made.admit(Text([1]), SamplingParams(), 1)
    filtered = made.admit(Text([1]), SamplingParams(top_p=0.5), 1)
    results = [
        (b.is_greedy, b.is_unfiltered)
        for b in (made.build([entry(x), entry(greedy)]) for x in (greedy, plain, filtered))
    ]
    assert results == [(True, True), (False, True), (False, False)]


def test_beams_are_not_drawn():
    """A beam's row yields the likeliest tokens: sampling and penalties do not apply to it."""
    made = batches()
    beam = made.admit(Text([1]), SamplingParams(temperature=0.7, presence_penalty=1.0, beam_width=3), 1)
    batch = made.build([entry(beam)])
    assert batch.is_greedy and batch.output_counts is None


def test_the_same_rows_cost_nothing():
    """While the same sequences continue, only the positions are built again."""
    made = batches()
    text = Text([1, 2])
    state = made.admit(text, SamplingParams(temperature=0.5, logit_bias={3: 1.0}), 1)
    first = made.build([entry(state)])
    kept, positions = (first.temperature, first.bias_values), first.positions
    text.answer.append(4)
    second = made.build([entry(state)])
    assert kept[0] is second.temperature
    assert kept[1] is second.bias_values
    assert (positions.tolist(), second.positions.tolist()) == ([2], [3])
    greedy = made.admit(text, SamplingParams(temperature=0.0), 1)
    assert made.build([entry(greedy)]).positions is made.build([entry(greedy)]).positions


def test_min_tokens_forbid_the_end():
    """Before min_tokens neither EOS nor stop tokens are allowed, where each draft counts; afterwards they are."""
    made = batches()
    text = Text([1], [5])
    state = made.admit(text, SamplingParams(temperature=0.0, min_tokens=3, stop_token_ids=(7,)), 1)
    batch = made.build([entry(state, 8, 8)])
    banned = sorted(zip(batch.bias_rows.tolist(), batch.bias_ids.tolist(), strict=True))
    assert banned == [(0, 7), (0, 49), (1, 7), (1, 49)]
    assert set(batch.bias_values.tolist()) == {-math.inf}
    text.answer += [8, 8]
    assert made.build([entry(state)]).bias_ids.tolist() == []
    ignoring = made.admit(Text([1]), SamplingParams(min_tokens=3, stop_token_ids=(7,), ignore_eos=True), 1)
    assert made.build([entry(ignoring)]).bias_ids.tolist() == [7]


def test_bad_words():
    """A word's last token is not allowed after its other tokens, at the beginning and after a space; drafts count as
    such tokens."""
    made = batches()
    text = Text([1, 2], [3])
    state = made.admit(text, SamplingParams(temperature=0.0, bad_words=("x", "abc")), 1)
    assert state.needs_host
    batch = made.build([entry(state, 1, 2, 4), entry(state)])
    banned = set(zip(batch.bias_rows.tolist(), batch.bias_ids.tolist(), strict=True))
    always = {(row, token) for row in range(5) for token in (24, 44)}
    assert banned == always | {(2, 3)}
    text.answer += [21, 2]
    assert made.build([entry(state)]).bias_ids.tolist().count(3) == 1


def test_words_of_one_token_need_no_host():
    """Constraints that are known beforehand let the engine run ahead."""
    made = batches()
    assert not made.admit(Text([1]), SamplingParams(bad_words=("x",), logit_bias={1: 2.0}), 1).needs_host


class Grammar:
    """Allows one token: the id after that of the last token, drafts included."""

    def __init__(self, text):
        self.text = text

    def masks(self, drafts=()):
        masks = np.zeros((1 + len(drafts), 1), np.int32)
        for row in range(1 + len(drafts)):
            masks[row, 0] = 1 << ([*self.text.tokens, *drafts[:row]][-1] + 1)
        return masks


def test_grammars():
    """Rows with a grammar allow its tokens only, after each draft too, and no ids beyond its tokenizer; other rows
    allow all."""
    made = batches()
    text = Text([1, 2])
    state = made.admit(text, SamplingParams(temperature=1.0, min_tokens=5), 1, Grammar(text))
    assert state.needs_host
    free = made.admit(Text([1]), SamplingParams(temperature=0.0), 1)
    batch = made.build([entry(free), entry(state, 7, 9)])
    assert batch.allowed.tolist() == [[-1, -1], [1 << 3, 0], [1 << 8, 0], [1 << 10, 0]]
    assert batch.bias_ids is None
    tokens, _ = sample(torch.randn(4, VOCABULARY), batch)
    assert tokens[1:].tolist() == [3, 8, 10]


def test_a_draft_models_rows():
    """A draft model samples by temperature and filters only, at the same positions, and leaves the main batch
    intact."""
    made = batches()
    state = made.admit(Text([1, 2]), SamplingParams(presence_penalty=1.0, logit_bias={1: 1.0}, top_k=4), 1)
    main = made.build([entry(state, 5)])
    plain = made.build([SampledRows(state, 3)], plain=True)
    assert (plain.positions.tolist(), plain.top_k.tolist()) == ([3], [4])
    assert plain.output_counts is plain.bias_ids is None
    assert made.build([entry(state, 5)]).temperature is main.temperature


PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, top_k=5),
    SamplingParams(temperature=1.0, repetition_penalty=1.5),
    SamplingParams(temperature=0.7, presence_penalty=0.5, frequency_penalty=0.25),
    SamplingParams(temperature=1.0, repetition_penalty=1.2, frequency_penalty=-1.0, logit_bias={4: 3.0}),
]


def expected_counts(entries):
    """Computed from the texts alone: how often each token came before each row, and which are in the prompt."""
    counts, seen = [], []
    for state, position, drafts in entries:
        is_penalized = state.params not in PARAMS[:2]
        for j in range(1 + len(drafts)):
            text = state.history
            answer = text.tokens[text.num_prompt : position] + list(drafts[:j])
            counts.append(np.bincount(answer if is_penalized else [], minlength=VOCABULARY))
            seen.append(np.isin(np.arange(VOCABULARY), text.prompt) & is_penalized)
    return np.array(counts), np.array(seen)


@pytest.mark.parametrize("seed", range(8))
def test_penalties_follow_the_texts(seed):
    """Penalties follow the texts as sequences start and end, with drafts accepted or rejected, read late or revoked."""
    chance = random.Random(seed)
    made = batches()
    running = []
    for _ in range(60):
        if len(running) < 12 and chance.random() < 0.5:
            text = Text([chance.randrange(VOCABULARY) for _ in range(chance.randrange(1, 9))])
            running.append(made.admit(text, chance.choice(PARAMS), chance.randrange(2**64)))
        if running and chance.random() < 0.2:
            made.release(running.pop(chance.randrange(len(running))))
        some = [state for state in running if chance.random() < 0.8]
        if not some:
            continue
        guesses = [[chance.randrange(5) for _ in range(chance.choice((0, 0, 0, 3)))] for _ in some]
        entries = [entry(state, *drafts) for state, drafts in zip(some, guesses, strict=True)]
        batch = made.build(entries)
        counts, seen = expected_counts(entries)
        penalized = any(state.params not in PARAMS[:2] for state in some)
        assert (batch.output_counts is not None) == penalized
        if penalized:
            assert (batch.output_counts.numpy() == counts).all()
        if batch.repetition is not None:
            assert (batch.seen_in_prompt.numpy() == seen).all()
        tokens, _ = sample(torch.randn(len(counts), VOCABULARY), batch)
        made.count(entries, tokens)
        row = 0
        for state, drafts in zip(some, guesses, strict=True):
            yielded = tokens[row : row + 1 + len(drafts)].tolist()
            kept = next((i for i, draft in enumerate(drafts) if yielded[i] != draft), len(drafts)) + 1
            state.history.answer += yielded[:kept]
            row += 1 + len(drafts)
            if chance.random() < 0.05:  # revoked
                del state.history.answer[-2:]


def test_tokens_are_counted_before_they_are_read():
    """A step that is launched before the previous one was read counts that one's token."""
    made = batches()
    text = Text([1])
    state = made.admit(text, SamplingParams(temperature=0.0, frequency_penalty=1.0), 1)
    first = [SampledRows(state, 1)]
    made.build(first)
    made.count(first, torch.tensor([9], dtype=torch.int32))
    counts = made.build([SampledRows(state, 2)]).output_counts
    assert counts.nonzero().tolist() == [[0, 9]]
    assert text.answer == []


def test_inside_and_outside_of_inference_mode():
    """A thread may sample in torch's inference mode and outside of it, with the same stored tensors."""
    made = batches()
    state = made.admit(Text([1]), SamplingParams(frequency_penalty=1.0, temperature=2.0), 1)
    tokens = []
    for inference in (True, False, True):
        with torch.inference_mode(inference):
            rows = [entry(state)]
            drawn, _ = sample(torch.zeros(1, VOCABULARY), made.build(rows))
            noisy, _ = sample(torch.zeros(1, 5000), made.build([SampledRows(state, 1)], plain=True))
            made.count(rows, drawn)
            tokens.append((drawn.item(), noisy.item()))
            state.history.answer.append(tokens[-1][0])
    assert len({noisy for _, noisy in tokens}) == 1


def test_seats_are_given_back():
    """A sequence that ends frees its row: the table is as large as the highest number of concurrent sequences."""
    made = batches()
    for _ in range(50):
        state = made.admit(Text([1]), SamplingParams(frequency_penalty=1.0), 1)
        made.build([entry(state)])
        made.release(state)
    assert sorted(made._table._free) == [1, 2, 3, 4, 5, 6, 7]

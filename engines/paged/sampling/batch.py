"""The sampling tensors of a step, rebuilt only where something has changed since the previous step.

batches = SamplingBatches(vocab_size, staging, eos_ids, encode)
state = batches.admit(sequence, params, seed, matcher)       # on any thread
entries = [SampledRows(state, position, drafts), ...]
tokens, logprobs = ops.sample(logits, batches.build(entries))
batches.count(entries, tokens)
batches.release(state)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engines.paged.base.transfer import Staging
from engines.paged.base.types import SamplingParams
from engines.paged.ops.interface import SamplingBatch
from engines.paged.sampling.grammar import Matcher
from engines.paged.sampling.penalties import NO_RECEIVER, PenaltyTable
from engines.paged.sampling.sequence_sampling import Bias, Encode, SequenceSampling, TokenHistory


class SampledRows(NamedTuple):
    """Rows of one sequence: one, and one for each draft. The first samples the token at `position`, the row behind
    draft j the one at position + j, as if the drafts up to it were in the text."""

    state: SequenceSampling
    position: int
    drafts: Sequence[int] = ()


class _StepRows:
    """The tensors of a step's rows, which the next step uses again if it has the same rows."""

    def __init__(self, entries: Sequence[SampledRows], shape: list[tuple[SequenceSampling, int]], put: Any) -> None:
        """`shape`: the sequences, and the number of drafts of each."""
        self.shape = shape
        states = rows_of(entries)
        params = [state.params for state in states]
        drawn = [state for state in states if state.temperature > 0]
        seeds = put([state.seed for state in states], torch.int64)
        self.batch = SamplingBatch(
            temperature=put([state.temperature for state in states]),
            top_k=put([each.top_k for each in params], torch.int32),
            top_p=put([each.top_p for each in params]),
            min_p=put([each.min_p for each in params]),
            seeds=seeds,
            positions=seeds,  # greedy rows use neither
            is_greedy=not drawn,
            is_unfiltered=not any(state.is_filtered for state in drawn),
            needs_logprobs=any(each.needs_logprobs for each in params),
        )
        self.is_penalized = any(state.is_penalized for state in states)
        self.is_biased = any(state.is_biased for state in states)
        self.is_masked = any(state.matcher is not None for state in states)
        self.positions: list[int] = []
        self.penalized_seats: Tensor | None = None
        self.banned: list[frozenset[int]] | None = None

    def move_to(self, entries: Sequence[SampledRows], put: Any) -> None:
        """Most steps are the previous one, one token further: nothing goes to the device then."""
        positions = [entry.position + j for entry in entries for j in range(1 + len(entry.drafts))]
        if [each - 1 for each in positions] == self.positions:
            self.batch.positions = self.batch.positions + 1
        elif positions != self.positions:
            self.batch.positions = put(positions, torch.int64)
        self.positions = positions


def rows_of(entries: Sequence[SampledRows]) -> list[SequenceSampling]:
    """The sequence of each row."""
    return [entry.state for entry in entries for _ in range(1 + len(entry.drafts))]


_WORD_BITS = 32


class SamplingBatches:
    """Everything but `admit` is used on the device's thread."""

    def __init__(self, vocab_size: int, staging: Staging, eos_ids: frozenset[int], encode: Encode) -> None:
        """`vocab_size` of the logits. `encode` returns the tokens of a text without special ones, for bad_words."""
        self._vocab_size, self._staging = vocab_size, staging
        self._eos_ids, self._encode = eos_ids, encode
        self._table = PenaltyTable(vocab_size, staging)
        self._rows: dict[bool, _StepRows] = {}  # of the previous step, by `plain`

    def admit(
        self, history: TokenHistory, params: SamplingParams, seed: int, matcher: Matcher | None = None
    ) -> SequenceSampling:
        """Register a sequence; `seed` in 0 .. 2^64 - 1. Where the result `needs_host`, its rows may be built only when
        `history.tokens` has all tokens before them."""
        return SequenceSampling(history, params, seed, matcher, self._eos_ids, self._encode)

    def release(self, state: SequenceSampling) -> None:
        if state.seat >= 0:
            self._table.release(state.seat)
            state.seat = -1
        self._rows.clear()

    def build(self, entries: Sequence[SampledRows], plain: bool = False) -> SamplingBatch:
        """The rows of these sequences, in order; overwritten by the next call. `plain`: temperature and filters alone,
        for a draft model."""
        rows = self._rows.get(plain)
        shape = [(entry.state, len(entry.drafts)) for entry in entries]
        if rows is None or rows.shape != shape:
            rows = self._rows[plain] = _StepRows(entries, shape, self._staging.put)
        batch = rows.batch
        if not batch.is_greedy:
            rows.move_to(entries, self._staging.put)
        if plain:
            return batch
        if rows.is_penalized:
            self._penalize(rows, entries)
        if rows.is_biased:
            self._add_bias(rows, entries)
        if rows.is_masked:
            batch.allowed = self._allowed(entries)
        return batch

    def count(self, entries: Sequence[SampledRows], tokens: Tensor) -> None:
        """Count sampled tokens: tokens [m] on the device, in the order of the batch's rows. Rows with drafts are
        counted when the host knows which drafts were right."""
        if not any(entry.state.is_penalized for entry in entries):
            return
        seats, rows, row = [], [], 0
        for state, position, drafts in entries:
            if state.seat >= 0 and not drafts:
                seats.append(state.seat)
                rows.append(row)
                state.num_counted = position + 1 - state.history.num_prompt
            row += 1 + len(drafts)
        if seats:
            chosen = tokens if len(rows) == row else tokens[self._staging.put(rows, torch.int64)]
            self._table.count(self._staging.put(seats, torch.int64), chosen)

    def _penalize(self, rows: _StepRows, entries: Sequence[SampledRows]) -> None:
        drafts, row = [], 0
        for entry in entries:
            if entry.state.is_penalized:
                self._keep_count(entry)
                drafts += [(row + j, entry.drafts[:j]) for j in range(1, 1 + len(entry.drafts))]
            row += 1 + len(entry.drafts)
        batch, seats = rows.batch, rows.penalized_seats
        if seats is None:
            states = rows_of(entries)
            params = [state.params for state in states]
            own = [state.seat if state.is_penalized else NO_RECEIVER for state in states]
            seats = rows.penalized_seats = self._staging.put(own, torch.int64)
            batch.repetition = self._unless([each.repetition_penalty for each in params], 1.0)
            batch.presence = self._unless([each.presence_penalty for each in params], 0.0)
            batch.frequency = self._unless([each.frequency_penalty for each in params], 0.0)
        batch.output_counts = self._table.counts_of(seats, drafts)
        if batch.repetition is not None:
            batch.seen_in_prompt = self._table.seen_by(seats)

    def _keep_count(self, entry: SampledRows) -> None:
        """Have its seat count exactly the tokens before the position."""
        state, history = entry.state, entry.state.history
        if state.seat < 0:
            state.seat, state.num_counted = self._table.admit(history.tokens[: history.num_prompt]), 0
        expected = entry.position - history.num_prompt
        if state.num_counted > expected:
            self._table.forget(state.seat)
            state.num_counted = 0
        if state.num_counted < expected:
            first = history.num_prompt
            self._table.add(state.seat, history.tokens[first + state.num_counted : first + expected])
            state.num_counted = expected

    def _add_bias(self, rows: _StepRows, entries: Sequence[SampledRows]) -> None:
        banned = [
            state.banned(position + j, drafts[:j])
            for state, position, drafts in entries
            for j in range(1 + len(drafts))
        ]
        if banned != rows.banned:
            rows.banned, batch = banned, rows.batch
            batch.bias_rows, batch.bias_ids, batch.bias_values = self._make_bias(entries, banned)

    def _make_bias(
        self, entries: Sequence[SampledRows], banned: Sequence[frozenset[int]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        biases: list[tuple[int, Bias]] = []
        for row, (state, ban) in enumerate(zip(rows_of(entries), banned, strict=True)):
            if (bias := state.bias(ban)) is not None:
                biases.append((row, bias))
        copy = self._staging.copy
        if not biases:
            nothing = torch.zeros(0, dtype=torch.int64, device=self._staging.device)
            return nothing, nothing, nothing.to(torch.float32)
        return (
            copy(torch.cat([torch.full_like(bias.ids, row) for row, bias in biases])),
            copy(torch.cat([bias.ids for _, bias in biases])),
            copy(torch.cat([bias.values for _, bias in biases])),
        )

    def _allowed(self, entries: Sequence[SampledRows]) -> Tensor:
        """Rows without a grammar are unrestricted. Ids that a grammar's tokenizer does not have are forbidden."""
        num_words = -(-self._vocab_size // _WORD_BITS)
        allowed = np.full((sum(1 + len(entry.drafts) for entry in entries), num_words), -1, np.int32)
        row = 0
        for state, _, drafts in entries:
            end = row + 1 + len(drafts)
            if state.matcher is not None:
                masks = state.matcher.masks(drafts)[:, :num_words]
                allowed[row:end, : masks.shape[1]] = masks
                allowed[row:end, masks.shape[1] :] = 0
            row = end
        return self._staging.put_tensor(torch.from_numpy(allowed))

    def _unless(self, values: list[float], nothing: float) -> Tensor | None:
        """None where no value has an effect."""
        return self._staging.put(values) if any(value != nothing for value in values) else None

"""Which tokens stand in each sequence's prompt and how often in its answer: what penalties look at, kept on the
device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engines.paged.base.transfer import Staging

NOBODY = 0  # a seat of zeros, for rows without penalties
_FIRST_SEATS = 8


class PenaltyTable:
    """Seats for sequences with penalties. Memory is taken as they come: 5 bytes a token of the vocabulary each."""

    def __init__(self, vocab_size: int, staging: Staging) -> None:
        self._vocab_size, self._staging = vocab_size, staging
        device = staging.device
        self._counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._seen = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self._free: list[int] = []

    def __repr__(self) -> str:
        seats = self._counts.shape[0]
        return f"<PenaltyTable: {max(seats - 1, 0) - len(self._free)} seats taken, {len(self._free)} free>"

    def admit(self, prompt: Sequence[int]) -> int:
        """A seat for a sequence whose answer has not begun."""
        if not self._free:
            self._grow()
        seat = self._free.pop()
        self._counts[seat].zero_()
        self._seen[seat].zero_()
        if prompt:
            self._seen[seat].index_fill_(0, self._ids(prompt), True)
        return seat

    def release(self, seat: int) -> None:
        self._free.append(seat)

    def add(self, seat: int, tokens: Sequence[int]) -> None:
        """Count tokens that the host knows."""
        if tokens:
            ids = self._ids(tokens)
            self._counts[seat].index_put_((ids,), torch.ones_like(ids, dtype=torch.int32), accumulate=True)

    def forget(self, seat: int) -> None:
        """Count the answer anew."""
        self._counts[seat].zero_()

    def count(self, seats: Tensor, tokens: Tensor) -> None:
        """Count one sampled token for each of several seats [k] int64; tokens [k], on the device and not read."""
        ones = torch.ones_like(tokens, dtype=torch.int32)
        self._counts.index_put_((seats, tokens.to(torch.int64)), ones, accumulate=True)

    def counts_of(self, seats: Tensor, drafts: Sequence[tuple[int, Sequence[int]]]) -> Tensor:
        """How often each token came, for rows of these seats [m]: [m, V] int32. `drafts`: (row, tokens that are guessed
        to stand before what that row draws)."""
        counts = self._counts[seats]
        rows = [row for row, tokens in drafts for _ in tokens]
        if rows:
            ids = self._ids([token for _, tokens in drafts for token in tokens])
            ones = torch.ones_like(ids, dtype=torch.int32)
            counts.index_put_((self._ids(rows), ids), ones, accumulate=True)
        return counts

    def seen_by(self, seats: Tensor) -> Tensor:
        """Which tokens stand in the prompt: [m, V] bool."""
        return self._seen[seats]

    @torch.inference_mode(False)  # else it could be written in that mode alone
    def _grow(self) -> None:
        seats = self._counts.shape[0]
        more = max(_FIRST_SEATS, seats)
        self._counts = torch.cat([self._counts, self._counts.new_zeros(more, self._vocab_size)])
        self._seen = torch.cat([self._seen, self._seen.new_zeros(more, self._vocab_size)])
        self._free = [seat for seat in reversed(range(seats, seats + more)) if seat != NOBODY]

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return self._staging.put(tokens, torch.int64)

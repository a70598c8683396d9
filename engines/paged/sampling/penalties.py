"""The tokens of each sequence's prompt, and their counts in its answer, on the device: the data of penalties."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engines.paged.base.transfer import Staging

NO_RECEIVER = 0  # a seat of zeros, for rows without penalties
_FIRST_SEATS = 8


class PenaltyTable:
    """Seats for sequences with penalties. Memory grows with their number: 5 bytes per token of the vocabulary each."""

    def __init__(self, vocab_size: int, staging: Staging) -> None:
        self._vocab_size, self._staging = vocab_size, staging
        device = staging.device
        self._counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._seen = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self._free: list[int] = []

    def admit(self, prompt: Sequence[int]) -> int:
        """A seat for a sequence whose answer is empty."""
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
        """Reset the counts of the answer."""
        self._counts[seat].zero_()

    def count(self, seats: Tensor, tokens: Tensor) -> None:
        """Count one sampled token for each of several seats [k] int64; tokens [k], not read by the host."""
        ones = torch.ones_like(tokens, dtype=torch.int32)
        self._counts.index_put_((seats, tokens.to(torch.int64)), ones, accumulate=True)

    def counts_of(self, seats: Tensor, drafts: Sequence[tuple[int, Sequence[int]]]) -> Tensor:
        """Counts of each token for rows of these seats [m]: [m, V] int32. `drafts`: (row, drafted tokens before it)."""
        counts = self._counts[seats]
        rows = [row for row, tokens in drafts for _ in tokens]
        if rows:
            ids = self._ids([token for _, tokens in drafts for token in tokens])
            ones = torch.ones_like(ids, dtype=torch.int32)
            counts.index_put_((self._ids(rows), ids), ones, accumulate=True)
        return counts

    def seen_by(self, seats: Tensor) -> Tensor:
        """Which tokens the prompt has: [m, V] bool."""
        return self._seen[seats]

    @torch.inference_mode(False)  # otherwise it could only be written in that mode
    def _grow(self) -> None:
        seats = self._counts.shape[0]
        more = max(_FIRST_SEATS, seats)
        self._counts = torch.cat([self._counts, self._counts.new_zeros(more, self._vocab_size)])
        self._seen = torch.cat([self._seen, self._seen.new_zeros(more, self._vocab_size)])
        self._free = [seat for seat in reversed(range(seats, seats + more)) if seat != NO_RECEIVER]

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return self._staging.put(tokens, torch.int64)

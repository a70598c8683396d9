"""A small model that guesses what the large one will say.

It has a cache of its own under the same block tables, and computes every row that the large model computes: what is
shared, copied or preempted there is so here without further books. Its tokens are drawn with the large model's noise
(same seed, same position), which is what makes them agree where the two distributions nearly do.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Many
from dataclasses import replace

from torch import Tensor

from engines.paged.cache.memory import KVCache
from engines.paged.model.decoder import Decoder
from engines.paged.ops.interface import Batch, Ops
from engines.paged.runner.batch import BatchBuilder
from engines.paged.runner.sampler import Sampler
from engines.paged.scheduling.sequence import ScheduledChunk

_WEIGHT = 0.2  # of the newest guess in what one takes
WANTED = -1  # stands in a sequence's drafts until the draft model has guessed


class DraftModel:
    """A decoder that runs ahead of another. Its operations compute on the same device."""

    def __init__(self, ops: Ops, decoder: Decoder, cache: KVCache) -> None:
        self._ops = ops
        self._decoder = decoder
        self._cache = cache
        self.guess_seconds = 0.0  # of one pass over all that guess, lately

    def copy_blocks(self, pairs: Tensor) -> None:
        """What the large model's cache copies, [p, 2]."""
        self._ops.copy_blocks(self._cache.keys, self._cache.values, pairs)

    def follow(self, batch: Batch) -> None:
        """Compute the rows that the large model computes."""
        self._decoder.forward(replace(batch, adapters=None, scratch={}), self._cache.keys, self._cache.values)

    def guess(
        self, pieces: Many[ScheduledChunk], sampler: Sampler, builder: BatchBuilder
    ) -> tuple[ScheduledChunk, ...]:
        """The pieces, with tokens in place of those drafts that are WANTED."""
        asking = [i for i, piece in enumerate(pieces) if WANTED in piece.drafts]
        if not asking:
            return tuple(pieces)
        guessed: dict[int, list[int]] = {i: [] for i in asking}
        for step in range(max(len(pieces[i].drafts) for i in asking)):
            started = time.perf_counter()
            active = [i for i in asking if len(pieces[i].drafts) > step]
            rows = [self._row(pieces[i], guessed[i]) for i in active]
            batch = builder.build(rows).batch
            hidden = self._decoder.forward(batch, self._cache.keys, self._cache.values)
            logits = self._decoder.logits(hidden)
            tokens, _ = self._ops.sample(logits, sampler.guesses([pieces[i] for i in active], step))
            for i, token in zip(active, tokens.tolist(), strict=True):
                guessed[i].append(token)
            seconds = time.perf_counter() - started
            self.guess_seconds += _WEIGHT * (seconds - self.guess_seconds) if self.guess_seconds else seconds
        return tuple(
            replace(piece, drafts=tuple(guessed[i])) if i in guessed else piece for i, piece in enumerate(pieces)
        )

    def _row(self, piece: ScheduledChunk, guessed: list[int]) -> ScheduledChunk:
        return ScheduledChunk(piece.sequence, piece.start + len(guessed), 1, 1, tuple(guessed[-1:]))


def wanted(count: int) -> list[int]:
    """Drafts to be guessed by the model."""
    return [WANTED] * count

"""A small model that drafts tokens for the large one to verify.

It has a cache of its own under the same block tables and computes every row that the large model computes, so that
sharing, copies and preemption need no bookkeeping of its own. Its tokens are drawn with the large model's noise (same
seed, same position): the two agree where their distributions are close.
"""

from __future__ import annotations

import time
from dataclasses import replace

from torch import Tensor

from engines.paged.cache.memory import KVCache
from engines.paged.model.decoder import Decoder
from engines.paged.ops.interface import Batch
from engines.paged.ops.reference import Ops
from engines.paged.runner.batch import BatchBuilder
from engines.paged.sampling.batch import SampledRows, SamplingBatches
from engines.paged.scheduling.sequence import ScheduledChunk

_WEIGHT = 0.2  # of the newest pass in `draft_seconds`
UNDRAFTED = -1  # a draft that the draft model has yet to fill in


class DraftModel:
    """A decoder that runs ahead of another on the same device."""

    def __init__(self, ops: Ops, decoder: Decoder, cache: KVCache) -> None:
        self.draft_seconds = 0.0  # of one pass over all sequences that draft, a moving average
        self._ops = ops
        self._decoder = decoder
        self._cache = cache

    def copy_blocks(self, pairs: Tensor) -> None:
        """Copy the blocks that the large model's cache copies, [p, 2]."""
        self._ops.copy_blocks(self._cache.keys, self._cache.values, pairs)

    def follow(self, batch: Batch) -> None:
        """Compute the rows that the large model computes."""
        self._decoder.forward(replace(batch, adapters=None, scratch={}), self._cache.keys, self._cache.values)

    def draft(
        self, chunks: tuple[ScheduledChunk, ...], batches: SamplingBatches, builder: BatchBuilder
    ) -> tuple[ScheduledChunk, ...]:
        """The chunks, with tokens in place of drafts that are UNDRAFTED, sampled with the large model's noise."""
        drafting = [i for i, chunk in enumerate(chunks) if UNDRAFTED in chunk.drafts]
        if not drafting:
            return chunks
        drafted: dict[int, list[int]] = {i: [] for i in drafting}
        for step in range(max(len(chunks[i].drafts) for i in drafting)):
            started = time.perf_counter()
            active = [i for i in drafting if len(chunks[i].drafts) > step]
            rows = [
                ScheduledChunk(chunks[i].sequence, chunks[i].start + step, 1, 1, tuple(drafted[i][-1:])) for i in active
            ]
            batch = builder.build(rows).batch
            hidden = self._decoder.forward(batch, self._cache.keys, self._cache.values)
            logits = self._decoder.logits(hidden)
            entries = [SampledRows(chunks[i].sequence.sampling, chunks[i].start + 1 + step) for i in active]
            tokens, _ = self._ops.sample(logits, batches.build(entries, plain=True))
            for i, token in zip(active, tokens.tolist(), strict=True):
                drafted[i].append(token)
            seconds = time.perf_counter() - started
            self.draft_seconds += _WEIGHT * (seconds - self.draft_seconds) if self.draft_seconds else seconds
        return tuple(
            replace(chunk, drafts=tuple(drafted[i])) if i in drafted else chunk for i, chunk in enumerate(chunks)
        )

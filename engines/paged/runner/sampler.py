"""The sampling state and the adapter of each sequence, combined for the rows of a step."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many

from torch import Tensor

from engines.paged.base.transfer import Staging
from engines.paged.model.adapters import Adapter, AdapterRows, adapter_rows
from engines.paged.ops.interface import SamplingBatch
from engines.paged.sampling.batch import SampledRows, SamplingBatches
from engines.paged.sampling.grammar import Matcher
from engines.paged.sampling.sequence_sampling import SequenceSampling
from engines.paged.scheduling.sequence import ScheduledChunk, Sequence


class Sampler:
    """`admit` may be called on any thread, the rest on the engine's."""

    def __init__(self, batches: SamplingBatches, adapters: Mapping[str, Adapter], staging: Staging) -> None:
        """`adapters` by the names that requests give."""
        self._batches = batches
        self._adapters = adapters
        self._staging = staging
        self._states: dict[Sequence, SequenceSampling] = {}

    def admit(self, sequence: Sequence, seed: int, matcher: Matcher | None) -> bool:
        """Register a sequence; whether its next row needs its last token on the host."""
        state = self._batches.admit(sequence, sequence.request.params, seed, matcher)
        self._states[sequence] = state
        return state.needs_host

    def release(self, sequence: Sequence) -> None:
        state = self._states.pop(sequence, None)
        if state is not None:
            self._batches.release(state)

    def entries(self, chunks: Many[ScheduledChunk]) -> list[SampledRows]:
        """The sampled rows of these chunks, in their order: for `batch` and `count`."""
        return [
            SampledRows(self._states[chunk.sequence], chunk.end - chunk.num_samples + 1, chunk.drafts)
            for chunk in chunks
        ]

    def batch(self, entries: Many[SampledRows]) -> SamplingBatch:
        return self._batches.build(entries)

    def draft_batch(self, chunks: Many[ScheduledChunk], step: int) -> SamplingBatch:
        """How a draft model samples the token `step` places behind each chunk's next one: with the same noise."""
        entries = [SampledRows(self._states[chunk.sequence], chunk.start + 1 + step) for chunk in chunks]
        return self._batches.build(entries, plain=True)

    def count(self, entries: Many[SampledRows], tokens: Tensor) -> None:
        """Count sampled tokens, [m] on the device, for the penalties of later steps."""
        self._batches.count(entries, tokens)

    def adapters(self, chunks: Many[ScheduledChunk]) -> AdapterRows | None:
        """Which rows of a step have which adapter."""
        if not self._adapters:
            return None
        names = [chunk.sequence.request.adapter for chunk in chunks]
        adapters = [None if name is None else self._adapters[name] for name in names]
        return adapter_rows(adapters, [chunk.count for chunk in chunks], self._staging)

"""What sampling needs of each sequence, put together for the rows of a step."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many

from torch import Tensor

from engines.paged.base.transfer import Staging
from engines.paged.model.adapters import Adapter, AdapterRows, adapter_rows
from engines.paged.ops.interface import SamplingBatch
from engines.paged.sampling.batch import SampledRows, SamplingBatches, SequenceSampling
from engines.paged.sampling.grammar import Matcher
from engines.paged.scheduling.sequence import ScheduledChunk, Sequence


class Sampler:
    """How each sequence is sampled, and which adapter its rows have. `admit` may be called on any thread."""

    def __init__(self, batches: SamplingBatches, adapters: Mapping[str, Adapter], staging: Staging) -> None:
        """`adapters` by the names that requests give."""
        self._batches = batches
        self._adapters = adapters
        self._staging = staging
        self._drawings: dict[Sequence, SequenceSampling] = {}

    def admit(self, sequence: Sequence, seed: int, matcher: Matcher | None) -> bool:
        """Know a sequence from now on; whether its next row can be made only once the host knows its last token."""
        drawing = self._batches.admit(sequence, sequence.request.params, seed, matcher)
        self._drawings[sequence] = drawing
        return drawing.needs_host

    def release(self, sequence: Sequence) -> None:
        """Forget one that has ended."""
        drawing = self._drawings.pop(sequence, None)
        if drawing is not None:
            self._batches.release(drawing)

    def asks(self, pieces: Many[ScheduledChunk]) -> list[SampledRows]:
        """What these pieces ask of sampling, in their order: for `batch` and `count`."""
        return [
            SampledRows(self._drawings[piece.sequence], piece.end - piece.num_samples + 1, piece.drafts)
            for piece in pieces
        ]

    def batch(self, asks: Many[SampledRows]) -> SamplingBatch:
        """How the rows that were asked for are sampled."""
        return self._batches.build(asks)

    def guesses(self, pieces: Many[ScheduledChunk], step: int) -> SamplingBatch:
        """How a draft model draws the token `step` places behind the next one of each piece: with the same noise."""
        asks = [SampledRows(self._drawings[piece.sequence], piece.start + 1 + step) for piece in pieces]
        return self._batches.build(asks, plain=True)

    def count(self, asks: Many[SampledRows], tokens: Tensor) -> None:
        """These were sampled, [m] on the device: penalties look at them from the next step on."""
        self._batches.count(asks, tokens)

    def adapters(self, pieces: Many[ScheduledChunk]) -> AdapterRows | None:
        """Which rows of a step have which adapter."""
        if not self._adapters:
            return None
        names = [piece.sequence.request.adapter for piece in pieces]
        adapters = [None if name is None else self._adapters[name] for name in names]
        return adapter_rows(adapters, [piece.count for piece in pieces], self._staging)

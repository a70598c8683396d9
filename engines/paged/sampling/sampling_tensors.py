"""The columns of a batch that are the same from step to step while the same sequences go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engines.paged.sampling.sequence_sampling import SequenceSampling
from engines.paged.staging import Staging


class SampledRows(NamedTuple):
    """Rows of one sequence: one, and one for each draft. The first draws the token at `position`, the row behind
    draft j that at position + j, as if the drafts up to it were in the text."""

    drawing: SequenceSampling
    position: int
    drafts: Sequence[int] = ()


class SamplingTensors(NamedTuple):
    """See SamplingBatch. The last three say what more the rows ask for."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor
    is_greedy: bool
    is_unfiltered: bool
    needs_logprobs: bool
    is_penalized: bool
    is_biased: bool
    is_masked: bool


class SamplingTensorCache:
    """The columns of the batch before, if the next has the same rows."""

    def __init__(self, staging: Staging) -> None:
        self._put = staging.put
        self._shape: list[tuple[SequenceSampling, int]] = []  # sequences, and drafts of each
        self._columns: SamplingTensors | None = None
        self._positions: list[int] = []
        self._position_tensor = torch.zeros(0, dtype=torch.int64, device=staging.device)
        self.version = 0  # another one for other rows

    def forget(self) -> None:
        """Let go of sequences that have ended."""
        self._shape, self._columns = [], None
        self.version += 1

    def columns_of(self, asks: Sequence[SampledRows]) -> SamplingTensors:
        shape = [(ask.drawing, len(ask.drafts)) for ask in asks]
        if self._columns is None or shape != self._shape:
            self._shape, self._columns = shape, self._made(asks)
            self.version += 1
        return self._columns

    def positions_of(self, asks: Sequence[SampledRows]) -> Tensor:
        """Most steps are the one before, a token further: then nothing goes to the device."""
        positions = [ask.position + j for ask in asks for j in range(1 + len(ask.drafts))]
        if [each - 1 for each in positions] == self._positions:
            self._position_tensor = self._position_tensor + 1
        elif positions != self._positions:
            self._position_tensor = self._put(positions, torch.int64)
        self._positions = positions
        return self._position_tensor

    def _made(self, asks: Sequence[SampledRows]) -> SamplingTensors:
        drawings = rows_of(asks)
        params = [drawing.params for drawing in drawings]
        drawn = [drawing for drawing in drawings if drawing.temperature > 0]
        return SamplingTensors(
            temperature=self._put([drawing.temperature for drawing in drawings]),
            top_k=self._put([each.top_k for each in params], torch.int32),
            top_p=self._put([each.top_p for each in params]),
            min_p=self._put([each.min_p for each in params]),
            seeds=self._put([drawing.seed for drawing in drawings], torch.int64),
            is_greedy=not drawn,
            is_unfiltered=not any(drawing.is_filtered for drawing in drawn),
            needs_logprobs=any(each.needs_logprobs for each in params),
            is_penalized=any(drawing.is_penalized for drawing in drawings),
            is_biased=any(drawing.is_biased for drawing in drawings),
            is_masked=any(drawing.matcher is not None for drawing in drawings),
        )


def rows_of(asks: Sequence[SampledRows]) -> list[SequenceSampling]:
    """The sequence of each row."""
    return [ask.drawing for ask in asks for _ in range(1 + len(ask.drafts))]

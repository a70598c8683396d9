"""A planned step as tensors: one host buffer, so that it reaches the device in one transfer."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engines.paged.base.transfer import Staging
from engines.paged.ops.interface import Batch
from engines.paged.scheduling.sequence import ScheduledChunk

# The least width of block tables at fixed addresses; widths are powers of two, so that few layouts serve all lengths.
_LEAST_WIDTH = 16


class StepInputs(NamedTuple):
    """The rows of a step, and those of them that are sampled.

    sampled_rows  [m] int32  None where all rows are
    seats         [m] int32  where in `last_tokens` each token is stored; -1: nowhere
    """

    batch: Batch
    sampled_rows: Tensor | None
    seats: Tensor


class BatchLayout(NamedTuple):
    """The sizes of a step's tensors, in the buffer's order."""

    num_rows: int
    num_sequences: int
    num_sampled: int
    width: int  # of the block tables

    @property
    def sizes(self) -> tuple[int, ...]:
        rows, sequences, sampled, width = self
        return rows, rows, rows, rows, sequences + 1, sequences, sequences * width, sampled, sampled


class BatchBuilder:
    """Builds the tensors of steps. `last_tokens` [seats + 1] int32 has each sequence's newest token; its last place is
    unused."""

    def __init__(self, staging: Staging, block_size: int, last_tokens: Tensor) -> None:
        self._staging = staging
        self._block_size = block_size
        self._last_tokens = last_tokens
        self._fixed: dict[BatchLayout, tuple[Tensor, tuple[Tensor, ...]]] = {}
        self._memory: Tensor | None = None

    def build(self, chunks: Many[ScheduledChunk]) -> StepInputs:
        """The rows of these chunks, those of one row first, in new memory."""
        layout = _layout_of(chunks)
        host, has_all_tokens = self._write(chunks, layout)
        parts: tuple[Tensor, ...] = self._staging.copy(host).split(layout.sizes)  # type: ignore[no-untyped-call]
        return self._inputs(chunks, layout, parts, None if has_all_tokens else self._last_tokens)

    def build_fixed(self, chunks: Many[ScheduledChunk]) -> tuple[StepInputs, BatchLayout]:
        """The same at fixed addresses: steps of one layout use the same memory."""
        exact = _layout_of(chunks)
        layout = exact._replace(width=1 << (max(exact.width, _LEAST_WIDTH) - 1).bit_length())
        host, _ = self._write(chunks, layout)
        if layout not in self._fixed:
            self._fixed[layout] = self._place(layout)
        target, parts = self._fixed[layout]
        self._staging.copy(host, target)
        return self._inputs(chunks, layout, parts, self._last_tokens), layout

    def _place(self, layout: BatchLayout) -> tuple[Tensor, tuple[Tensor, ...]]:
        """A layout's part of the shared memory, split into its tensors. Layouts that use memory which has become too
        small stay there."""
        total = sum(layout.sizes)
        if self._memory is None or self._memory.shape[0] < total:
            self._memory = torch.zeros(2 * total, dtype=torch.int32, device=self._staging.device)
        target = self._memory[:total]
        return target, target.split(layout.sizes)  # type: ignore[no-untyped-call]

    def _inputs(
        self, chunks: Many[ScheduledChunk], layout: BatchLayout, parts: tuple[Tensor, ...], last_tokens: Tensor | None
    ) -> StepInputs:
        tokens, positions, slots, row_sequences, starts, lens, tables, sampled_rows, seats = parts
        batch = Batch(
            tokens=tokens,
            positions=positions,
            slots=slots,
            row_sequences=row_sequences,
            query_starts=starts,
            context_lens=lens,
            block_tables=tables.view(layout.num_sequences, layout.width),
            query_lens_list=[chunk.count for chunk in chunks],
            context_lens_list=[chunk.end for chunk in chunks],
            block_tables_list=[chunk.sequence.blocks for chunk in chunks],
            num_decodes=sum(chunk.count == 1 for chunk in chunks),
            last_tokens=last_tokens,
        )
        return StepInputs(batch, None if layout.num_sampled == layout.num_rows else sampled_rows, seats)

    def _write(self, chunks: Many[ScheduledChunk], layout: BatchLayout) -> tuple[Tensor, bool]:
        """The host buffer, and whether all tokens are known. A token that only the device knows is -1 - its seat."""
        host = torch.zeros(sum(layout.sizes), dtype=torch.int32)
        parts: list[Any] = np.split(host.numpy(), np.cumsum(layout.sizes)[:-1])
        tokens, positions, slots, rows, starts, lens, flat_tables, sampled_rows, seats = parts
        tables = flat_tables.reshape(layout.num_sequences, layout.width)
        block_size = self._block_size
        row = sampled = 0
        has_all_tokens = True
        for index, chunk in enumerate(chunks):
            sequence = chunk.sequence
            blocks, start, count, num_samples = sequence.blocks, chunk.start, chunk.count, chunk.num_samples
            tables[index, : len(blocks)] = blocks
            end = row + count
            starts[index + 1] = end
            lens[index] = start + count
            if count == 1:
                host_tokens = sequence.tokens
                if start < len(host_tokens):
                    tokens[row] = host_tokens[start]
                elif chunk.drafts:  # a draft model continues from its own draft
                    tokens[row] = chunk.drafts[0]
                else:
                    tokens[row] = -1 - sequence.slot
                    has_all_tokens = False
                positions[row] = start
                slots[row] = blocks[start // block_size] * block_size + start % block_size
                rows[row] = index
            else:
                tokens[row:end] = (sequence.tokens[start : start + count] + list(chunk.drafts))[:count]
                place = np.arange(start, start + count, dtype=np.int32)
                positions[row:end] = place
                slots[row:end] = tables[index, place // block_size] * block_size + place % block_size
                rows[row:end] = index
            if num_samples:
                sampled_rows[sampled : sampled + num_samples] = range(end - num_samples, end)
                # Rows with drafts are read on the host first.
                seats[sampled : sampled + num_samples] = sequence.slot if num_samples == 1 else -1
                sampled += num_samples
            row = end
        return host, has_all_tokens


def _layout_of(chunks: Many[ScheduledChunk]) -> BatchLayout:
    return BatchLayout(
        sum(chunk.count for chunk in chunks),
        len(chunks),
        sum(chunk.num_samples for chunk in chunks),
        max(len(chunk.sequence.blocks) for chunk in chunks),
    )

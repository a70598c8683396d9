"""The rows of a step that decode, as the kernel takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engines.paged.ops.native.library import Call, Kernel


@dataclass(frozen=True, slots=True)
class Decoding:
    """Sequences with one row each, the same for all layers.

    tables   [s, M] int32   block ids
    rows     [s] int32      of the batch
    firsts   [s] int32      the first token that is seen
    lengths  [s] int32      tokens in the cache
    """

    tables: Tensor
    rows: Tensor
    firsts: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, sequences: Sequence[tuple[int, Sequence[int], int, int]]) -> Decoding:
        """Of (row, block ids, first token seen, tokens)."""
        width = max(len(table) for _, table, _, _ in sequences)
        tables = [[*table, *[0] * (width - len(table))] for _, table, _, _ in sequences]
        columns = [[sequence[at] for sequence in sequences] for at in (0, 2, 3)]
        return cls(*(torch.tensor(each, dtype=torch.int32) for each in (tables, *columns)))

    @property
    def num_sequences(self) -> int:
        return self.rows.shape[0]


class NativeDecode:
    """Attends for all decoding rows of a step by one call a layer."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._call = Call()

    def plan(self, sequences: Sequence[tuple[int, Sequence[int], int, int]]) -> Decoding:
        return Decoding.of(sequences)

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor, plan: Decoding, scale: float, out: Tensor) -> None:
        """q [n, H, D], keys and values [blocks, S, G, D] -> the plan's rows of out [n, H, D], which is contiguous."""
        call, threads = self._call, torch.get_num_threads()
        call.queries, call.out = q.data_ptr(), out.data_ptr()
        call.keys, call.values = keys.data_ptr(), values.data_ptr()
        call.tables, call.rows = plan.tables.data_ptr(), plan.rows.data_ptr()
        call.firsts, call.lengths = plan.firsts.data_ptr(), plan.lengths.data_ptr()
        call.row_stride = q.stride(0)
        call.num_sequences, call.table_stride = plan.tables.shape
        call.block_size = keys.shape[1]
        # A sequence is read in one piece, unless there are too few to keep all threads busy.
        call.splits = 1 if plan.num_sequences >= 2 * threads else self._kernel.kv_heads
        call.scale = scale
        self._kernel(call, threads)

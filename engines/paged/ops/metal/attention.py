"""Attention over pages: the choice of the kernel for each row.

    decode   one row at a time; sequences of few rows (a new token, or drafts)
    split    the same over partitions of 512 keys, where rows are too few to occupy the GPU
    prefill  tiles of 32 rows of one sequence

In deterministic mode all rows go to prefill, whose result for a row depends on that row alone: it is bit-identical for
a row in a prompt, in a chunk of it, behind a cached prefix, as a new token or as a draft.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engines.core.errors import invalid
from engines.paged.ops.interface import Batch, LayerCache, Pair
from engines.paged.ops.metal.kernels import KernelFamily, check

# A sequence with more rows shares its keys in a tile, which is mostly idle for fewer.
MAX_DECODE_ROWS = 8
TILE_ROWS = 32  # kernels/attention_prefill.metal: QUERY_ROWS
PARTITION = 512  # kernels/attention_decode.metal
# Groups waiting per core, below which partial results pay (vllm-metal's measurement).
GROUPS_A_CORE = 8
# Bytes of a tile of keys: two such groups fit the 32 KB of a core.
MAX_TILE_BYTES = 16 * 1024


def num_partitions(max_context: int) -> int:
    """Partitions of a context; kernels depend on nothing else of its length."""
    return -(-max_context // PARTITION)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Of one step: the rows that decode, and the tiles of those that prefill."""

    rows: Tensor | None  # [r] int32
    max_context: int  # of the decoding rows
    tiles: Pair | None  # sequences and rows, [t] int32 each


class AttentionOps(KernelFamily):
    gpu_cores: int
    is_deterministic: bool
    _counting: Tensor | None = None

    def attention(self, q: Tensor, cache: LayerCache, batch: Batch, scale: float, window: int) -> Tensor:
        check("the cache", cache.keys, q.dtype)
        if q.shape[2] % 8:
            raise invalid(f"heads of {q.shape[2]}: Metal's kernels of attention take multiples of 8")
        plan = self.plan_attention(batch)
        out = self.new(q.shape[0], q.shape[1] * q.shape[2], dtype=q.dtype)
        if plan.rows is not None:
            self._decode(out, q, cache, batch, plan.rows, plan.max_context, scale, window)
        if plan.tiles is not None:
            (_, heads, size), (_, slots, groups, _) = q.shape, cache.keys.shape
            keys = 32 if 32 * (size * q.element_size() + 16) <= MAX_TILE_BYTES else 16
            library = self.kernels.load("attention_prefill", T=q.dtype, D=size, H=heads, G=groups, S=slots, KEYS=keys)
            where = batch.block_tables, batch.query_starts, *plan.tiles, batch.positions
            how = batch.block_tables.shape[1], float(scale), int(window)
            library.run("paged_prefill", (heads, plan.tiles[1].shape[0]), 128, out, q, *cache, *where, *how)
        return out

    def plan_attention(self, batch: Batch) -> AttentionPlan:
        """Made at the step's first layer, for all layers."""
        plan: AttentionPlan | None = batch.scratch.get("metal attention")
        if plan is None:
            plan = batch.scratch["metal attention"] = self._plan(batch)
        return plan

    def _plan(self, batch: Batch) -> AttentionPlan:
        lens = batch.query_lens_list
        tiles_only = self.is_deterministic or batch.is_reproducible
        if batch.num_decodes == len(lens) and not tiles_only:
            return AttentionPlan(self._count_to(len(lens)), max(batch.context_lens_list, default=0), None)
        rows: list[int] = []
        tiles: list[tuple[int, int]] = []
        max_context, start = 0, 0
        for sequence, length in enumerate(lens):
            if length <= MAX_DECODE_ROWS and not tiles_only:
                rows += range(start, start + length)
                max_context = max(max_context, batch.context_lens_list[sequence])
            else:
                tiles += [(sequence, row) for row in range(start, start + length, TILE_ROWS)]
            start += length
        decoding = self.staging.put(rows, torch.int32) if rows else None
        if not tiles:
            return AttentionPlan(decoding, max_context, None)
        both = self.staging.put(list(zip(*tiles, strict=True)), torch.int32)
        return AttentionPlan(decoding, max_context, (both[0], both[1]))

    def _count_to(self, n: int) -> Tensor:
        """0 .. n - 1."""
        if self._counting is None or self._counting.shape[0] < n:
            self._counting = torch.arange(max(64, 2 * n), dtype=torch.int32, device=self.device)
        return self._counting[:n]

    def _decode(
        self,
        out: Tensor,
        q: Tensor,
        cache: LayerCache,
        batch: Batch,
        rows: Tensor,
        max_context: int,
        scale: float,
        window: int,
    ) -> None:
        _, heads, size = q.shape
        _, slots, groups, _ = cache.keys.shape
        library = self.kernels.load("attention_decode", T=q.dtype, D=size, H=heads, G=groups, S=slots)
        where = (batch.block_tables, rows, batch.positions, batch.row_sequences)
        how = (batch.block_tables.shape[1], float(scale), int(window))
        count, most_seen = rows.shape[0], min(max_context, window) if window else max_context
        if most_seen <= PARTITION or heads * count >= GROUPS_A_CORE * self.gpu_cores:
            library.run("paged_decode", (heads, count), 256, out, q, *cache, *where, *how)
            return
        partitions = num_partitions(max_context)
        partial = self.new(count, heads, partitions, size, dtype=torch.float32)
        max_and_sum = self.new(count, heads, partitions, 2, dtype=torch.float32)
        library.run("paged_split", (heads, count, partitions), 256, partial, max_and_sum, q, *cache, *where, *how)
        library.run("paged_reduce", (heads, count), 64, out, partial, max_and_sum, rows, partitions)

"""A mixture of experts: routing, and the products with the chosen experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engines.core.errors import invalid
from engines.paged.ops.interface import Weight
from engines.paged.ops.metal.kernels import check
from engines.paged.ops.metal.linear import (
    GEMV_GROUP_ROWS,
    GEMV_THREADS,
    MOST_GEMV_ROWS,
    TILE,
    TILE_THREADS,
    Matrix,
    MatrixFamily,
    interleave,
)
from engines.paged.ops.packing import join

MOST_EXPERTS = 1024  # the capacity of moe_sort's threadgroup memory
SORT_THREADS = 1024


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """gate_up [E, 2 I, K], rows of gate and up alternating; down [E, K, I]."""

    gate_up: Matrix
    down: Matrix
    num_experts: int


class ExpertOps(MatrixFamily):
    """Few rows go by gemv: each (row, choice) reads its own expert's matrix, which is necessary anyway while the
    choices fall on different experts. Many rows are sorted by expert and go by tiles. Both sum a row's results in the
    order of its choices, independently of other rows."""

    def prepare_experts(self, gate: Sequence[Weight], up: Sequence[Weight], down: Sequence[Weight]) -> PackedExperts:
        if not 0 < len(gate) <= MOST_EXPERTS:
            raise invalid(f"{len(gate)} experts: Metal's kernels take 1 to {MOST_EXPERTS}")
        pairs = [interleave(join(pair)) for pair in zip(gate, up, strict=True)]
        return PackedExperts(self._stack(pairs), self._stack(down), len(gate))

    def moe(self, x: Tensor, router_logits: Tensor, experts: PackedExperts, top_k: int, renormalize: bool) -> Tensor:
        check("x", x, experts.gate_up.dtype)
        check("router_logits", router_logits, x.dtype)
        n = x.shape[0]
        chosen, shares = self.new(n, top_k, dtype=torch.int32), self.new(n, top_k, dtype=torch.float32)
        library = self.library("experts", experts.gate_up)
        library.run("moe_route", (n,), 32, chosen, shares, router_logits, experts.num_experts, top_k, renormalize)
        is_few = n <= MOST_GEMV_ROWS or n * top_k <= 2 * experts.num_experts
        mix = self._mix_few if is_few or self.is_deterministic else self._mix_many
        return mix(x, experts, chosen, shares)

    def _mix_few(self, x: Tensor, experts: PackedExperts, chosen: Tensor, shares: Tensor) -> Tensor:
        (n, top_k), y = chosen.shape, torch.empty_like(x)
        gate_up, down = experts.gate_up, experts.down
        gated = self.new(n * top_k, down.shape[1], dtype=x.dtype)
        groups = -(-gate_up.shape[0] // GEMV_GROUP_ROWS), n * top_k
        args = gated, *gate_up.buffers, x, chosen, top_k, *gate_up.shape
        self.library("experts", gate_up).run("moe_gemv", groups, GEMV_THREADS, *args)
        groups = -(-down.shape[0] // GEMV_GROUP_ROWS), n
        down_args = y, *down.buffers, gated, chosen, shares, top_k, *down.shape
        self.library("experts", down).run("moe_gemv_down", groups, GEMV_THREADS, *down_args)
        return y

    def _mix_many(self, x: Tensor, experts: PackedExperts, chosen: Tensor, shares: Tensor) -> Tensor:
        (n, top_k), y = chosen.shape, torch.empty_like(x)
        gate_up, down = experts.gate_up, experts.down
        assignments = n * top_k
        # Each expert may have one partial tile, but there are no more tiles than assignments.
        most_tiles = min(assignments // TILE + experts.num_experts, assignments)
        order, tiles = self.new(assignments, dtype=torch.int32), self.new(most_tiles, 3, dtype=torch.int32)
        gated, parts = (self.new(assignments, width, dtype=x.dtype) for width in (down.shape[1], y.shape[1]))
        library = self.library("experts", gate_up)
        counts = assignments, experts.num_experts, TILE, most_tiles
        library.run("moe_sort", (1,), SORT_THREADS, order, tiles, chosen, *counts)
        args = gated, *gate_up.buffers, x, order, tiles, top_k, *gate_up.shape
        library.run("moe_qmm_swiglu", (-(-gate_up.shape[0] // TILE), most_tiles), TILE_THREADS, *args)
        args = parts, *down.buffers, gated, order, tiles, top_k, *down.shape
        self.library("experts", down).run("moe_qmm", (-(-down.shape[0] // TILE), most_tiles), TILE_THREADS, *args)
        library.run("moe_combine", (-(-y.shape[1] // 256), n), 256, y, parts, shares, top_k, y.shape[1])
        return y

    def _stack(self, weights: Sequence[Weight]) -> Matrix:
        """Stack matrices of one shape in one format."""
        rows, width = weights[0].shape
        joined = self.matrix(join(list(weights)))
        return Matrix(*joined.buffers, joined.bits, joined.group_size, (rows, width))

"""Matrices as the reference multiplies by them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor

from engines.paged.ops.contract import Dense, Quantized, Weight
from engines.paged.ops.packing import dequantize, expand, join, moved


@dataclass(frozen=True, slots=True)
class Linear:
    """x -> x @ weight.T + bias; weight [N, K]."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class GateUp:
    """Both matrices of a gated MLP as one [2 N, K], gate above up."""

    both: Linear

    def __call__(self, x: Tensor, deltas: tuple[Tensor, Tensor] | None = None) -> Tensor:
        gate, up = self.both(x).chunk(2, dim=-1)
        if deltas is not None:
            gate, up = gate + deltas[0], up + deltas[1]
        return F.silu(gate).mul_(up)


@dataclass(frozen=True, slots=True)
class Embedding:
    """Rows of a table by token; a quantized one stays packed and its rows are expanded as they are read."""

    weight: Weight
    dtype: torch.dtype

    def __call__(self, tokens: Tensor) -> Tensor:
        if isinstance(self.weight, Quantized):
            of = self.weight
            rows = Quantized(of.packed[tokens], of.scales[tokens], of.biases[tokens], of.bits, of.group_size)
            return dequantize(rows, self.dtype)
        return F.embedding(tokens, self.weight.weight)


def prepare_linear(weight: Weight, bias: Tensor | None, device: torch.device, dtype: torch.dtype | None) -> Linear:
    matrix = dequantize(weight, dtype) if isinstance(weight, Quantized) else expand(weight, dtype)
    matrix = matrix.to(device).contiguous()
    return Linear(matrix, None if bias is None else bias.to(device, matrix.dtype))


def prepare_gate_up(gate: Weight, up: Weight, device: torch.device, dtype: torch.dtype | None) -> GateUp:
    return GateUp(prepare_linear(join([gate, up]), None, device, dtype))


def prepare_embedding(weight: Weight, device: torch.device, dtype: torch.dtype | None) -> Embedding:
    if isinstance(weight, Quantized):
        return Embedding(moved(weight, device), dtype or weight.scales.dtype)
    table = weight.weight.to(device, dtype or weight.weight.dtype)
    return Embedding(Dense(table), table.dtype)

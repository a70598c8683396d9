"""Matrices as the kernels take them: dense, or packed in MLX's layout."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engines.core.errors import invalid
from engines.paged.ops.interface import Dense, Quantized, Weight
from engines.paged.ops.metal.base import KernelFamily
from engines.paged.ops.metal.kernels import Library


@dataclass(frozen=True, slots=True)
class Matrix:
    """W [N, K], or E of them one behind the other; if packed, with its scales and biases (dense: itself thrice)."""

    weight: Tensor
    scales: Tensor
    biases: Tensor
    bits: int  # 0: dense
    group_size: int
    shape: tuple[int, int]  # N, K
    added: Tensor | None = None  # [N], to each product

    @property
    def dtype(self) -> torch.dtype:
        return self.scales.dtype

    @property
    def buffers(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.weight, self.scales, self.biases


class MatrixFamily(KernelFamily):
    """A family whose kernels read matrices: its library is compiled for their format."""

    is_deterministic: bool

    def matrix(self, weight: Weight, bias: Tensor | None = None) -> Matrix:
        if isinstance(weight, Dense):
            dense = self.weight(weight.weight)
            parts, bits, group_size = (dense, dense, dense), 0, 32
        else:
            _check_format(weight)
            packed = weight.packed.to(self.device).contiguous()
            parts = packed, self.weight(weight.scales), self.weight(weight.biases)
            bits, group_size = weight.bits, weight.group_size
        added = None if bias is None else self.weight(bias.to(parts[1].dtype))
        return Matrix(*parts, bits, group_size, weight.shape, added)

    def library(self, family: str, matrix: Matrix) -> Library:
        return self.kernels.load(family, T=matrix.dtype, BITS=matrix.bits, GROUP=matrix.group_size)


def interleave(joined: Weight) -> Weight:
    """Two matrices of N rows, one above the other, as row 0 of the first, row 0 of the second, row 1 of the first .."""
    if isinstance(joined, Dense):
        return Dense(_in_turn(joined.weight))
    packed, scales, biases = _in_turn(joined.packed), _in_turn(joined.scales), _in_turn(joined.biases)
    return Quantized(packed, scales, biases, joined.bits, joined.group_size)


def _in_turn(rows: Tensor) -> Tensor:
    return torch.stack(rows.chunk(2), dim=1).flatten(0, 1)


def _check_format(weight: Quantized) -> None:
    if weight.bits not in (4, 8) or weight.group_size not in (32, 64, 128):
        raise invalid(
            f"weights of {weight.bits} bits in groups of {weight.group_size}: Metal's kernels take 4 or 8 bits in "
            "groups of 32, 64 or 128"
        )

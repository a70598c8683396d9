"""Affine-quantized matrices in MLX's layout: packed, unpacked, joined and expanded.

Source: MLX `mlx/backend/cpu/quantized.cpp`: 32 / bits values a uint32, value i shifted by i * bits, a scale and a bias
for each group along K; value = scale * q + bias.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engines.paged.ops.contract import Dense, Quantized, Weight


def pack(values: Tensor, bits: int) -> Tensor:
    """[N, K] integers of 0 .. 2**bits - 1 -> [N, K * bits / 32] int32, the lowest bits first."""
    per_word = 32 // bits
    words = values.to(torch.int64).view(*values.shape[:-1], -1, per_word)
    shifts = torch.arange(per_word, device=values.device) * bits
    return to_int32((words << shifts).sum(-1))


def unpack(packed: Tensor, bits: int) -> Tensor:
    """[N, K * bits / 32] int32 -> [N, K] int32 of 0 .. 2**bits - 1."""
    shifts = torch.arange(32 // bits, device=packed.device, dtype=torch.int32) * bits
    values: Tensor = (packed.unsqueeze(-1) >> shifts) & (2**bits - 1)
    return values.flatten(-2)


def to_int32(words: Tensor) -> Tensor:
    """The low 32 bits of int64, as int32 has them."""
    words = words & 0xFFFFFFFF
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def dequantize(weight: Quantized, dtype: torch.dtype | None = None) -> Tensor:
    """[N, K] of `dtype` (that of the scales where None), the sum in float32: exact up to the last rounding."""
    values = unpack(weight.packed, weight.bits).view(*weight.scales.shape, weight.group_size).float()
    expanded = values.mul_(weight.scales.float().unsqueeze(-1)).add_(weight.biases.float().unsqueeze(-1))
    return expanded.flatten(-2).to(weight.scales.dtype if dtype is None else dtype)


def expand(weight: Weight, dtype: torch.dtype | None = None) -> Tensor:
    """Any matrix as [N, K] numbers of `dtype` (its own where None)."""
    if isinstance(weight, Quantized):
        return dequantize(weight, dtype)
    return weight.weight if dtype is None else weight.weight.to(dtype)


def moved(weight: Weight, device: torch.device) -> Weight:
    """The same matrix on another device, or itself."""
    if isinstance(weight, Quantized):
        packed, scales, biases = (each.to(device) for each in (weight.packed, weight.scales, weight.biases))
        return Quantized(packed, scales, biases, weight.bits, weight.group_size)
    return Dense(weight.weight.to(device))


def split(weight: Weight, start: int, stop: int) -> Weight:
    """Rows of a matrix."""
    rows = slice(start, stop)
    if isinstance(weight, Quantized):
        parts = weight.packed[rows], weight.scales[rows], weight.biases[rows]
        return Quantized(*parts, weight.bits, weight.group_size)
    return Dense(weight.weight[rows])


def widen(weight: Quantized, bits: int, group_size: int) -> Quantized:
    """The same numbers with more bits a value or in smaller groups, exactly."""
    if (weight.bits, weight.group_size) == (bits, group_size):
        return weight
    if bits < weight.bits or weight.group_size % group_size:
        raise ValueError(f"{weight.bits} bits in groups of {weight.group_size} do not fit {bits} in {group_size}")
    packed = weight.packed if bits == weight.bits else pack(unpack(weight.packed, weight.bits), bits)
    repeat = weight.group_size // group_size
    scales, biases = (each.repeat_interleave(repeat, dim=1) for each in (weight.scales, weight.biases))
    return Quantized(packed, scales, biases, bits, group_size)


def join(weights: Sequence[Weight]) -> Weight:
    """Matrices of the same K, one under the other. Quantized ones keep their numbers exactly, in the widest form among
    them; beside a dense one they are expanded."""
    if len(weights) == 1:
        return weights[0]
    quantized = [weight for weight in weights if isinstance(weight, Quantized)]
    if len(quantized) < len(weights):
        return Dense(torch.cat([expand(weight) for weight in weights]))
    bits, group_size = max(each.bits for each in quantized), min(each.group_size for each in quantized)
    alike = [widen(each, bits, group_size) for each in quantized]
    return Quantized(
        torch.cat([each.packed for each in alike]),
        torch.cat([each.scales for each in alike]),
        torch.cat([each.biases for each in alike]),
        bits,
        group_size,
    )

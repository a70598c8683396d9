"""Affine-quantized matrices in MLX's layout: pack, unpack, join and expand.

Words are handled as bytes: every machine that torch runs on is little-endian.
Source: MLX `mlx/backend/cpu/quantized.cpp`: 32 / bits values a uint32, value i shifted by i * bits, a scale and a bias
for each group along K; value = scale * q + bias.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engines.paged.ops.interface import Dense, Quantized, Weight

# Numbers processed at once: intermediate results stay in a core's cache.
CHUNK = 1 << 18


def pack(values: Tensor, bits: int) -> Tensor:
    """[N, K] integers of 0 .. 2**bits - 1, 4 or 8 bits -> [N, K * bits / 32] int32, the lowest bits first."""
    as_bytes = values.to(torch.uint8)
    if bits == 4:
        as_bytes = as_bytes[..., ::2] | as_bytes[..., 1::2] << 4
    return as_bytes.contiguous().view(torch.int32)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """[N, K * bits / 32] int32 -> [N, K] uint8 of 0 .. 2**bits - 1."""
    as_bytes = packed.contiguous().view(torch.uint8)
    return as_bytes if bits == 8 else torch.stack((as_bytes & 15, as_bytes >> 4), -1).flatten(-2)


def dequantize(weight: Quantized, dtype: torch.dtype | None = None) -> Tensor:
    """[N, K] of `dtype` (that of the scales where None), computed in float32: exact up to the last rounding."""
    out = torch.empty(weight.shape, dtype=dtype or weight.scales.dtype, device=weight.packed.device)
    at_once = max(1, CHUNK // weight.shape[1])
    for start in range(0, weight.shape[0], at_once):
        rows = slice(start, start + at_once)
        scales, biases = (each[rows].float().unsqueeze(-1) for each in (weight.scales, weight.biases))
        values = unpack(weight.packed[rows], weight.bits).float().view(*scales.shape[:2], weight.group_size)
        out[rows] = values.mul_(scales).add_(biases).flatten(1)
    return out


def expand(weight: Weight, dtype: torch.dtype | None = None) -> Tensor:
    """Any matrix as [N, K] numbers of `dtype` (its own where None)."""
    if isinstance(weight, Quantized):
        return dequantize(weight, dtype)
    return weight.weight if dtype is None else weight.weight.to(dtype)


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
    """Stack matrices of the same K. Quantized ones keep their numbers exactly, in the widest form among them; beside a
    dense one they are expanded."""
    if len(weights) == 1:
        return weights[0]
    quantized = [weight for weight in weights if isinstance(weight, Quantized)]
    if len(quantized) < len(weights):
        return Dense(torch.cat([expand(weight) for weight in weights]))
    bits, group_size = max(each.bits for each in quantized), min(each.group_size for each in quantized)
    alike = [widen(each, bits, group_size) for each in quantized]
    return concatenate(alike)


def concatenate(parts: Sequence[Quantized]) -> Quantized:
    """Stack matrices of one format."""
    packed, scales, biases = (
        torch.cat([getattr(part, name) for part in parts]) for name in ("packed", "scales", "biases")
    )
    return Quantized(packed, scales, biases, parts[0].bits, parts[0].group_size)

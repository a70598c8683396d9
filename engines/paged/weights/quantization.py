"""MLX's affine quantization, and its loss.

Source: MLX `mlx/backend/cpu/quantized.cpp` (`quantize`): the end of a group's range that is further from 0 is exact,
and so is 0 where the range includes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engines.paged.ops.interface import Quantized
from engines.paged.ops.packing import CHUNK, concatenate, pack

SCHEMES = {"int8": 8, "int4": 4}
GROUP_SIZES = (32, 64, 128)
_SMALLEST_SCALE = 1e-7


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of one matrix: sums of squares of the error and of the matrix."""

    error: float
    total: float

    @property
    def relative(self) -> float:
        """Root of the mean squared error, relative to the matrix."""
        return float((self.error / self.total) ** 0.5) if self.total else 0.0


def quantize(weight: Tensor, bits: int, group_size: int, dtype: torch.dtype | None = None) -> tuple[Quantized, Loss]:
    """weight [N, K], K a multiple of the group -> its quantized form, scales and biases of `dtype` (None: the
    weight's), and the loss of the numbers that are computed with."""
    rows = max(1, CHUNK // weight.shape[1])
    chunks = [_quantize(chunk, bits, group_size, dtype or weight.dtype) for chunk in torch.split(weight, rows)]
    loss = Loss(sum(loss.error for _, loss in chunks), sum(loss.total for _, loss in chunks))
    return concatenate([quantized for quantized, _ in chunks]), loss


def _quantize(weight: Tensor, bits: int, group_size: int, dtype: torch.dtype) -> tuple[Quantized, Loss]:
    groups = weight.float().view(weight.shape[0], -1, group_size)
    steps = 2**bits - 1
    low, high = groups.amin(-1), groups.amax(-1)
    is_low_further = low.abs() > high.abs()
    scales = ((high - low) / steps).clamp_min(_SMALLEST_SCALE)
    scales = torch.where(is_low_further, scales, -scales)
    edges = torch.where(is_low_further, low, high)
    steps_to_edge = torch.round(edges / scales)
    scales = torch.where(steps_to_edge != 0, edges / steps_to_edge, scales).to(dtype)
    biases = torch.where(steps_to_edge != 0, edges, torch.zeros_like(edges)).to(dtype)
    wide_scales, wide_biases = scales.float().unsqueeze(-1), biases.float().unsqueeze(-1)
    values = groups.sub(wide_biases).div_(wide_scales).round_().clamp_(0, steps)
    packed = pack(values.flatten(1), bits)
    error = values.mul_(wide_scales).add_(wide_biases).sub_(groups).square_().sum()
    return Quantized(packed, scales, biases, bits, group_size), Loss(float(error), float(groups.square().sum()))


def regroup_bits(packed: Tensor, bits: int) -> tuple[Tensor, int]:
    """Words of 2, 3, 5 or 6 bits a value in MLX's packing (lowest bits first, across words) to 4 or 8 bits a value: [N,
    K
    * bits / 32] -> [N, K * wider / 32], and the new number of bits. 4 and 8 stay."""
    if bits in (4, 8):
        return packed, bits
    wider = 4 if bits < 4 else 8
    rows = max(1, CHUNK // (packed.shape[1] * 32))
    return torch.cat([_regroup_bits(chunk, bits, wider) for chunk in torch.split(packed, rows)]), wider


def _regroup_bits(packed: Tensor, bits: int, wider: int) -> Tensor:
    each_bit = (packed.unsqueeze(-1) >> torch.arange(32, dtype=torch.int32)) & 1
    by_value = each_bit.flatten(1).view(packed.shape[0], -1, bits).long()
    values = (by_value << torch.arange(bits)).sum(-1)
    return pack(values, wider)

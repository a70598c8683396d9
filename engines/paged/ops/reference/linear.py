"""Matrix products of the reference.

A quantized matrix is expanded at load, to T. On a processor with AVX-512 or AVX2 a 4-bit one of bfloat16 is kept beside
it for torch's packed kernel, which reads a quarter of the bytes but has no tile instructions: it serves few rows.

Measured (torch 2.13, one thread of a Sapphire Rapids at AVX-512, 4096 x 1024, groups of 64, best of 15, us):

    rows                     1      4     16     64    512
    float32               1090   2200   2800   4700
    bfloat16               550    580    600   1000   4500
    4-bit kernel           210    410   1600  10500          bfloat16; with float32 7300 for one row
    8-bit kernel           410    720   2000   7500          one scale a row: it has no groups
    expand, then bfloat16        4800   4800   5500  10000   4 bits; 8 bits are much the same

So: the 4-bit kernel for up to 4 rows (2 at AVX2, where a row takes twice as long), everything else dense; 8 bits always
dense. In bfloat16 products differ from those of the exactly expanded matrix by less than 1 % of the largest (bfloat16's
rounding is 0.4 %), in float32 by less than 1e-5.

A dense matrix is stored in oneDNN's blocked layout, made once at load: torch hands a plain matrix to oneDNN (or MKL),
which reorders or reads it badly for few rows at a time. Measured (two threads that read 24 GB/s; GB/s of weights read
from memory, 4096 x 768; plain -> blocked):

    rows          1             4             16            64           512
    bfloat16   9.9 -> 15.0   10.2 -> 15.7   9.8 -> 15.3    8.1 -> 11.4   3.3 -> 3.1
    float32   25.4 -> 22.4   13.0 -> 19.3  10.6 -> 14.2    5.8 -> 6.5    1.2 -> 1.2
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor

from engines.paged.ops.interface import Quantized, Weight
from engines.paged.ops.packing import dequantize, unpack

# The number of rows that the layout is made for: the best for few rows and no worse for many.
_ROWS = {torch.bfloat16: 64, torch.float32: 16}


@dataclass(frozen=True, slots=True)
class BlockedLinear:
    """x -> x @ weight.T + bias; weight [N, K] in oneDNN's layout."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return out


# Rows for which torch's 4-bit kernel is faster than a dense product, by the processor's instructions.
_KERNEL_ROWS = {"AVX512": 4, "AVX2": 2}


@dataclass(frozen=True, slots=True)
class Linear:
    """x -> x @ weight.T + bias; weight [N, K]."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Int4Linear:
    """Up to `few_rows` rows by torch's 4-bit kernel, more by `many`. `packed` is in the kernel's form, scales_zeros [K
    / group, N, 2] with value = scale * (q - 8) + zero."""

    packed: Tensor
    scales_zeros: Tensor
    group_size: int
    few_rows: int
    many: Linear | BlockedLinear

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] > self.few_rows:
            return self.many(x)
        out: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.packed, self.group_size, self.scales_zeros)
        return out if self.many.bias is None else out.add_(self.many.bias)


AnyLinear = Linear | BlockedLinear | Int4Linear


@dataclass(frozen=True, slots=True)
class GateUp:
    """Both matrices of a gated MLP as one [2 N, K], gate above up."""

    both: AnyLinear

    def __call__(self, x: Tensor, deltas: tuple[Tensor, Tensor] | None = None) -> Tensor:
        gate, up = self.both(x).chunk(2, dim=-1)
        if deltas is not None:
            gate, up = gate + deltas[0], up + deltas[1]
        return F.silu(gate).mul_(up)


@dataclass(frozen=True, slots=True)
class Embedding:
    """Rows of a table by token; a quantized table stays packed, and its rows are expanded as they are read."""

    weight: Weight

    def __call__(self, tokens: Tensor) -> Tensor:
        if isinstance(self.weight, Quantized):
            return dequantize(self.weight.map(lambda each: each[tokens]))
        return F.embedding(tokens, self.weight.weight)


def prepare_linear(weight: Weight, bias: Tensor | None, device: torch.device) -> AnyLinear:
    """Computes in the weight's dtype."""
    weight = weight.map(lambda each: each.to(device))
    if not isinstance(weight, Quantized):
        return _dense(weight.weight, bias)
    many = _dense(dequantize(weight), bias)
    # Rows that the 4-bit kernel serves: 0 where it is missing or slow.
    few_rows = _KERNEL_ROWS.get(torch.backends.cpu.get_cpu_capability(), 0)
    is_suited = weight.bits == 4 and weight.shape[0] % 16 == 0 and weight.shape[1] % 64 == 0
    if device.type != "cpu" or weight.scales.dtype != torch.bfloat16 or not few_rows or not is_suited:
        return many
    zeros = weight.biases.float() + 8 * weight.scales.float()
    scales_zeros = torch.stack((weight.scales.float(), zeros), -1).transpose(0, 1).contiguous().to(torch.bfloat16)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(unpack(weight.packed, 4).int(), 1)
    return Int4Linear(packed, scales_zeros, weight.group_size, few_rows, many)


def _dense(weight: Tensor, bias: Tensor | None) -> Linear | BlockedLinear:
    bias = None if bias is None else bias.to(weight.device, weight.dtype)
    if not _can_block(weight.device, weight.dtype):
        return Linear(weight.contiguous(), bias)
    with torch.inference_mode(False), torch.no_grad():
        blocked: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS[weight.dtype])
    return BlockedLinear(blocked, bias)


def _can_block(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN computes in this dtype here."""
    if device.type != "cpu" or dtype not in _ROWS or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())

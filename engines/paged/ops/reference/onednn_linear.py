"""Dense products on a processor with its matrix library's own layout of the weights, made once at load.

torch hands a plain matrix to oneDNN (or MKL) row by row, which then reorders or walks it badly for few rows at a time.
In oneDNN's blocked layout the same product reads memory nearly as fast as there is.

What was measured (torch 2.13, two threads of a Sapphire Rapids that reads 24 GB/s; GB/s of weights read from memory,
4096 x 768; plain -> blocked):

    rows          1             4             16            64           512
    bfloat16   9.9 -> 15.0   10.2 -> 15.7   9.8 -> 15.3    8.1 -> 11.4   3.3 -> 3.1
    float32   25.4 -> 22.4   13.0 -> 19.3  10.6 -> 14.2    5.8 -> 6.5    1.2 -> 1.2
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Rows that the layout is chosen for: of what was tried, these were best for few rows and no worse for many.
_ROWS = {torch.bfloat16: 64, torch.float32: 16}


@dataclass(frozen=True, slots=True)
class BlockedLinear:
    """x -> x @ weight.T + bias. `weight` is oneDNN's, [N, K] in a layout of its own."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return out


def can_block(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN is there and computes in this dtype as it is."""
    if device.type != "cpu" or dtype not in _ROWS or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def block(weight: Tensor) -> Tensor:
    """[N, K] in oneDNN's layout; the original is not needed any more."""
    with torch.inference_mode(False), torch.no_grad():
        blocked: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS[weight.dtype])
    return blocked

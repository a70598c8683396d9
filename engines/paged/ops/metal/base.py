"""What every family of operations stands on."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.core.errors import invalid
from engines.paged.ops.metal.kernels import METAL_TYPES, Kernels
from engines.paged.staging import Staging


class KernelFamily:
    """A base of MetalOps, which makes these fields. Sizes come from the tensors: a family loads its library by them."""

    kernels: Kernels
    device: torch.device
    staging: Staging

    def new(self, *size: int, dtype: torch.dtype) -> Tensor:
        """Memory for a result; nothing is in it yet."""
        return torch.empty(size, dtype=dtype, device=self.device)

    def weight(self, tensor: Tensor) -> Tensor:
        """A weight as kernels read it: contiguous, on the device, of a dtype that Metal has."""
        if tensor.dtype not in METAL_TYPES:
            raise invalid(f"Metal computes in float32, float16 or bfloat16, not in {tensor.dtype}")
        return tensor.to(self.device).contiguous()


def check(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """A kernel is compiled for the dtypes of its arguments: they must be of one."""
    if tensor.dtype != dtype:
        raise ValueError(f"{name} is of {tensor.dtype} where {dtype} is expected")

"""What every family of operations stands on."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.paged.ops.metal.kernels import Kernels
from engines.paged.ops.metal.shape import ModelShape


class Family:
    """Made by MetalOps; a family adds its operations and, in `prepare_family`, loads what it always needs."""

    kernels: Kernels
    shape: ModelShape
    device: torch.device

    def new(self, *size: int, dtype: torch.dtype | None = None) -> Tensor:
        """Memory for a result; nothing is in it yet."""
        return torch.empty(size, dtype=dtype or self.shape.dtype, device=self.device)

    def check(self, name: str, tensor: Tensor, dtype: torch.dtype | None = None) -> None:
        """What comes in from outside is of the model's dtype (or the one given)."""
        if tensor.dtype != (dtype or self.shape.dtype):
            raise ValueError(f"{name} is of {tensor.dtype}, the kernels are compiled for {dtype or self.shape.dtype}")

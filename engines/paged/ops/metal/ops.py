"""MetalOps: all families of kernels as one backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from engines.paged.ops.metal.attention import AttentionOps
from engines.paged.ops.metal.blocks import BlockOps
from engines.paged.ops.metal.embedding import EmbeddingOps
from engines.paged.ops.metal.experts import ExpertOps
from engines.paged.ops.metal.kernels import Kernels
from engines.paged.ops.metal.linear import LinearOps
from engines.paged.ops.metal.norm import NormOps
from engines.paged.ops.metal.rope import RopeOps
from engines.paged.ops.metal.sampling import SamplingOps


class MetalOps(EmbeddingOps, NormOps, LinearOps, ExpertOps, RopeOps, AttentionOps, SamplingOps, BlockOps):
    """`compile_shader` is torch.mps.compile_shader with device mps, or ops.sim.compile_shader with device cpu.

    gpu_cores        decides whether a few long contexts are split over more groups
    is_deterministic a row's result does not depend on what else is in its step, nor on how its prompt was cut
    """

    def __init__(
        self,
        compile_shader: Callable[[str], Any],
        device: torch.device | str,
        gpu_cores: int = 10,
        is_deterministic: bool = False,
    ) -> None:
        self.device = torch.device(device)
        self.name = "metal" if self.device.type == "mps" else "sim"
        self.gpu_cores, self.is_deterministic = gpu_cores, is_deterministic
        self.kernels = Kernels(compile_shader, self.device)

    def prepare_attention(self, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> None:
        """Kernels are compiled when the first step asks for them."""

    @property
    def num_dispatches(self) -> int:
        """Kernels run since the start."""
        return sum(self.kernels.dispatches.values())

    def synchronize(self) -> None:
        if self.device.type == "mps":
            torch.mps.synchronize()

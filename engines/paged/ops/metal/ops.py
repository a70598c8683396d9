"""MetalOps: all families of kernels as one backend."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from engines.paged.ops.interface import Batch
from engines.paged.ops.metal.attention import AttentionOps, num_partitions
from engines.paged.ops.metal.blocks import BlockOps
from engines.paged.ops.metal.embedding import EmbeddingOps
from engines.paged.ops.metal.experts import ExpertOps
from engines.paged.ops.metal.kernels import Kernels
from engines.paged.ops.metal.linear import LinearOps
from engines.paged.ops.metal.norm import NormOps
from engines.paged.ops.metal.replay import Capture, CapturedSteps
from engines.paged.ops.metal.rope import RopeOps
from engines.paged.ops.metal.sampling import SamplingOps
from engines.paged.staging import Staging


class MetalOps(EmbeddingOps, NormOps, LinearOps, ExpertOps, RopeOps, AttentionOps, SamplingOps, BlockOps):
    """`compile_shader` is torch.mps.compile_shader with device mps, or what calls kernels like it on another device.

    gpu_cores        decides whether a few long contexts are split over more groups
    is_deterministic a row's result does not depend on what else is in its step, nor on how its prompt was cut
    """

    name = "metal"
    can_replay = True

    def __init__(
        self,
        compile_shader: Callable[[str], Any],
        device: torch.device | str,
        gpu_cores: int = 10,
        is_deterministic: bool = False,
    ) -> None:
        self.device = torch.device(device)
        self.gpu_cores, self.is_deterministic = gpu_cores, is_deterministic
        self.kernels = Kernels(compile_shader, self.device)
        self.staging = Staging(self.device)
        self._captured = CapturedSteps(self.device)

    def prepare_attention(self, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> None:
        """Kernels are compiled when the first step asks for them."""

    def replay(self, layout: Hashable, batch: Batch, compute: Callable[[], Tensor]) -> Tensor:
        """See the contract. Kernels of attention are chosen by the longest context, too."""
        layout = (layout, num_partitions(max(batch.context_lens_list)))
        is_known, step = self._captured.find(layout)
        if step is not None:
            return self.kernels.run_captured(step)
        if is_known:
            return compute()
        self.plan_attention(batch)  # tensors of its own, that stay
        with Capture() as self.kernels.capture:
            try:
                returned = compute()
            finally:
                capture, self.kernels.capture = self.kernels.capture, None
        self._captured.keep(layout, capture, returned)
        return returned

    @property
    def num_dispatches(self) -> int:
        """Kernels run since the start."""
        return sum(self.kernels.dispatches.values())

    def synchronize(self) -> None:
        if self.device.type == "mps":
            torch.mps.synchronize()

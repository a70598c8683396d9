"""MetalOps: all families of kernels as one backend, and the families of norms, rotary positions and blocks."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from engines.paged.base.transfer import Staging
from engines.paged.ops.interface import Batch, LayerCache, Pair
from engines.paged.ops.metal.attention import AttentionOps, num_partitions
from engines.paged.ops.metal.experts import ExpertOps
from engines.paged.ops.metal.kernels import KernelFamily, Kernels, check
from engines.paged.ops.metal.linear import EmbeddingOps, LinearOps
from engines.paged.ops.metal.replay import Capture, CapturedSteps
from engines.paged.ops.metal.sampling import SamplingOps
from engines.paged.ops.reference import Ops

NORM_THREADS = 256  # kernels/norm.metal: NORM_THREADS


class NormOps(KernelFamily):
    def add_rmsnorm(self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """The residual is written in place."""
        n, width = x.shape
        check("the norm's weight", weight, x.dtype)
        y = self.new(n, width, dtype=x.dtype)
        library = self.kernels.load("norm", T=x.dtype, WIDTH=width)
        if residual is None:
            library.run("rmsnorm", (n,), NORM_THREADS, y, x, x, weight, float(eps))
            return y, x
        check("residual", residual, x.dtype)
        library.run("add_rmsnorm", (n,), NORM_THREADS, y, residual, x, weight, float(eps))
        return y, residual


HEADS_A_GROUP = 4  # kernels/rope.metal: a simdgroup each


class RopeOps(KernelFamily):
    def rope_write(
        self, qkv: Tensor, cache: LayerCache, batch: Batch, rotation: Pair, norms: Pair | None, eps: float
    ) -> Tensor:
        """The rotation is in float32 at any T, and rounded once."""
        n = qkv.shape[0]
        groups, size = cache.keys.shape[-2:]
        heads = qkv.shape[1] // size - 2 * groups
        check("the cache", cache.keys, qkv.dtype)
        check("cos", rotation[0], torch.float32)
        q = self.new(n, heads, size, dtype=qkv.dtype)
        library = self.kernels.load("rope", T=qkv.dtype, D=size, H=heads, G=groups, R=2 * rotation[0].shape[1])
        library.run(
            "rope_write" if norms is None else "rope_write_norm",
            (-(-(heads + 2 * groups) // HEADS_A_GROUP), n),
            HEADS_A_GROUP * 32,
            *(q, cache.keys, cache.values, qkv),
            *(norms or (qkv, qkv)),  # unused buffers
            *(*rotation, batch.positions, batch.slots, float(eps)),
        )
        return q


BLOCK_THREADS = 256


class BlockOps(KernelFamily):
    """keys, values [L, blocks, S, G, D]; ids and pairs int64 on the device."""

    def copy_blocks(self, keys: Tensor, values: Tensor, pairs: Tensor) -> None:
        """No block may be both copied from and copied to in one call."""
        check("pairs", pairs, torch.int64)
        self._run_blocks("copy_blocks", keys, pairs.shape[0], keys, values, pairs, keys.shape[1])

    def pack_blocks(self, keys: Tensor, values: Tensor, ids: Tensor) -> Tensor:
        check("ids", ids, torch.int64)
        packed = self.new(ids.shape[0], 2, keys.shape[0], *keys.shape[2:], dtype=keys.dtype)
        self._run_blocks("pack_blocks", keys, ids.shape[0], packed, keys, values, ids, keys.shape[1], keys.shape[0])
        return packed

    def unpack_blocks(self, packed: Tensor, keys: Tensor, values: Tensor, ids: Tensor) -> None:
        check("ids", ids, torch.int64)
        check("packed", packed, keys.dtype)
        if packed.shape != (ids.shape[0], 2, keys.shape[0], *keys.shape[2:]):
            raise ValueError(f"packed blocks of shape {tuple(packed.shape)} are not {ids.shape[0]} of this cache")
        self._run_blocks("unpack_blocks", keys, ids.shape[0], packed, keys, values, ids, keys.shape[1], keys.shape[0])

    def _run_blocks(self, kernel: str, keys: Tensor, count: int, *args: Any) -> None:
        """Run a kernel for `count` blocks of this cache."""
        numbers = keys[0, 0].numel()
        library = self.kernels.load("blocks", T=keys.dtype, BLOCK=numbers)
        if count:
            library.run(kernel, (-(-numbers // (4 * BLOCK_THREADS)), count, 2 * keys.shape[0]), BLOCK_THREADS, *args)


class MetalOps(EmbeddingOps, NormOps, LinearOps, ExpertOps, RopeOps, AttentionOps, SamplingOps, BlockOps, Ops):
    """`compile_shader` is torch.mps.compile_shader with device mps, or a function with its interface for another
    device.

        gpu_cores         decides whether a few long contexts are split over more groups
        is_deterministic  a row's result depends neither on the other rows of its step nor on the chunks of its prompt
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
        """Kernels are compiled at the first step that needs them."""

    def replay(self, layout: Hashable, batch: Batch, compute: Callable[[], Tensor]) -> Tensor:
        """Kernels of attention depend on the longest context, too."""
        layout = (layout, num_partitions(max(batch.context_lens_list)))
        is_seen, step = self._captured.find(layout)
        if step is not None:
            return self.kernels.run_captured(step)
        if is_seen:
            return compute()
        self.plan_attention(batch)  # its tensors outlive the step
        with Capture() as self.kernels.capture:
            try:
                returned = compute()
            finally:
                capture, self.kernels.capture = self.kernels.capture, None
        self._captured.keep(layout, capture, returned)
        return returned

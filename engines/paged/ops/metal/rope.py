"""Rotary positions, and where keys and values are written."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.paged.ops.interface import Batch, LayerCache
from engines.paged.ops.metal.base import KernelFamily, check

HEADS_A_GROUP = 4  # kernels/rope.metal: a simdgroup each


class RopeOps(KernelFamily):
    def rope_write(
        self,
        qkv: Tensor,
        cache: LayerCache,
        batch: Batch,
        cos: Tensor,
        sin: Tensor,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        eps: float,
    ) -> Tensor:
        """See the contract. The rotation is in float32 whatever T is, and rounded once."""
        n = qkv.shape[0]
        groups, size = cache.keys.shape[-2:]
        heads = qkv.shape[1] // size - 2 * groups
        check("the cache", cache.keys, qkv.dtype)
        check("cos", cos, torch.float32)
        q = self.new(n, heads, size, dtype=qkv.dtype)
        library = self.kernels.load("rope", T=qkv.dtype, D=size, H=heads, G=groups, R=2 * cos.shape[1])
        normed = q_norm is not None and k_norm is not None
        library.run(
            "rope_write_norm" if normed else "rope_write",
            (-(-(heads + 2 * groups) // HEADS_A_GROUP), n),
            HEADS_A_GROUP * 32,
            *(q, cache.keys, cache.values, qkv),
            *((q_norm, k_norm) if normed else (qkv, qkv)),  # buffers that nothing reads
            *(cos, sin, batch.positions, batch.slots, float(eps)),
        )
        return q

"""The memory of keys and values: two tensors, allocated once."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.paged.model.config import DecoderConfig
from engines.paged.ops.interface import LayerCache


class KVCache:
    """keys and values [layers, blocks, S, G, D]."""

    def __init__(self, config: DecoderConfig, num_blocks: int, block_size: int, device: torch.device) -> None:
        shape = (config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_size)
        dtype = getattr(torch, config.dtype)
        # Zeros, as what padding points to is read, and weighed with 0: NaN would survive that.
        self.keys: Tensor = torch.zeros(shape, dtype=dtype, device=device)
        self.values: Tensor = torch.zeros(shape, dtype=dtype, device=device)

    def __repr__(self) -> str:
        return f"<KVCache {tuple(self.keys.shape)} {self.keys.dtype} on {self.keys.device}>"

    def layer(self, index: int) -> LayerCache:
        return LayerCache(self.keys[index], self.values[index])

"""Blocks out of the cache's memory and into it, on the thread that the device belongs to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engines.paged.cache.kv_cache import KVCache
from engines.paged.ops.interface import Ops
from engines.paged.runner.host_copy import HostCopy


class BlockMemory:
    """The caches that have a block each under one number: the model's, and a draft model's behind it."""

    def __init__(self, caches: Sequence[KVCache], ops: Ops) -> None:
        self._ops = ops
        self._caches = tuple(caches)

    @property
    def device(self) -> torch.device:
        return self._ops.device

    @property
    def is_behind(self) -> bool:
        """Whether a copy is made some time after it was asked for, in the device's order."""
        return self.device.type != "cpu"

    @property
    def dtype(self) -> torch.dtype:
        return self._caches[0].keys.dtype

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of one block in each array: [L, S, G, D]."""
        both = [tensor for cache in self._caches for tensor in (cache.keys, cache.values)]
        return [(tensor.shape[0], *tensor.shape[2:]) for tensor in both]

    @torch.inference_mode()
    def copy_out(self, blocks: Sequence[int]) -> HostCopy:
        """Their content as it is behind all that the device was given so far: keys and values of each cache, [n, 2, L,
        S, G, D]."""
        ids = self._ops.staging.put(blocks, torch.int64)
        return HostCopy(self.device, *(self._ops.pack_blocks(cache.keys, cache.values, ids) for cache in self._caches))

    @torch.inference_mode()
    def copy_in(self, blocks: Sequence[int], arrays: Sequence[Tensor]) -> None:
        """Fill blocks before the next step: [n, L, S, G, D] of each array, on the host."""
        ids = self._ops.staging.put(blocks, torch.int64)
        for cache, both in zip(self._caches, zip(arrays[::2], arrays[1::2], strict=True), strict=True):
            packed = self._ops.staging.copy(torch.stack(both, dim=1))
            self._ops.unpack_blocks(packed, cache.keys, cache.values, ids)

"""Blocks out of the cache's memory and into it, on the thread that the device belongs to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engines.paged.cache.kv_cache import KVCache
from engines.paged.runner.reading import HostCopy
from engines.paged.staging import Staging


class BlockMemory:
    """The caches that have a block each under one number: the model's, and a draft model's behind it."""

    def __init__(self, caches: Sequence[KVCache], staging: Staging) -> None:
        self._staging = staging
        self._tensors = [tensor for cache in caches for tensor in (cache.keys, cache.values)]

    @property
    def device(self) -> torch.device:
        return self._tensors[0].device

    @property
    def is_behind(self) -> bool:
        """Whether a copy is made some time after it was asked for, in the device's order."""
        return self.device.type != "cpu"

    @property
    def dtype(self) -> torch.dtype:
        return self._tensors[0].dtype

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of one block in each array: [L, S, G, D]."""
        return [(tensor.shape[0], *tensor.shape[2:]) for tensor in self._tensors]

    @torch.inference_mode()
    def copy_out(self, blocks: Sequence[int]) -> HostCopy:
        """Their content as it is behind all that the device was given so far: [L, n, S, G, D] of each array."""
        ids = self._staging.put(blocks, torch.int64)
        return HostCopy(*(tensor.index_select(1, ids) for tensor in self._tensors))

    @torch.inference_mode()
    def copy_in(self, blocks: Sequence[int], arrays: Sequence[Tensor]) -> None:
        """Fill blocks before the next step: [n, L, S, G, D] of each array, on the host."""
        ids = self._staging.put(blocks, torch.int64)
        for tensor, array in zip(self._tensors, arrays, strict=True):
            tensor.index_copy_(1, ids, self._staging.put_tensor(array.transpose(0, 1)))

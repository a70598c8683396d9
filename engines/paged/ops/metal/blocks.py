"""Whole blocks of the cache: copied, packed for a store, unpacked."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.paged.ops.metal.base import KernelFamily, check
from engines.paged.ops.metal.kernels import Library

GROUP = 256


class BlockOps(KernelFamily):
    """keys, values [L, blocks, S, G, D]; ids and pairs int64 on the device."""

    def copy_blocks(self, keys: Tensor, values: Tensor, pairs: Tensor) -> None:
        """See the contract; no block may be both copied from and copied to in one call."""
        check("pairs", pairs, torch.int64)
        library, groups = self._blocks(keys, pairs.shape[0])
        if pairs.shape[0]:
            library.run("copy_blocks", groups, GROUP, keys, values, pairs, keys.shape[1])

    def pack_blocks(self, keys: Tensor, values: Tensor, ids: Tensor) -> Tensor:
        """See the contract: each block of all layers is in one piece."""
        check("ids", ids, torch.int64)
        packed = self.new(ids.shape[0], 2, keys.shape[0], *keys.shape[2:], dtype=keys.dtype)
        library, groups = self._blocks(keys, ids.shape[0])
        if ids.shape[0]:
            library.run("pack_blocks", groups, GROUP, packed, keys, values, ids, keys.shape[1], keys.shape[0])
        return packed

    def unpack_blocks(self, packed: Tensor, keys: Tensor, values: Tensor, ids: Tensor) -> None:
        """See the contract."""
        check("ids", ids, torch.int64)
        check("packed", packed, keys.dtype)
        if packed.shape != (ids.shape[0], 2, keys.shape[0], *keys.shape[2:]):
            raise ValueError(f"packed blocks of shape {tuple(packed.shape)} are not {ids.shape[0]} of this cache")
        library, groups = self._blocks(keys, ids.shape[0])
        if ids.shape[0]:
            library.run("unpack_blocks", groups, GROUP, packed, keys, values, ids, keys.shape[1], keys.shape[0])

    def _blocks(self, keys: Tensor, count: int) -> tuple[Library, tuple[int, int, int]]:
        """The library for this cache, and the grid for so many blocks."""
        numbers = keys[0, 0].numel()
        library = self.kernels.load("blocks", T=keys.dtype, BLOCK=numbers)
        return library, (-(-numbers // (4 * GROUP)), count, 2 * keys.shape[0])

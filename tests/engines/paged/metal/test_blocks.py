"""Whole blocks of the cache: copied, packed for a store, unpacked."""

from __future__ import annotations

import pytest
import torch

from tests.engines.paged.metal.conftest import MakeOps

SHAPE = (3, 7, 16, 2, 12)  # layers, blocks, slots, heads, head size


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("pairs", [[], [(1, 2)], [(6, 1), (3, 5), (3, 4)]])
def test_copied_block_is_the_same_in_all_layers(
    metal_ops: MakeOps, dtype: torch.dtype, pairs: list[tuple[int, int]]
) -> None:
    """A copy has the block's keys and values in every layer; other blocks are unchanged."""
    ops = metal_ops()
    keys, values = (torch.randn(SHAPE).to(dtype) for _ in range(2))
    on = [each.clone().to(ops.device) for each in (keys, values)]
    ops.copy_blocks(*on, torch.tensor(pairs, dtype=torch.int64, device=ops.device).view(-1, 2))
    for source, target in pairs:
        keys[:, target], values[:, target] = keys[:, source], values[:, source]
    assert torch.equal(on[0].cpu(), keys)
    assert torch.equal(on[1].cpu(), values)


def test_packed_blocks_come_back(metal_ops: MakeOps) -> None:
    """A packed block holds all its layers in one piece, and unpacks into any other block of any cache."""
    ops = metal_ops()
    keys, values = (torch.randn(SHAPE, device=ops.device, dtype=torch.float16) for _ in range(2))
    packed = ops.pack_blocks(keys, values, torch.tensor([5, 2], device=ops.device))
    assert torch.equal(packed[0, 0], keys[:, 5]) and torch.equal(packed[1, 1], values[:, 2])

    others = [torch.zeros_like(keys), torch.zeros_like(values)]
    ops.unpack_blocks(packed, *others, torch.tensor([1, 6], device=ops.device))
    assert torch.equal(others[0][:, 1], keys[:, 5]) and torch.equal(others[1][:, 6], values[:, 2])
    assert not others[0][:, [0, 2, 3, 4, 5]].any()


def test_packed_blocks_of_another_cache_are_refused(metal_ops: MakeOps) -> None:
    """A block packed from a cache of another shape is refused."""
    ops = metal_ops()
    keys = torch.zeros(SHAPE, device=ops.device)
    with pytest.raises(ValueError, match="are not 1 of this cache"):
        ops.unpack_blocks(
            torch.zeros(1, 2, 2, 16, 2, 12, device=ops.device), keys, keys, torch.tensor([1]).to(ops.device)
        )

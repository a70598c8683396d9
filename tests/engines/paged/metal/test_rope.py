"""Rotary positions, and the slots that keys and values are written to."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.engines.paged.metal.conftest import MakeOps
from tests.engines.paged.metal.steps import assert_close, make_step

pytestmark = pytest.mark.usefixtures("lanes")

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16

# (heads, kv_heads, head size, rotated part, with norms, dtype)
SHAPES = [
    (4, 2, 64, 64, False, F16),
    (4, 1, 64, 64, True, F32),
    (5, 5, 80, 32, False, BF16),
    (3, 1, 96, 96, True, F16),
    (8, 1, 128, 128, True, BF16),
    (2, 1, 256, 64, True, F16),
    (1, 1, 16, 2, False, F32),
]


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [D] of one head with its first R dimensions rotated, the rest unchanged."""
    half = cos.shape[0]
    a, b, rest = x[:half], x[half : 2 * half], x[2 * half :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest))


@pytest.mark.parametrize("heads, kv_heads, size, rotary, normed, dtype", SHAPES)
def test_rope_write(
    metal_ops: MakeOps, heads: int, kv_heads: int, size: int, rotary: int, normed: bool, dtype: torch.dtype
) -> None:
    """Queries are returned rotated; rotated keys, and values, are in their slots, and no other slot has changed."""
    ops = metal_ops()
    step = make_step([(1, 17), (1, 1), (3, 40)], heads=heads, kv_heads=kv_heads, size=size, dtype=dtype)
    generator = torch.Generator().manual_seed(size)
    qkv = torch.randn(5, (heads + 2 * kv_heads) * size, generator=generator).to(dtype)
    angles = torch.randn(64, rotary // 2, generator=generator)
    cos, sin = angles.cos(), angles.sin()
    weights = [torch.randn(size, generator=generator).to(dtype) for _ in range(2)] if normed else [None, None]

    on = make_step(
        [(1, 17), (1, 1), (3, 40)], heads=heads, kv_heads=kv_heads, size=size, dtype=dtype, device=ops.device
    )
    q = ops.rope_write(
        qkv.to(ops.device),
        on.cache,
        on.batch,
        (cos.to(ops.device), sin.to(ops.device)),
        tuple(weight.to(ops.device) for weight in weights) if normed else None,
        1e-6,
    )

    keys, values = (each.clone().double().flatten(0, 1) for each in step.cache)
    for row in range(5):
        position = int(step.batch.positions[row])
        parts = qkv[row].double().view(-1, size)
        for head in range(heads + kv_heads):
            x = parts[head]
            weight = weights[0] if head < heads else weights[1]
            if weight is not None:
                x = torch.nn.functional.rms_norm(x, (size,), weight.double(), 1e-6)
            x = turned(x, cos[position].double(), sin[position].double())
            if head < heads:
                assert_close(q[row, head], x)
            else:
                keys[int(step.batch.slots[row]), head - heads] = x
        values[int(step.batch.slots[row])] = parts[heads + kv_heads :]
    for got, expected in ((on.cache.keys, keys), (on.cache.values, values)):
        got = got.cpu().flatten(0, 1)
        assert torch.equal(got.isnan(), expected.isnan())
        assert_close(got.nan_to_num(), expected.nan_to_num())


def test_cos_of_another_dtype_is_refused(metal_ops: MakeOps) -> None:
    """The tables of angles must be float32, the only dtype that the kernel reads."""
    ops = metal_ops()
    step = make_step([(1, 3)], dtype=F16, device=ops.device)
    table = torch.zeros(8, 32, dtype=F16, device=ops.device)
    with pytest.raises(ValueError, match="cos is of"):
        ops.rope_write(
            torch.zeros(1, 512, dtype=F16, device=ops.device), step.cache, step.batch, (table, table), None, 1e-6
        )

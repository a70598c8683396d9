"""Paged attention: decode, split and prefill against softmax in float64."""

from __future__ import annotations

import pytest
import torch

from engines.core.errors import EngineError
from tests.engines.paged.metal.conftest import MakeOps
from tests.engines.paged.metal.steps import assert_close, make_step, plain_attention

pytestmark = pytest.mark.usefixtures("lanes")

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16

# (sequences as (rows, context), heads, kv_heads, head size, slots a block, window, dtype)
DECODES = [
    ([(1, 1)], 4, 1, 64, 16, 0, F16),
    ([(1, 15), (1, 16), (1, 17)], 4, 2, 64, 16, 0, F32),
    ([(1, 31), (1, 1), (1, 33), (1, 100)], 8, 1, 80, 16, 0, F16),
    ([(1, n) for n in (1, 2, 5, 40, 7, 8, 9, 3, 64)], 2, 2, 96, 8, 0, BF16),
    ([(1, 70), (1, 5)], 4, 4, 128, 32, 0, F16),
    ([(1, 45)], 4, 1, 256, 16, 0, BF16),
    ([(1, 45), (1, 20)], 4, 2, 64, 16, 17, F16),
    ([(1, 45)], 4, 2, 64, 16, 1, F32),
    ([(3, 20), (1, 9), (8, 8)], 4, 2, 64, 16, 0, F16),  # drafts are rows of their own
]


@pytest.mark.parametrize("sequences, heads, kv_heads, size, slots, window, dtype", DECODES)
def test_decode(
    metal_ops: MakeOps,
    sequences: list[tuple[int, int]],
    heads: int,
    kv_heads: int,
    size: int,
    slots: int,
    window: int,
    dtype: torch.dtype,
) -> None:
    """A new token attends to its own sequence's cached tokens and to no other slot."""
    ops = metal_ops()
    step = make_step(
        sequences, heads=heads, kv_heads=kv_heads, size=size, slots=slots, window=window, dtype=dtype, device=ops.device
    )
    out = ops.attention(step.q, step.cache, step.batch, step.scale, window)
    assert ops.kernels.dispatches == {"paged_decode": 1}
    assert_close(out, plain_attention(step))


@pytest.mark.parametrize("context, window, dtype", [(513, 0, F16), (1024, 0, F32), (1100, 600, BF16)])
def test_split(metal_ops: MakeOps, context: int, window: int, dtype: torch.dtype) -> None:
    """Few rows with a long context are split into partitions of 512 keys, whose results are combined."""
    ops = metal_ops(gpu_cores=10)
    step = make_step([(1, context), (1, 3)], window=window, dtype=dtype, device=ops.device)
    out = ops.attention(step.q, step.cache, step.batch, step.scale, window)
    assert ops.kernels.dispatches == {"paged_split": 1, "paged_reduce": 1}
    assert_close(out, plain_attention(step))


@pytest.mark.parametrize("gpu_cores, window", [(1, 0), (10, 40)])
def test_not_split(metal_ops: MakeOps, gpu_cores: int, window: int) -> None:
    """Rows that fill the GPU without a split (heads * rows >= 8 * cores) are not split, nor rows with a small
    window."""
    ops = metal_ops(gpu_cores=gpu_cores)
    step = make_step([(1, 600), (1, 2)], window=window, device=ops.device)
    out = ops.attention(step.q, step.cache, step.batch, step.scale, window)
    assert ops.kernels.dispatches == {"paged_decode": 1}
    assert_close(out, plain_attention(step))


PREFILLS = [
    ([(9, 9)], 4, 2, 64, 16, 0, F16),
    ([(33, 33)], 4, 1, 64, 16, 0, F32),
    ([(32, 32), (31, 63)], 2, 1, 64, 16, 0, BF16),
    ([(40, 75)], 2, 1, 80, 8, 0, F16),
    ([(17, 80)], 2, 2, 96, 32, 0, F32),
    ([(35, 35)], 2, 1, 128, 16, 0, F16),
    ([(12, 37)], 1, 1, 128, 16, 0, F32),
    ([(10, 40)], 2, 1, 256, 16, 0, BF16),
    ([(40, 90)], 2, 1, 64, 16, 20, F16),
    ([(64, 64)], 2, 1, 64, 16, 1, F16),
]


@pytest.mark.parametrize("sequences, heads, kv_heads, size, slots, window, dtype", PREFILLS)
def test_prefill(
    metal_ops: MakeOps,
    sequences: list[tuple[int, int]],
    heads: int,
    kv_heads: int,
    size: int,
    slots: int,
    window: int,
    dtype: torch.dtype,
) -> None:
    """Each row of a prompt attends to the cached tokens up to its own."""
    ops = metal_ops()
    step = make_step(
        sequences, heads=heads, kv_heads=kv_heads, size=size, slots=slots, window=window, dtype=dtype, device=ops.device
    )
    out = ops.attention(step.q, step.cache, step.batch, step.scale, window)
    assert ops.kernels.dispatches == {"paged_prefill": 1}
    assert_close(out, plain_attention(step))


def test_mixed_step(metal_ops: MakeOps) -> None:
    """A step with new tokens, drafts and prompts sends each kind to its own kernel."""
    ops = metal_ops()
    step = make_step([(1, 20), (1, 3), (12, 30), (4, 50), (33, 33)], dtype=F16, device=ops.device)
    out = ops.attention(step.q, step.cache, step.batch, step.scale, 0)
    assert ops.kernels.dispatches == {"paged_decode": 1, "paged_prefill": 1}
    assert_close(out, plain_attention(step))


@pytest.mark.parametrize("window", [0, 45])
def test_deterministic_row_is_its_own(metal_ops: MakeOps, window: int) -> None:
    """In deterministic mode a row's result is bit-identical however its prompt was chunked."""
    ops = metal_ops(is_deterministic=True)
    whole = make_step([(70, 70)], heads=2, kv_heads=1, dtype=F16, device=ops.device)
    expected = ops.attention(whole.q, whole.cache, whole.batch, whole.scale, window)
    for rows in (1, 3, 8, 33):
        chunk = make_step([(rows, 70)], heads=2, kv_heads=1, dtype=F16, device=ops.device)
        got = ops.attention(whole.q[-rows:].contiguous(), whole.cache, chunk.batch, whole.scale, window)
        assert torch.equal(got, expected[-rows:])
    assert set(ops.kernels.dispatches) == {"paged_prefill"}


def test_reproducible_batch_is_deterministic(metal_ops: MakeOps) -> None:
    """A batch that requires reproducibility uses deterministic attention."""
    ops = metal_ops()
    step = make_step([(1, 20)], dtype=F16, device=ops.device)
    step.batch.is_reproducible = True
    ops.attention(step.q, step.cache, step.batch, step.scale, 0)
    assert ops.kernels.dispatches == {"paged_prefill": 1}


def test_odd_heads_are_refused(metal_ops: MakeOps) -> None:
    """A head size that is no multiple of a matrix fragment is refused with an error that names it."""
    ops = metal_ops()
    step = make_step([(1, 3)], size=12, device=ops.device)
    with pytest.raises(EngineError, match="heads of 12"):
        ops.attention(step.q, step.cache, step.batch, step.scale, 0)

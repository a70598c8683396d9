"""The residual stream and its norms."""

from __future__ import annotations

import pytest
import torch

from tests.engines.paged.metal.conftest import MakeOps
from tests.engines.paged.metal.steps import assert_close

pytestmark = pytest.mark.usefixtures("lanes")

# Features: fewer than a group has threads, an odd multiple of four, more than one pass of the group.
WIDTHS = [8, 260, 1028]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("n", [1, 5])
def test_add_rmsnorm(metal_ops: MakeOps, dtype: torch.dtype, width: int, n: int) -> None:
    """The residual is the rounded sum, and its norm is computed in float; without a residual, x is the residual."""
    ops = metal_ops()
    generator = torch.Generator().manual_seed(width)
    x, residual, weight = (
        torch.randn(size, generator=generator).to(dtype) for size in ((n, width), (n, width), (width,))
    )
    on = [each.clone().to(ops.device) for each in (x, residual, weight)]

    normed, kept = ops.add_rmsnorm(on[0], on[1], on[2], 1e-5)
    total = (x.double() + residual.double()).to(dtype)
    assert torch.equal(kept.cpu(), total)
    assert_close(normed, torch.nn.functional.rms_norm(total.double(), (width,), weight.double(), 1e-5))

    normed, kept = ops.add_rmsnorm(on[0], None, on[2], 1e-5)
    assert torch.equal(kept.cpu(), x)
    assert_close(normed, torch.nn.functional.rms_norm(x.double(), (width,), weight.double(), 1e-5))
    assert ops.kernels.dispatches == {"add_rmsnorm": 1, "rmsnorm": 1}


def test_norm_of_zeros_is_zero(metal_ops: MakeOps) -> None:
    """A row of zeros has norm 0, not NaN."""
    ops = metal_ops()
    x = torch.zeros(1, 8, device=ops.device)
    normed, _ = ops.add_rmsnorm(x, None, torch.ones(8, device=ops.device), 1e-6)
    assert torch.equal(normed.cpu(), torch.zeros(1, 8))

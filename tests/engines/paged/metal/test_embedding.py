"""Token ids to rows of the embedding."""

from __future__ import annotations

import pytest
import torch

from engines.paged.ops.interface import Dense
from tests.engines.paged.metal.conftest import MakeOps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n", [1, 2, 9])
def test_embedding_is_the_tables_row(metal_ops: MakeOps, dtype: torch.dtype, n: int) -> None:
    """Each token's embedding is bit-identical to its row of the table."""
    ops = metal_ops()
    generator = torch.Generator().manual_seed(n)
    table = torch.randn(50, 260, generator=generator).to(dtype)
    tokens = torch.randint(0, 50, (n,), generator=generator, dtype=torch.int32)
    embedding = ops.prepare_embedding(Dense(table))
    x = ops.embed(tokens.to(ops.device), embedding)
    assert torch.equal(x.cpu(), table[tokens.long()])

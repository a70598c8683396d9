"""The kernel is tried before it is used: what it computes is what torch does."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engines.paged.ops.cpp_compiler import CompileError
from engines.paged.ops.native.decode import Decoding, NativeDecode

# By how much it may differ from torch in float32: rounding of the result.
_TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}
# More than a piece of the cache, and no whole number of blocks.
_TOKENS, _BLOCK_SIZE, _NUM_BLOCKS = 300, 16, 24


def check(decode: NativeDecode, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> None:
    """Attend once, and compare.

    Raises: CompileError.
    """
    noise = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=noise).to(dtype)

    keys, values = (random(_NUM_BLOCKS, _BLOCK_SIZE, kv_heads, head_size) for _ in range(2))
    q = random(1, heads, head_size)
    table = list(range(_NUM_BLOCKS - 1, _NUM_BLOCKS - 1 - -(-_TOKENS // _BLOCK_SIZE), -1))
    scale = head_size**-0.5
    out = torch.full_like(q, float("nan"))
    decode(q, keys, values, Decoding.of([(0, table, 0, _TOKENS)]), scale, out)
    seen, added = (each[table].flatten(0, 1)[:_TOKENS].transpose(0, 1).unsqueeze(0).float() for each in (keys, values))
    grouped = q.view(1, kv_heads, -1, head_size).float()
    expected = scaled_dot_product_attention(grouped, seen, added, scale=scale).view_as(out)
    error = float((out.float() - expected).abs().max())
    if not error <= _TOLERANCES[dtype]:  # nor NaN
        raise CompileError(f"it is {error:.2g} off what torch computes")

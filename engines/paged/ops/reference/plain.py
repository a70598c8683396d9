"""Attention by two matrix products and a softmax, for devices on which torch's own is not to be trusted.

torch's scaled_dot_product_attention on MPS has been silently wrong in several releases: causal masks that leak
(pytorch#195910), reads out of bounds (#169222), strided keys (#163597, #163598), broadcast ones (#189631). Products and
softmax are what the rest of the engine stands on there.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Rows of a prompt whose scores are made at once.
_PIECE_ROWS = 256


def plain_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float = 1.0,
) -> Tensor:
    """What scaled_dot_product_attention computes of the same arguments, in float32 where these have 16 bits.

    q [a, b, rows, D], keys and values [a, b, tokens, D], which have stride 0 over b where all of b share them;
    attn_mask [.., rows or 1, tokens] is added. Causal: row i sees tokens 0 .. i.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    shared = keys.stride(1) == 0 and values.stride(1) == 0
    keys, values = ((each[:, :1] if shared else each).to(dtype).contiguous() for each in (keys, values))
    pieces = []
    for start in range(0, q.shape[2], _PIECE_ROWS):
        rows = q[:, :, start : start + _PIECE_ROWS].to(dtype) * scale
        stop = start + rows.shape[2]
        seen = stop if is_causal else keys.shape[2]
        scores = _products(rows, keys[:, :, :seen].transpose(2, 3))
        if is_causal:
            later = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).triu(start + 1)
            scores = scores.masked_fill(later, float("-inf"))
        if attn_mask is not None:
            scores = scores + (attn_mask if attn_mask.shape[-2] == 1 else attn_mask[..., start:stop, :])
        pieces.append(_products(scores.softmax(-1), values[:, :, :seen]))
    return torch.cat(pieces, 2).to(q.dtype)


def _products(left: Tensor, right: Tensor) -> Tensor:
    """left [a, b, m, K] with right [a, b, K, n], or with right [a, 1, K, n]: rows of all b together then."""
    a, b, m, width = left.shape
    return (left.reshape(a, right.shape[1], -1, width) @ right).view(a, b, m, right.shape[3])

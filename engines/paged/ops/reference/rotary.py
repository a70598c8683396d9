"""Rotary positions, and where keys and values are written."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor

from engines.paged.ops.interface import Batch, LayerCache


def rope_write(
    qkv: Tensor,
    cache: LayerCache,
    batch: Batch,
    cos: Tensor,
    sin: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
) -> Tensor:
    """See the contract. The rotation is in float32 whatever T is."""
    groups, size = cache.keys.shape[-2:]
    heads = qkv.shape[1] // size - 2 * groups
    rows = qkv.view(qkv.shape[0], -1, size)
    turned = rows[:, : heads + groups]
    if q_norm is not None and k_norm is not None:
        weights = torch.cat((q_norm.expand(heads, -1), k_norm.expand(groups, -1)))
        turned = F.rms_norm(turned, (size,), None, eps) * weights
    turned = rotate(turned, *_of_rows(batch, cos, sin)).to(qkv.dtype)
    slots = _slots(batch)
    cache.keys.view(-1, groups, size).index_copy_(0, slots, turned[:, heads:])
    cache.values.view(-1, groups, size).index_copy_(0, slots, rows[:, heads + groups :])
    return turned[:, :heads].contiguous()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [n, heads, D] by cos and sin [n, 1, R], the first half of sin negated -> float32; what is past R stays."""
    rotary = cos.shape[-1]
    x = x.float()
    head = x[..., :rotary]
    turned = torch.addcmul(head * cos, head.roll(rotary // 2, -1), sin)
    return turned if rotary == x.shape[-1] else torch.cat((turned, x[..., rotary:]), -1)


def _of_rows(batch: Batch, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The rows' own cos and signed sin in both halves, once a step."""
    key = f"rotation {id(cos)}"
    if key not in batch.scratch:
        cos, sin = cos[batch.positions], sin[batch.positions]
        batch.scratch[key] = torch.cat((cos, cos), -1).unsqueeze(1), torch.cat((-sin, sin), -1).unsqueeze(1)
    of_rows: tuple[Tensor, Tensor] = batch.scratch[key]
    return of_rows


def _slots(batch: Batch) -> Tensor:
    slots: Tensor | None = batch.scratch.get("slots")
    if slots is None:
        slots = batch.scratch["slots"] = batch.slots.long()
    return slots

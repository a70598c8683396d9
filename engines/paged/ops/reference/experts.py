"""A mixture of experts: routing, and the experts' products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engines.paged.ops.reference.linear import AnyLinear, GateUp


@dataclass(frozen=True, slots=True)
class Expert:
    gate_up: GateUp
    down: AnyLinear


def route(router_logits: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """[n, E] -> weights [n, k] float32 and experts [n, k] int64, the likeliest first, among equals the lowest id."""
    shares = torch.softmax(router_logits, dim=-1, dtype=torch.float32)
    weights, experts = shares.sort(dim=-1, descending=True, stable=True)
    weights, experts = weights[:, :top_k], experts[:, :top_k]
    return (weights / weights.sum(-1, keepdim=True) if renormalize else weights), experts


def mix(x: Tensor, router_logits: Tensor, experts: Sequence[Expert], top_k: int, renormalize: bool) -> Tensor:
    """Rows are grouped by expert, each expert runs once on all its rows, and a row's results are summed in the order of
    its weights, in float32: the sum does not depend on the other rows."""
    weights, chosen = route(router_logits, top_k, renormalize)
    order = chosen.flatten().argsort(stable=True)
    counts = chosen.flatten().bincount(minlength=len(experts)).tolist()
    gathered = x[order // top_k]
    results = torch.empty_like(gathered)
    start = 0
    for expert, count in zip(experts, counts, strict=True):
        if count:
            rows = slice(start, start + count)
            results[rows] = expert.down(expert.gate_up(gathered[rows]))
            start += count
    by_row = torch.empty_like(results).index_copy_(0, order, results).view(*chosen.shape, -1)
    return (by_row * weights.unsqueeze(-1)).sum(1).to(x.dtype)

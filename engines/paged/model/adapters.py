"""Low-rank changes of a decoder's matrices by row: what LoRA adapters add to each product of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from engines.paged.base.transfer import Staging


class Site(Enum):
    """The decoder's matrix products; fused matrices are one site."""

    QKV = "self_attn.qkv"
    OUTPUT = "self_attn.o_proj"
    GATE_UP = "mlp.gate_up"
    DOWN = "mlp.down_proj"
    SHARED_GATE_UP = "mlp.shared_expert.gate_up"
    SHARED_DOWN = "mlp.shared_expert.down_proj"


@dataclass(frozen=True, slots=True)
class LowRank:
    """An addition to a product: x -> (x @ down.T) @ up.T; down [r, K], up [N, r] with the adapter's scale in it."""

    down: Tensor
    up: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return (x @ self.down.T) @ self.up.T


@dataclass(frozen=True, slots=True)
class Adapter:
    """One LoRA adapter. `fingerprint` identifies its weights in keys of cached blocks."""

    name: str
    changes: Mapping[tuple[int, Site], LowRank]  # by layer and site
    fingerprint: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """A step's rows by adapter (Batch.adapters): rows [rows] int64, None where the adapter has all."""

    parts: tuple[tuple[Adapter, Tensor | None], ...]

    def add_(self, products: Tensor, x: Tensor, layer: int, site: Site) -> Tensor:
        """Add the adapters' changes for x [n, K] to products [n, N], in place."""
        for adapter, rows in self.parts:
            change = adapter.changes.get((layer, site))
            if change is None:
                continue
            if rows is None:
                products.add_(change(x))
            else:
                products.index_add_(0, rows, change(x[rows]))
        return products

    def deltas(self, x: Tensor, layer: int, site: Site) -> tuple[Tensor, Tensor] | None:
        """The changes of gate and up, [n, N] each; None where no adapter of these rows changes this layer's."""
        changes = [adapter.changes[layer, site] for adapter, _ in self.parts if (layer, site) in adapter.changes]
        if not changes:
            return None
        both = self.add_(x.new_zeros(x.shape[0], changes[0].up.shape[0]), x, layer, site)
        gate, up = both.chunk(2, dim=-1)
        return gate.contiguous(), up.contiguous()


def adapter_rows(adapters: Sequence[Adapter | None], query_lens: Sequence[int], staging: Staging) -> AdapterRows | None:
    """The adapter rows of a batch: each sequence's adapter or None, and its number of rows."""
    if not any(adapters):
        return None
    if all(adapter is adapters[0] for adapter in adapters):
        assert adapters[0] is not None
        return AdapterRows(((adapters[0], None),))
    rows: dict[str, tuple[Adapter, list[int]]] = {}
    first = 0
    for adapter, count in zip(adapters, query_lens, strict=True):
        if adapter is not None:
            rows.setdefault(adapter.name, (adapter, []))[1].extend(range(first, first + count))
        first += count
    return AdapterRows(tuple((adapter, staging.put(at, torch.int64)) for adapter, at in rows.values()))

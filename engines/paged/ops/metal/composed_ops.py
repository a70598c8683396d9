"""Metal's operations, those that fail on this machine taken from another backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from engines.paged.ops.interface import Batch, LayerCache, Ops
from engines.paged.ops.metal.attention import MAX_DECODE_ROWS
from engines.paged.ops.metal.check_cases import GROUPS
from engines.paged.ops.metal.ops import MetalOps

# Both compute the contract's `attention`: sequences of few rows by the one, prompts by the other.
DECODE, PREFILL = "attention_decode", "attention_prefill"


class ComposedOps:
    """`replaced` says which groups of operations (check_cases.GROUPS) `fallback` computes, and why."""

    def __init__(self, metal: MetalOps, fallback: Ops, replaced: Mapping[str, str]) -> None:
        self.replaced = dict(replaced)
        self._metal, self._fallback = metal, fallback
        self._methods = {method for group in replaced for method in GROUPS[group]}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fallback if name in self._methods else self._metal, name)

    def __repr__(self) -> str:
        return f"<ComposedOps {self._metal!r} but for {', '.join(sorted(self.replaced))}>"

    def attention(self, q: Tensor, cache: LayerCache, batch: Batch, scale: float, window: int) -> Tensor:
        """A step goes to the fallback as a whole where one of the kernels that it needs is replaced."""
        ops = self._fallback if self._needed(batch) & self.replaced.keys() else self._metal
        return ops.attention(q, cache, batch, scale, window)

    def _needed(self, batch: Batch) -> set[str]:
        """The groups by which this step's attention is computed. In deterministic mode a row's result may not change
        with its step, so that both kernels stand or fall together."""
        if self._metal.is_deterministic or batch.is_reproducible:
            return {DECODE, PREFILL}
        return {PREFILL if length > MAX_DECODE_ROWS else DECODE for length in batch.query_lens_list}

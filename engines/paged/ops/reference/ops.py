"""`ReferenceOps`: the contract's table, each entry in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor

from engines.paged.ops.interface import Batch, LayerCache, SamplingBatch, Weight
from engines.paged.ops.reference import experts as mixture
from engines.paged.ops.reference import linear as matrices
from engines.paged.ops.reference import rotary
from engines.paged.ops.reference.attention import PagedAttention
from engines.paged.staging import Staging


class ReferenceOps:
    """Operations on `device`. `dtype` is T, what weights are brought to; None: the one they come in. `keeps_expanded`:
    quantized matrices are held in T too, for speed; False: packed alone, about 1 byte a weight at 4 bits (linear.py).
    """

    name = "reference"
    can_replay = False

    def __init__(
        self, device: torch.device | str, dtype: torch.dtype | None = None, *, keeps_expanded: bool = True
    ) -> None:
        self.device = torch.device(device)
        self.dtype = dtype
        self.keeps_expanded = keeps_expanded
        self.staging = Staging(self.device)
        self._attention = PagedAttention(self.device)

    def __repr__(self) -> str:
        return f"<ReferenceOps on {self.device}, {self.dtype or 'dtype of the weights'}>"

    def prepare_attention(self, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> None:
        """Torch needs none."""

    def prepare_linear(self, weight: Weight, bias: Tensor | None = None) -> matrices.AnyLinear:
        return matrices.prepare_linear(weight, bias, self.device, self.dtype, self.keeps_expanded)

    def prepare_gate_up(self, gate: Weight, up: Weight) -> matrices.GateUp:
        return matrices.prepare_gate_up(gate, up, self.device, self.dtype, self.keeps_expanded)

    def prepare_embedding(self, weight: Weight) -> matrices.Embedding:
        return matrices.prepare_embedding(weight, self.device, self.dtype)

    def prepare_experts(
        self, gate: Sequence[Weight], up: Sequence[Weight], down: Sequence[Weight]
    ) -> list[mixture.Expert]:
        return mixture.prepare_experts(gate, up, down, self.device, self.dtype, self.keeps_expanded)

    def embed(self, tokens: Tensor, embedding: matrices.Embedding, last_tokens: Tensor | None = None) -> Tensor:
        if last_tokens is not None:
            tokens = torch.where(tokens < 0, last_tokens.index_select(0, (-1 - tokens).clamp(min=0)), tokens)
        return embedding(tokens)

    def add_rmsnorm(self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        residual = x if residual is None else residual.add_(x)
        return F.rms_norm(residual, (residual.shape[-1],), weight, eps), residual

    def linear(self, x: Tensor, linear: matrices.AnyLinear) -> Tensor:
        return linear(x)

    def gate_up(self, x: Tensor, gate_up: matrices.GateUp, deltas: tuple[Tensor, Tensor] | None = None) -> Tensor:
        return gate_up(x, deltas)

    def moe(
        self, x: Tensor, router_logits: Tensor, experts: Sequence[mixture.Expert], top_k: int, renormalize: bool
    ) -> Tensor:
        return mixture.mix(x, router_logits, experts, top_k, renormalize)

    def rope_write(
        self,
        qkv: Tensor,
        cache: LayerCache,
        batch: Batch,
        cos: Tensor,
        sin: Tensor,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        eps: float,
    ) -> Tensor:
        return rotary.rope_write(qkv, cache, batch, cos, sin, q_norm, k_norm, eps)

    def attention(self, q: Tensor, cache: LayerCache, batch: Batch, scale: float, window: int) -> Tensor:
        return self._attention(q, cache, batch, scale, window)

    def sample(self, logits: Tensor, sampling: SamplingBatch) -> tuple[Tensor, Tensor]:
        from engines.paged.sampling.reference import sample

        tokens, logprobs = sample(logits, sampling)
        if sampling.last_tokens is not None and sampling.seats is not None:
            sampling.last_tokens.index_put_((sampling.seats,), tokens)
        return tokens, logprobs

    def copy_blocks(self, keys: Tensor, values: Tensor, pairs: Tensor) -> None:
        source, target = pairs.unbind(1)
        for cache in (keys, values):
            cache.index_copy_(1, target, cache.index_select(1, source))

    def pack_blocks(self, keys: Tensor, values: Tensor, ids: Tensor) -> Tensor:
        packed = keys.new_empty(2, keys.shape[0], ids.shape[0], *keys.shape[2:])
        for cache, part in zip((keys, values), packed, strict=True):
            torch.index_select(cache, 1, ids, out=part)
        return packed.permute(2, 0, 1, 3, 4, 5)

    def unpack_blocks(self, packed: Tensor, keys: Tensor, values: Tensor, ids: Tensor) -> None:
        for cache, part in zip((keys, values), packed.unbind(1), strict=True):
            cache.index_copy_(1, ids, part.transpose(0, 1))

    def replay(self, layout: Hashable, batch: Batch, compute: Callable[[], Tensor]) -> Tensor:
        return compute()

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

"""`ReferenceOps`: each operation of the interface in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor

from engines.paged.base.transfer import Staging
from engines.paged.ops.interface import Batch, LayerCache, SamplingBatch, Weight
from engines.paged.ops.reference import experts as mixture
from engines.paged.ops.reference import linear as matrices
from engines.paged.ops.reference.attention import PagedAttention
from engines.paged.ops.reference.sampling import sample


class ReferenceOps:
    """Operations on `device`. `dtype` is T, None: the weights' own. `keeps_expanded`: quantized matrices are stored in
    T too, for speed; False: packed alone, about 1 byte a weight at 4 bits (linear.py)."""

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

    def prepare_attention(self, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> None: ...

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
        """The rotation is in float32 whatever T is."""
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

    def attention(self, q: Tensor, cache: LayerCache, batch: Batch, scale: float, window: int) -> Tensor:
        return self._attention(q, cache, batch, scale, window)

    def sample(self, logits: Tensor, sampling: SamplingBatch) -> tuple[Tensor, Tensor]:
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


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [n, heads, D] by cos and sin [n, 1, R], the first half of sin negated -> float32; dimensions from R on stay."""
    rotary = cos.shape[-1]
    x = x.float()
    head = x[..., :rotary]
    turned = torch.addcmul(head * cos, head.roll(rotary // 2, -1), sin)
    return turned if rotary == x.shape[-1] else torch.cat((turned, x[..., rotary:]), -1)


def _of_rows(batch: Batch, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The rows' cos and signed sin in both halves, once a step."""
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

"""`Ops`: each operation in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor

from engines.paged.base.transfer import Staging
from engines.paged.ops.interface import Batch, LayerCache, Pair, SamplingBatch, Weight
from engines.paged.ops.packing import join
from engines.paged.ops.reference.attention import PagedAttention
from engines.paged.ops.reference.experts import Expert, mix
from engines.paged.ops.reference.linear import Embedding, GateUp, prepare_linear
from engines.paged.ops.reference.sampling import sample


class Ops:
    """Operations on `device`; the other backends are subclasses. Model, runner and engine call these and no other
    kernels. `interface` explains the letters in shapes.

    `prepare_*` converts weights once, at load, to the backend's form; the results are opaque to callers and may be on
    another device or in another layout.
    """

    name = "reference"
    can_replay = False  # whether steps are built at fixed addresses and computed by `replay`

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.staging = Staging(self.device)  # copies to the device
        self._attention = PagedAttention(self.device)

    def prepare_attention(self, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> None:
        """Prepare attention of layers of this shape, before the first request."""

    def prepare_linear(self, weight: Weight, bias: Tensor | None = None) -> Any:
        return prepare_linear(weight, bias, self.device)

    def prepare_gate_up(self, gate: Weight, up: Weight) -> Any:
        return GateUp(prepare_linear(join([gate, up]), None, self.device))

    def prepare_embedding(self, weight: Weight) -> Any:
        return Embedding(weight.map(lambda each: each.to(self.device)))

    def prepare_experts(self, gate: Sequence[Weight], up: Sequence[Weight], down: Sequence[Weight]) -> Any:
        """One matrix of each kind for each of E experts."""
        return [
            Expert(GateUp(prepare_linear(join(gate_up), None, self.device)), prepare_linear(down_of, None, self.device))
            for *gate_up, down_of in zip(gate, up, down, strict=True)
        ]

    def embed(self, tokens: Tensor, embedding: Any, last_tokens: Tensor | None = None) -> Tensor:
        """[n] int32 -> [n, K] of T. A token -1 - i stands for last_tokens[i]."""
        if last_tokens is not None:
            tokens = torch.where(tokens < 0, last_tokens.index_select(0, (-1 - tokens).clamp(min=0)), tokens)
        embedded: Tensor = embedding(tokens)
        return embedded

    def add_rmsnorm(self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(normed, residual): residual + x (x alone where it is None) is the new residual, possibly in the old one's
        memory; normed is its RMS norm times `weight`. [n, K] all, sums in float32."""
        residual = x if residual is None else residual.add_(x)
        return F.rms_norm(residual, (residual.shape[-1],), weight, eps), residual

    def linear(self, x: Tensor, linear: Any) -> Tensor:
        """x [n, K] -> x @ W.T + bias [n, N]."""
        product: Tensor = linear(x)
        return product

    def gate_up(self, x: Tensor, gate_up: Any, deltas: Pair | None = None) -> Tensor:
        """x [n, K] -> silu(x @ gate.T) * (x @ up.T) [n, N]. `deltas` [n, N] each are the adapters' additions to the two
        products."""
        product: Tensor = gate_up(x, deltas)
        return product

    def moe(self, x: Tensor, router_logits: Tensor, experts: Any, top_k: int, renormalize: bool) -> Tensor:
        """Mixture of experts: softmax over router_logits [n, E] in float32, the top k (lowest id among equals), their
        weights renormalised if requested; sum of weight * down(silu(gate x) * up x). [n, K] -> [n, K]."""
        return mix(x, router_logits, experts, top_k, renormalize)

    def rope_write(
        self, qkv: Tensor, cache: LayerCache, batch: Batch, rotation: Pair, norms: Pair | None, eps: float
    ) -> Tensor:
        """Rotate queries and keys in float32, write keys and values into their slots, return the queries [n, H, D].

        qkv [n, (H + 2 G) * D]: queries, keys, values. `rotation`: cos and sin [positions, R / 2] float32, already
        scaled; R <= D is the rotated part, in halves (dimension i goes with i + R / 2). `norms` [D] of queries and of
        keys: RMS norm of each head before the rotation (Qwen3), or None.
        """
        groups, size = cache.keys.shape[-2:]
        heads = qkv.shape[1] // size - 2 * groups
        rows = qkv.view(qkv.shape[0], -1, size)
        turned = rows[:, : heads + groups]
        if norms is not None:
            weights = torch.cat((norms[0].expand(heads, -1), norms[1].expand(groups, -1)))
            turned = F.rms_norm(turned, (size,), None, eps) * weights
        turned = rotate(turned, *_of_rows(batch, *rotation)).to(qkv.dtype)
        slots = _slots(batch)
        cache.keys.view(-1, groups, size).index_copy_(0, slots, turned[:, heads:])
        cache.values.view(-1, groups, size).index_copy_(0, slots, rows[:, heads + groups :])
        return turned[:, :heads].contiguous()

    def attention(self, q: Tensor, cache: LayerCache, batch: Batch, scale: float, window: int) -> Tensor:
        """Causal attention of each row [n, H, D] to the cached tokens of its own sequence, itself included -> [n, H *
        D]. The row at position p sees p - window + 1 .. p where `window` > 0, else 0 .. p. Query head h reads key-value
        head h // (H / G)."""
        return self._attention(q, cache, batch, scale, window)

    def sample(self, logits: Tensor, sampling: SamplingBatch) -> tuple[Tensor, Tensor]:
        """logits [m, V] float32, may be overwritten -> tokens [m] int32 and the log probability of each by the model's
        own distribution (log softmax of the unmodified logits), [m] float32.

        In this order: grammar mask, penalties, bias; then, where the temperature is above 0, logits / temperature,
        top-k, top-p, min-p (each on the result of the one before), and argmax(logit + Gumbel noise of (seed, position,
        id)). Penalties as vLLM's: repetition divides positive and multiplies negative logits of tokens in prompt or
        output; frequency * count and presence are subtracted for tokens of the output. Ties: the lowest id.
        """
        tokens, logprobs = sample(logits, sampling)
        if sampling.last_tokens is not None and sampling.seats is not None:
            sampling.last_tokens.index_put_((sampling.seats,), tokens)
        return tokens, logprobs

    def copy_blocks(self, keys: Tensor, values: Tensor, pairs: Tensor) -> None:
        """Copy blocks in all layers, (from, to) in pairs [p, 2] int64. keys, values [L, blocks, S, G, D]."""
        source, target = pairs.unbind(1)
        for cache in (keys, values):
            cache.index_copy_(1, target, cache.index_select(1, source))

    def pack_blocks(self, keys: Tensor, values: Tensor, ids: Tensor) -> Tensor:
        """Blocks ids [i] int64 of keys and values [L, blocks, S, G, D], by block: [i, 2, L, S, G, D]."""
        packed = keys.new_empty(2, keys.shape[0], ids.shape[0], *keys.shape[2:])
        for cache, part in zip((keys, values), packed, strict=True):
            torch.index_select(cache, 1, ids, out=part)
        return packed.permute(2, 0, 1, 3, 4, 5)

    def unpack_blocks(self, packed: Tensor, keys: Tensor, values: Tensor, ids: Tensor) -> None:
        """A contiguous result of `pack_blocks` into blocks ids [i] int64, all different."""
        for cache, part in zip((keys, values), packed.unbind(1), strict=True):
            cache.index_copy_(1, ids, part.transpose(0, 1))

    def replay(self, layout: Hashable, batch: Batch, compute: Callable[[], Tensor]) -> Tensor:
        """The result of `compute` for a batch of decoding rows.

        A backend may repeat the operations of the first call with this layout instead of calling it: their memory must
        still be in place. The next replay overwrites the result.
        """
        return compute()

    def synchronize(self) -> None:
        """Wait for the device's queued work."""
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

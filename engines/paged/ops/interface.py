"""The operations of the engine's backends, and the values that go through them.

`reference` defines each in plain torch and serves CPU and CUDA; `native` adds attention of our own on processors;
`metal` is the same in Metal. Everything above (model, runner, engine) calls these and no other kernels.

Letters in shapes: n rows of a step, s sequences of a step, m rows that are sampled, K and N features in and out, H
query heads, G key-value heads, D head size, S slots a block, M blocks a table, V vocabulary, E experts, k experts a
token. T is the model's dtype (float32, float16 or bfloat16). All tensors are contiguous and on the backend's device.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from engines.paged.base.transfer import Staging


@dataclass(frozen=True, slots=True)
class Dense:
    """An unquantized matrix: `weight` [N, K] of T."""

    weight: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[0], self.weight.shape[1]


@dataclass(frozen=True, slots=True)
class Quantized:
    """An affine-quantized matrix in MLX's layout: value = scale * q + bias, by groups along K.

    packed  [N, K * bits / 32] int32 (the bits of a uint32): value i of a word is shifted by i * bits, lowest first
    scales, biases  [N, K / group_size] of T
    """

    packed: Tensor
    scales: Tensor
    biases: Tensor
    bits: int  # 4 or 8
    group_size: int  # 32, 64 or 128

    @property
    def shape(self) -> tuple[int, int]:
        return self.packed.shape[0], self.packed.shape[1] * 32 // self.bits


Weight = Dense | Quantized


class LayerCache(NamedTuple):
    """Keys and values of one layer: [blocks, S, G, D] each, of T. Block 0 is for padding."""

    keys: Tensor
    values: Tensor


@dataclass(slots=True)
class Batch:
    """The rows of one step. Sequences with one row each (decoding) come first, then those with several (prefill).

    tokens         [n] int32
    positions      [n] int32      of each row in its sequence
    slots          [n] int32      where its key and value go: block * S + offset
    row_sequences  [n] int32      0 .. s-1
    query_starts   [s + 1] int32  rows of sequence i: query_starts[i] .. query_starts[i + 1]
    context_lens   [s] int32      tokens of the sequence in the cache once this step's are written
    block_tables   [s, M] int32   block ids in order; entries past the context are 0
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    row_sequences: Tensor
    query_starts: Tensor
    context_lens: Tensor
    block_tables: Tensor
    # The same on the host, for a backend that plans there.
    query_lens_list: Sequence[int]
    context_lens_list: Sequence[int]
    block_tables_list: Sequence[Sequence[int]]
    num_decodes: int  # sequences with one row, at the front
    # Whether a row's result must be bit-identical at any place of its blocks (deterministic mode).
    is_reproducible: bool = False
    # The current layer, and keys and values of all layers, [L, blocks, S, G, D] each, None where they are not known.
    layer: int = 0
    caches: LayerCache | None = None
    adapters: Any = None  # model.adapters.AdapterRows, None where no row has an adapter
    scratch: dict[str, Any] = field(default_factory=dict)  # computed once a step for all layers
    # [seats + 1] int32: a token -1 - i stands for last_tokens[i], sampled by the previous step and not read by the
    # host; None where all tokens are known.
    last_tokens: Tensor | None = None


@dataclass(slots=True)
class SamplingBatch:
    """How each of m rows is sampled. Tensors that are None have no effect.

    temperature  [m] float32   0: the token of the highest logit (lowest id among equals)
    top_k        [m] int32     0: all
    top_p, min_p [m] float32   1 and 0: all
    seeds        [m] int64     the bits of a uint64
    positions    [m] int64     of the token to be drawn, in its sequence: the counter of the noise
    repetition, presence, frequency  [m] float32, with seen_in_prompt [m, V] bool and output_counts [m, V] int32
    bias_rows, bias_ids [b] int64, bias_values [b] float32   added to logits[row, id]
    allowed      [m, ceil(V / 32)] int32: bit id % 32 of word id // 32 says whether the token may come
    last_tokens  [seats + 1] int32, with seats [m] int32: where each token is stored for the next step; seat -1: nowhere
                 (the last place may be overwritten)
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor
    positions: Tensor
    repetition: Tensor | None = None
    presence: Tensor | None = None
    frequency: Tensor | None = None
    seen_in_prompt: Tensor | None = None
    output_counts: Tensor | None = None
    bias_rows: Tensor | None = None
    bias_ids: Tensor | None = None
    bias_values: Tensor | None = None
    allowed: Tensor | None = None
    last_tokens: Tensor | None = None
    seats: Tensor | None = None
    is_greedy: bool = False  # no row needs noise
    is_unfiltered: bool = False  # no row has top-k, top-p or min-p
    needs_logprobs: bool = True  # else the log probabilities are 0, or NaN where the logits have NaN


class Ops(Protocol):
    """One backend. `prepare_*` converts weights once, at load, to the backend's form; the results are opaque to callers
    and may be on another device or in another layout."""

    name: str
    device: torch.device
    staging: Staging  # copies to the device
    can_replay: bool  # whether steps are built at fixed addresses and computed by `replay`

    def prepare_attention(self, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> None:
        """Prepare attention of layers of this shape, before the first request."""
        ...

    def prepare_linear(self, weight: Weight, bias: Tensor | None = None) -> Any: ...

    def prepare_gate_up(self, gate: Weight, up: Weight) -> Any: ...

    def prepare_embedding(self, weight: Weight) -> Any: ...

    def prepare_experts(self, gate: Sequence[Weight], up: Sequence[Weight], down: Sequence[Weight]) -> Any:
        """One matrix of each kind for each of E experts."""
        ...

    def embed(self, tokens: Tensor, embedding: Any, last_tokens: Tensor | None = None) -> Tensor:
        """[n] int32 -> [n, K] of T. A token -1 - i stands for last_tokens[i]."""
        ...

    def add_rmsnorm(self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(normed, residual): residual + x (x alone where it is None) is the new residual, possibly in the old one's
        memory; normed is its RMS norm times `weight`. [n, K] all, sums in float32."""
        ...

    def linear(self, x: Tensor, linear: Any) -> Tensor:
        """x [n, K] -> x @ W.T + bias [n, N]."""
        ...

    def gate_up(self, x: Tensor, gate_up: Any, deltas: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """x [n, K] -> silu(x @ gate.T) * (x @ up.T) [n, N]. `deltas` [n, N] each are the adapters' additions to the two
        products."""
        ...

    def moe(self, x: Tensor, router_logits: Tensor, experts: Any, top_k: int, renormalize: bool) -> Tensor:
        """Mixture of experts: softmax over router_logits [n, E] in float32, the top k (lowest id among equals), their
        weights renormalised if requested; sum of weight * down(silu(gate x) * up x). [n, K] -> [n, K]."""
        ...

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
        """Rotate queries and keys, write keys and values into their slots, return the queries [n, H, D].

        qkv [n, (H + 2 G) * D]: queries, keys, values. cos, sin [positions, R / 2] float32, already scaled; R <= D is
        the rotated part, in halves (dimension i goes with i + R / 2). q_norm, k_norm [D]: RMS norm of each head
        before the rotation (Qwen3), or None.
        """
        ...

    def attention(self, q: Tensor, cache: LayerCache, batch: Batch, scale: float, window: int) -> Tensor:
        """Causal attention of each row [n, H, D] to the cached tokens of its own sequence, itself included -> [n, H *
        D]. The row at position p sees p - window + 1 .. p where `window` > 0, else 0 .. p. Query head h reads key-value
        head h // (H / G)."""
        ...

    def sample(self, logits: Tensor, sampling: SamplingBatch) -> tuple[Tensor, Tensor]:
        """logits [m, V] float32, may be overwritten -> tokens [m] int32 and the log probability of each by the model's
        own distribution (log softmax of the unmodified logits), [m] float32.

        In this order: grammar mask, penalties, bias; then, where the temperature is above 0, logits / temperature,
        top-k, top-p, min-p (each on the result of the one before), and argmax(logit + Gumbel noise of (seed, position,
        id)). Penalties as vLLM's: repetition divides positive and multiplies negative logits of tokens in prompt or
        output; frequency * count and presence are subtracted for tokens of the output. Ties: the lowest id.
        """
        ...

    def copy_blocks(self, keys: Tensor, values: Tensor, pairs: Tensor) -> None:
        """Copy blocks in all layers, (from, to) in pairs [p, 2] int64. keys, values [L, blocks, S, G, D]."""
        ...

    def pack_blocks(self, keys: Tensor, values: Tensor, ids: Tensor) -> Tensor:
        """Blocks ids [i] int64 of keys and values [L, blocks, S, G, D], by block: [i, 2, L, S, G, D]."""
        ...

    def unpack_blocks(self, packed: Tensor, keys: Tensor, values: Tensor, ids: Tensor) -> None:
        """A contiguous result of `pack_blocks` into blocks ids [i] int64, all different."""
        ...

    def replay(self, layout: Hashable, batch: Batch, compute: Callable[[], Tensor]) -> Tensor:
        """The result of `compute` for a batch of decoding rows.

        A backend may repeat the operations of the first call with this layout instead of calling it: their memory must
        still be in place. The next replay overwrites the result.
        """
        ...

    def synchronize(self) -> None:
        """Wait for the device's queued work."""
        ...

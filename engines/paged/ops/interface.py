"""The values that go through the engine's operations (`reference.Ops`).

Letters in shapes: n rows of a step, s sequences of a step, m rows that are sampled, K and N features in and out, H
query heads, G key-value heads, D head size, S slots a block, M blocks a table, V vocabulary, E experts, k experts a
token. T is the model's dtype (float32, float16 or bfloat16). All tensors are contiguous and on the backend's device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Dense:
    """An unquantized matrix: `weight` [N, K] of T."""

    weight: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[0], self.weight.shape[1]

    def map(self, change: Callable[[Tensor], Tensor]) -> Dense:
        """The matrix with each of its tensors changed."""
        return Dense(change(self.weight))


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

    def map(self, change: Callable[[Tensor], Tensor]) -> Quantized:
        """The matrix with each of its tensors changed."""
        parts = change(self.packed), change(self.scales), change(self.biases)
        return Quantized(*parts, self.bits, self.group_size)


Weight = Dense | Quantized
Pair = tuple[Tensor, Tensor]


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

"""One decoder for Llama, Mistral, Qwen and their mixtures of experts.

    x = embed(tokens)
    for each layer:  x += output(attention(rope(qkv(norm(x)))));  x += mlp(norm(x))
    logits = head(norm(x))

Matrices with the same input are fused: queries, keys and values; gate and up. The residual is added where the next norm
reads it, so that a layer has eight operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engines.paged.model.adapters import AdapterRows, Site
from engines.paged.model.config import DecoderConfig
from engines.paged.model.rope import rope_tables
from engines.paged.ops.interface import Batch, LayerCache, Pair
from engines.paged.ops.reference import Ops


@dataclass(frozen=True, slots=True)
class Mlp:
    """A gated MLP: results of the operations' `prepare_*`, and the biases of gate and up, [N] tensors."""

    gate_up: Any
    down: Any
    biases: Pair | None = None


@dataclass(frozen=True, slots=True)
class MixtureMlp:
    """Experts, their router, and Qwen2-MoE's shared expert with its gate, or None."""

    router: Any
    experts: Any
    shared: Mlp | None = None
    shared_gate: Any = None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Norms [HID] and [D] are tensors on the device, the rest results of `prepare_*`."""

    input_norm: Tensor
    qkv: Any
    qk_norms: Pair | None
    output: Any
    post_norm: Tensor
    mlp: Mlp | MixtureMlp


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embedding: Any
    layers: Sequence[LayerWeights]
    norm: Tensor
    head: Any


class Decoder:
    """Runs batches through the layers, best under torch.inference_mode(). Its only state is the rotation's tables, for
    positions 0 .. num_positions - 1 (None: the config's max_positions)."""

    def __init__(
        self, config: DecoderConfig, ops: Ops, weights: DecoderWeights, num_positions: int | None = None
    ) -> None:
        self.config = config
        self.ops = ops
        self.weights = weights
        self.num_positions = num_positions or config.max_positions
        self._scale = config.head_size**-0.5
        cos, sin = rope_tables(config, self.num_positions)
        self._rotation = cos.to(ops.device), sin.to(ops.device)

    def forward(self, batch: Batch, keys: Tensor, values: Tensor) -> Tensor:
        """Run all layers over a batch's rows, and write their keys and values; keys, values [L, blocks, S, G, D].
        Returns: the input of the final norm, [n, HID]."""
        x, residual = self._run_layers(batch, keys, values)
        return x if residual is None else residual + x

    def next_logits(self, batch: Batch, keys: Tensor, values: Tensor) -> Tensor:
        """`forward` and `logits` of all rows [n, V] float32, without a tensor in between."""
        return self._head(*self._run_layers(batch, keys, values))

    def _run_layers(self, batch: Batch, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """The last layer's addition, and the residual to add it to."""
        ops, eps = self.ops, self.config.rms_norm_eps
        residual: Tensor | None = None
        x = ops.embed(batch.tokens, self.weights.embedding, batch.last_tokens)
        batch.caches = LayerCache(keys, values)
        for index, layer in enumerate(self.weights.layers):
            batch.layer = index
            x, residual = ops.add_rmsnorm(x, residual, layer.input_norm, eps)
            x = self._attend(x, index, layer, batch, LayerCache(keys[index], values[index]))
            x, residual = ops.add_rmsnorm(x, residual, layer.post_norm, eps)
            x = self._mix(x, index, layer.mlp, batch)
        return x, residual

    def logits(self, hidden: Tensor) -> Tensor:
        """Rows of `forward`'s result, [m, HID] -> [m, V] float32."""
        return self._head(hidden, None)

    def _head(self, x: Tensor, residual: Tensor | None) -> Tensor:
        normed, _ = self.ops.add_rmsnorm(x, residual, self.weights.norm, self.config.rms_norm_eps)
        return self.ops.linear(normed, self.weights.head).float()

    def _attend(self, x: Tensor, index: int, layer: LayerWeights, batch: Batch, cache: LayerCache) -> Tensor:
        ops, config = self.ops, self.config
        qkv = self._linear(x, layer.qkv, index, Site.QKV, batch)
        q = ops.rope_write(qkv, cache, batch, self._rotation, layer.qk_norms, config.rms_norm_eps)
        attended = ops.attention(q, cache, batch, self._scale, config.windows[index])
        return self._linear(attended, layer.output, index, Site.OUTPUT, batch)

    def _mix(self, x: Tensor, index: int, mlp: Mlp | MixtureMlp, batch: Batch) -> Tensor:
        if isinstance(mlp, Mlp):
            return self._mlp(x, mlp, index, batch, Site.GATE_UP, Site.DOWN)
        ops, experts = self.ops, self.config.experts
        assert experts is not None
        router_logits = ops.linear(x, mlp.router)
        mixed = ops.moe(x, router_logits, mlp.experts, experts.experts_per_token, experts.renormalize)
        if mlp.shared is None:
            return mixed
        shared = self._mlp(x, mlp.shared, index, batch, Site.SHARED_GATE_UP, Site.SHARED_DOWN)
        return mixed + torch.sigmoid(ops.linear(x, mlp.shared_gate)) * shared

    def _mlp(self, x: Tensor, mlp: Mlp, index: int, batch: Batch, gate_up: Site, down: Site) -> Tensor:
        adapters: AdapterRows | None = batch.adapters
        deltas = None if adapters is None else adapters.deltas(x, index, gate_up)
        if mlp.biases is not None:
            wide = tuple(bias.expand(x.shape[0], -1) for bias in mlp.biases)
            gate, up = wide if deltas is None else (each + delta for each, delta in zip(wide, deltas, strict=True))
            deltas = gate.contiguous(), up.contiguous()
        gated = self.ops.gate_up(x, mlp.gate_up) if deltas is None else self.ops.gate_up(x, mlp.gate_up, deltas)
        return self._linear(gated, mlp.down, index, down, batch)

    def _linear(self, x: Tensor, linear: Any, index: int, site: Site, batch: Batch) -> Tensor:
        products = self.ops.linear(x, linear)
        adapters: AdapterRows | None = batch.adapters
        return products if adapters is None else adapters.add_(products, x, index, site)

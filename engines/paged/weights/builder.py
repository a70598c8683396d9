"""Builds a decoder's weights layer by layer, from the names that each family and tool uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engines.paged.model.config import DecoderConfig, Experts
from engines.paged.model.decoder import DecoderWeights, LayerWeights, MixtureMlp, Mlp
from engines.paged.ops.interface import Weight
from engines.paged.ops.packing import join
from engines.paged.ops.reference import Ops
from engines.paged.weights.weight_reader import WeightReader

# Names of an expert's matrices: gate, up, down.
_QWEN_NAMES = ("gate_proj", "up_proj", "down_proj")
_MIXTRAL_NAMES = ("w1", "w3", "w2")


class WeightsBuilder:
    """Reads, joins and prepares each layer's tensors before the next layer's are read."""

    def __init__(self, config: DecoderConfig, tensors: WeightReader, ops: Ops) -> None:
        self._config, self._tensors, self._ops = config, tensors, ops

    def build(self) -> DecoderWeights:
        config, tensors, ops = self._config, self._tensors, self._ops
        root = "" if "embed_tokens.weight" in tensors.files else "model."  # saved without its head it has no prefix
        # A table shared by embedding and head is on the device once.
        table = tensors.matrix(f"{root}embed_tokens", config.vocab_size, config.hidden_size)
        table = table.map(lambda each: each.to(ops.device))
        embedding = ops.prepare_embedding(table)
        layers = [self._layer(f"{root}layers.{at}", at) for at in range(config.num_layers)]
        norm = self._vector(f"{root}norm", config.hidden_size)
        if not config.tie_embeddings:
            table = tensors.matrix("lm_head", config.vocab_size, config.hidden_size)
        return DecoderWeights(embedding, layers, norm, ops.prepare_linear(table))

    def _vector(self, module: str, size: int, part: str = "weight") -> Tensor:
        return self._tensors.vector(f"{module}.{part}", size).to(self._ops.device)

    def _layer(self, path: str, at: int) -> LayerWeights:
        config, attention = self._config, f"{path}.self_attn"
        hidden, size = config.hidden_size, config.head_size
        norms = [self._vector(f"{attention}.{which}_norm", size) for which in "qk"] if config.qk_norm else None
        has_experts = config.experts is not None and at in config.experts.layers
        return LayerWeights(
            input_norm=self._vector(f"{path}.input_layernorm", hidden),
            qkv=self._qkv(attention),
            qk_norms=None if norms is None else (norms[0], norms[1]),
            output=self._ops.prepare_linear(
                self._tensors.matrix(f"{attention}.o_proj", hidden, config.num_heads * size),
                self._vector(f"{attention}.o_proj", hidden, "bias") if config.output_bias else None,
            ),
            post_norm=self._vector(f"{path}.post_attention_layernorm", hidden),
            mlp=self._mixture(path) if has_experts else self._mlp(f"{path}.mlp", config.intermediate_size),
        )

    def _qkv(self, attention: str) -> Any:
        """Queries above keys above values."""
        config = self._config
        keys = config.num_kv_heads * config.head_size
        parts = {"q": config.num_heads * config.head_size, "k": keys, "v": keys}
        modules = [(f"{attention}.{part}_proj", rows) for part, rows in parts.items()]
        joined = join([self._tensors.matrix(module, rows, config.hidden_size) for module, rows in modules])
        biases = [self._vector(module, rows, "bias") for module, rows in modules] if config.qkv_bias else None
        return self._ops.prepare_linear(joined, None if biases is None else torch.cat(biases))

    def _mlp(self, path: str, features: int) -> Mlp:
        config, hidden = self._config, self._config.hidden_size
        gate, up = (self._tensors.matrix(f"{path}.{name}_proj", features, hidden) for name in ("gate", "up"))
        down = self._tensors.matrix(f"{path}.down_proj", hidden, features)
        gate_up = self._ops.prepare_gate_up(gate, up)
        if not config.mlp_bias:
            return Mlp(gate_up, self._ops.prepare_linear(down))
        biases = self._vector(f"{path}.gate_proj", features, "bias"), self._vector(f"{path}.up_proj", features, "bias")
        return Mlp(gate_up, self._ops.prepare_linear(down, self._vector(f"{path}.down_proj", hidden, "bias")), biases)

    def _mixture(self, path: str) -> MixtureMlp:
        """Mixtral's block is `block_sparse_moe`, Qwen's `mlp`; transformers 5 uses `mlp` for both in memory, and a tool
        may write that."""
        tensors, ops, hidden, experts = self._tensors, self._ops, self._config.hidden_size, self._config.experts
        assert experts is not None
        router_path = tensors.first_of(f"{path}.mlp.gate", f"{path}.block_sparse_moe.gate")
        block = router_path.removesuffix(".gate")
        router = tensors.matrix(router_path, experts.num_experts, hidden, is_quantizable=False)
        matrices = self._experts(experts, block)
        shared, shared_gate = None, None
        if experts.shared_intermediate_size:
            shared = self._mlp(f"{block}.shared_expert", experts.shared_intermediate_size)
            gate = tensors.matrix(f"{block}.shared_expert_gate", 1, hidden, is_quantizable=False)
            shared_gate = ops.prepare_linear(gate)
        return MixtureMlp(ops.prepare_linear(router), ops.prepare_experts(*matrices), shared, shared_gate)

    def _experts(self, experts: Experts, block: str) -> tuple[Sequence[Weight], Sequence[Weight], Sequence[Weight]]:
        """Gate, up and down of each expert, in one of these forms:

        1. `switch_mlp.gate_proj` etc.: one tensor for all experts each (MLX)
        2. `experts.gate_up_proj`: gate above up, all experts in one tensor (transformers 5 in memory)
        3. `experts.3.gate_proj` or, Mixtral's, `experts.3.w1`: one by one
        """
        tensors, count, inner = self._tensors, experts.num_experts, experts.intermediate_size
        hidden = self._config.hidden_size
        if f"{block}.experts.gate_up_proj" in tensors.files:
            halves = tensors.halves(f"{block}.experts.gate_up_proj", count, inner, hidden)
            return *halves, tensors.stacked(f"{block}.experts.down_proj", count, hidden, inner)
        shapes = ((inner, hidden), (inner, hidden), (hidden, inner))
        if f"{block}.switch_mlp.gate_proj.weight" in tensors.files:
            paths = [f"{block}.switch_mlp.{name}" for name in _QWEN_NAMES]
            gate, up, down = (tensors.stacked(path, count, *shape) for path, shape in zip(paths, shapes, strict=True))
            return gate, up, down
        is_mixtral = f"{block}.experts.0.w1.weight" in tensors.files
        names = _MIXTRAL_NAMES if is_mixtral else _QWEN_NAMES
        gate, up, down = (
            [tensors.matrix(f"{block}.experts.{at}.{name}", *shape) for at in range(count)]
            for name, shape in zip(names, shapes, strict=True)
        )
        return gate, up, down

"""Builds a decoder's weights layer by layer, from the names that each family and tool uses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engines.paged.model.config import DecoderConfig, Experts
from engines.paged.model.decoder import DecoderWeights, LayerWeights, MixtureMlp, Mlp
from engines.paged.ops.interface import Ops, Weight
from engines.paged.ops.packing import join, moved
from engines.paged.weights.weight_reader import WeightReader

# Names of an expert's matrices: gate, up, down.
_QWEN_NAMES = ("gate_proj", "up_proj", "down_proj")
_MIXTRAL_NAMES = ("w1", "w3", "w2")


def build(config: DecoderConfig, tensors: WeightReader, ops: Ops) -> DecoderWeights:
    """Read, join and prepare each layer's tensors before the next layer's are read."""
    root = "" if "embed_tokens.weight" in tensors.files else "model."  # a model saved without its head has no prefix
    # A table shared by embedding and head is on the device once.
    table = moved(tensors.matrix(f"{root}embed_tokens", config.vocab_size, config.hidden_size), ops.device)
    embedding = ops.prepare_embedding(table)
    layers = [_layer(config, tensors, ops, f"{root}layers.{at}", at) for at in range(config.num_layers)]
    norm = tensors.vector(f"{root}norm.weight", config.hidden_size).to(ops.device)
    if not config.tie_embeddings:
        table = tensors.matrix("lm_head", config.vocab_size, config.hidden_size)
    return DecoderWeights(embedding, layers, norm, ops.prepare_linear(table))


def _layer(config: DecoderConfig, tensors: WeightReader, ops: Ops, path: str, at: int) -> LayerWeights:
    attention, hidden = f"{path}.self_attn", config.hidden_size
    has_experts = config.experts is not None and at in config.experts.layers
    norms = [
        tensors.vector(f"{attention}.{which}_norm.weight", config.head_size).to(ops.device) if config.qk_norm else None
        for which in "qk"
    ]
    return LayerWeights(
        input_norm=tensors.vector(f"{path}.input_layernorm.weight", hidden).to(ops.device),
        qkv=_qkv(config, tensors, ops, attention),
        q_norm=norms[0],
        k_norm=norms[1],
        output=ops.prepare_linear(
            tensors.matrix(f"{attention}.o_proj", hidden, config.num_heads * config.head_size),
            tensors.vector(f"{attention}.o_proj.bias", hidden) if config.output_bias else None,
        ),
        post_norm=tensors.vector(f"{path}.post_attention_layernorm.weight", hidden).to(ops.device),
        mlp=_mixture(config, tensors, ops, path)
        if has_experts
        else _mlp(config, tensors, ops, f"{path}.mlp", config.intermediate_size),
    )


def _qkv(config: DecoderConfig, tensors: WeightReader, ops: Ops, attention: str) -> object:
    """Queries above keys above values."""
    size = config.head_size
    parts = {"q": config.num_heads * size, "k": config.num_kv_heads * size, "v": config.num_kv_heads * size}
    weights = [tensors.matrix(f"{attention}.{part}_proj", rows, config.hidden_size) for part, rows in parts.items()]
    if not config.qkv_bias:
        return ops.prepare_linear(join(weights))
    biases = [tensors.vector(f"{attention}.{part}_proj.bias", rows) for part, rows in parts.items()]
    return ops.prepare_linear(join(weights), torch.cat(biases))


def _mlp(config: DecoderConfig, tensors: WeightReader, ops: Ops, path: str, features: int) -> Mlp:
    hidden = config.hidden_size
    gate, up = (tensors.matrix(f"{path}.{name}_proj", features, hidden) for name in ("gate", "up"))
    down = tensors.matrix(f"{path}.down_proj", hidden, features)
    biases: tuple[Tensor, Tensor] | None = None
    down_bias = None
    if config.mlp_bias:
        of_gate, of_up = (tensors.vector(f"{path}.{name}_proj.bias", features) for name in ("gate", "up"))
        biases = of_gate.to(ops.device), of_up.to(ops.device)
        down_bias = tensors.vector(f"{path}.down_proj.bias", hidden)
    return Mlp(ops.prepare_gate_up(gate, up), ops.prepare_linear(down, down_bias), biases)


def _mixture(config: DecoderConfig, tensors: WeightReader, ops: Ops, path: str) -> MixtureMlp:
    """Mixtral's block is `block_sparse_moe`, Qwen's `mlp`; transformers 5 uses `mlp` for both in memory, and a tool may
    write that."""
    experts = config.experts
    assert experts is not None
    router_path = tensors.first_of(f"{path}.mlp.gate", f"{path}.block_sparse_moe.gate")
    block = router_path.removesuffix(".gate")
    router = tensors.matrix(router_path, experts.num_experts, config.hidden_size, is_quantizable=False)
    gate, up, down = _experts(config, experts, tensors, block)
    shared, shared_gate = None, None
    if experts.shared_intermediate_size:
        shared = _mlp(config, tensors, ops, f"{block}.shared_expert", experts.shared_intermediate_size)
        shared_gate = ops.prepare_linear(
            tensors.matrix(f"{block}.shared_expert_gate", 1, config.hidden_size, is_quantizable=False)
        )
    return MixtureMlp(ops.prepare_linear(router), ops.prepare_experts(gate, up, down), shared, shared_gate)


def _experts(
    config: DecoderConfig, experts: Experts, tensors: WeightReader, block: str
) -> tuple[Sequence[Weight], Sequence[Weight], Sequence[Weight]]:
    """Gate, up and down of each expert, from the first of these forms in the files:

    1. `switch_mlp.gate_proj` etc.: one tensor for all experts each (MLX)
    2. `experts.gate_up_proj`: gate above up, all experts in one tensor (transformers 5 in memory)
    3. `experts.3.gate_proj` or, Mixtral's, `experts.3.w1`: one by one
    """
    count, inner, hidden = experts.num_experts, experts.intermediate_size, config.hidden_size
    if f"{block}.switch_mlp.gate_proj.weight" in tensors.files:
        gate, up = (tensors.stacked(f"{block}.switch_mlp.{name}", count, inner, hidden) for name in _QWEN_NAMES[:2])
        return gate, up, tensors.stacked(f"{block}.switch_mlp.down_proj", count, hidden, inner)
    if f"{block}.experts.gate_up_proj" in tensors.files:
        halves = tensors.halves(f"{block}.experts.gate_up_proj", count, inner, hidden)
        return *halves, tensors.stacked(f"{block}.experts.down_proj", count, hidden, inner)
    is_mixtral = f"{block}.experts.0.w1.weight" in tensors.files
    names = _MIXTRAL_NAMES if is_mixtral else _QWEN_NAMES
    shapes = ((inner, hidden), (inner, hidden), (hidden, inner))
    gate, up, down = (
        [tensors.matrix(f"{block}.experts.{at}.{name}", *shape) for at in range(count)]
        for name, shape in zip(names, shapes, strict=True)
    )
    return gate, up, down

"""Reads a decoder's shape from a Hugging Face folder: config.json and generation_config.json, in every spelling since
transformers 4, and in MLX's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from engines.paged.base.json_fields import Fields
from engines.paged.model.config import DecoderConfig, Experts, QuantizationSpec, RopeScaling
from engines.paged.model.families import ModelFamily, family_of

CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
DTYPES = ("float32", "float16", "bfloat16")


def read_config(directory: Path) -> DecoderConfig:
    """The checked content of config.json. For missing fields transformers' defaults of the family hold.

    Raises: EngineError that names file and field: missing, no JSON, of the wrong type or size, or an unsupported kind
    of model, activation, rotation or quantization.
    """
    fields = Fields.of_file(directory / CONFIG)
    family = family_of(fields)
    if (activation := fields.text("hidden_act", "silu")) not in ("silu", "swish"):
        raise fields.wrong("hidden_act", f"'{activation}' is not supported; silu is")
    hidden_size = fields.integer("hidden_size")
    num_layers = fields.integer("num_hidden_layers")
    num_heads = fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise fields.wrong("num_key_value_heads", f"{num_kv_heads} does not divide num_attention_heads, {num_heads}")
    head_size = _head_size(fields, family, hidden_size, num_heads)
    max_positions = fields.integer("max_position_embeddings", family.max_positions)
    theta, scaling, max_positions = read_rope(fields, family.rope_theta, max_positions)
    attention_bias = fields.boolean("attention_bias", False) if family.reads_attention_bias else False
    eos_token_ids = _token_ids(fields, "eos_token_id")
    if (directory / GENERATION_CONFIG).is_file():  # chat models end turns with one, texts with another
        eos_token_ids = _token_ids(Fields.of_file(directory / GENERATION_CONFIG), "eos_token_id") + eos_token_ids
    qkv_bias = fields.boolean(family.qkv_bias, True) if isinstance(family.qkv_bias, str) else family.qkv_bias
    return DecoderConfig(
        architecture=family.architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        rms_norm_eps=fields.number("rms_norm_eps", family.rms_norm_eps),
        rope_theta=theta,
        rotary_size=head_size,
        max_positions=max_positions,
        windows=family.windows(fields, num_layers),
        rope_scaling=scaling,
        tie_embeddings=fields.boolean("tie_word_embeddings", False),
        qkv_bias=attention_bias or bool(qkv_bias),
        output_bias=attention_bias,
        mlp_bias=fields.boolean("mlp_bias", False) if family.reads_mlp_bias else False,
        qk_norm=family.qk_norm,
        experts=_experts(fields, family, num_layers),
        dtype=_dtype(fields),
        quantization=_quantization(fields),
        eos_token_ids=tuple(dict.fromkeys(eos_token_ids)),
    )


def _head_size(fields: Fields, family: ModelFamily, hidden_size: int, num_heads: int) -> int:
    head_size = fields.integer("head_dim") if fields.has("head_dim") else family.head_size
    if head_size is None:
        if hidden_size % num_heads:
            raise fields.wrong("num_attention_heads", f"{num_heads} does not divide hidden_size, {hidden_size}")
        head_size = hidden_size // num_heads
    if head_size % 2:
        raise fields.wrong("head_dim", f"{head_size} is odd: halves of a head are rotated against each other")
    return head_size


def _experts(fields: Fields, family: ModelFamily, num_layers: int) -> Experts | None:
    if family.experts is None:
        return None
    names = family.experts
    num_experts = fields.integer(*names.num_experts)
    per_token = fields.integer("num_experts_per_tok", names.per_token)
    if per_token > num_experts:
        raise fields.wrong("num_experts_per_tok", f"{per_token} is more than there are experts, {num_experts}")
    every = fields.integer("decoder_sparse_step", 1)
    dense = fields.integers("mlp_only_layers")
    return Experts(
        num_experts=num_experts,
        experts_per_token=per_token,
        intermediate_size=fields.integer(names.intermediate_size),
        renormalize=fields.boolean("norm_topk_prob", False) if names.reads_renormalize else True,
        layers=frozenset(at for at in range(num_layers) if at not in dense and (at + 1) % every == 0)
        if names.reads_layers
        else frozenset(range(num_layers)),
        shared_intermediate_size=fields.integer("shared_expert_intermediate_size") if names.has_shared else 0,
    )


def _dtype(fields: Fields) -> str:
    """The weights' dtype: `dtype`, formerly `torch_dtype`."""
    name = "dtype" if fields.has("dtype") else "torch_dtype"
    dtype = fields.text(name, "float32").removeprefix("torch.")
    if dtype not in DTYPES:
        raise fields.wrong(name, f"'{dtype}' is not supported; {', '.join(DTYPES)} are")
    return dtype


def _quantization(fields: Fields) -> QuantizationSpec | None:
    """MLX's `quantization`: {bits, group_size} and, by a module's path, others or false. mlx-lm writes it as
    `quantization_config` too, where other tools name their own formats by `quant_method`."""
    name = "quantization" if fields.has("quantization") else "quantization_config"
    if not fields.has(name):
        return None
    table = fields.table(name)
    if name == "quantization_config" and table.has("quant_method"):
        method = table.text("quant_method", "")
        raise table.wrong("quant_method", f"'{method}' is not supported; dense weights and MLX's affine ones are")
    overrides = {
        path: _bits_and_group(table.table(path)) if isinstance(value, dict) else None
        for path, value in table.values.items()
        if isinstance(value, dict) or value is False
    }
    bits, group_size = _bits_and_group(table)
    return QuantizationSpec(bits, group_size, overrides)


def _bits_and_group(table: Fields) -> tuple[int, int]:
    if (mode := table.text("mode", "affine")) != "affine":
        raise table.wrong("mode", f"'{mode}' is not supported; affine is")
    bits, group_size = table.integer("bits", 4), table.integer("group_size", 64)
    if bits not in (2, 3, 4, 5, 6, 8):
        raise table.wrong("bits", f"{bits} is not supported; 2, 3, 4, 5, 6 and 8 are")
    if group_size not in (32, 64, 128):
        raise table.wrong("group_size", f"{group_size} is not supported; 32, 64 and 128 are")
    return bits, group_size


def _token_ids(fields: Fields, name: str) -> list[int]:
    """One id, a list of ids, or none."""
    value: Any = fields.values.get(name)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in ids):
        raise fields.wrong(name, f"{value!r} is no token id and no list of them")
    return ids


KINDS = ("default", "linear", "llama3", "yarn")


def read_rope(fields: Fields, default_theta: float, max_positions: int) -> tuple[float, RopeScaling | None, int]:
    """The base, its scaling, and the number of positions: `max_position_embeddings`, or the factor times
    `original_max_position_embeddings` where that is given and larger (Qwen2.5's long contexts).

    Raises: EngineError for an unknown kind, one that differs by layer, and invalid sizes.
    """
    names = [name for name in ("rope_scaling", "rope_parameters") if fields.has(name)]
    if not names:
        return fields.number("rope_theta", default_theta), None, max_positions
    rope = fields.table(names[0])
    if any(isinstance(value, dict) for value in rope.values.values()):
        raise fields.wrong(names[0], "rotations that differ by layer are not supported")
    theta = rope.number("rope_theta", fields.number("rope_theta", default_theta))
    name = "rope_type" if rope.has("rope_type") else "type"
    kind = rope.text(name, "default")
    if kind not in KINDS:
        raise rope.wrong(name, f"'{kind}' is not supported; {', '.join(KINDS)} are")
    if rope.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0)) != 1.0:
        raise rope.wrong("partial_rotary_factor", "a part of a head is not rotated by these architectures")
    if kind == "default":
        return theta, None, max_positions
    original = fields if fields.has("original_max_position_embeddings") else rope
    original_max = original.integer("original_max_position_embeddings", max_positions)
    scaling = _scaling(rope, kind, original_max, max_positions)
    if kind != "llama3" and original.has("original_max_position_embeddings"):
        max_positions = max(max_positions, int(scaling.factor * original_max))
    return theta, scaling, max_positions


def _scaling(rope: Fields, kind: str, original_max: int, max_positions: int) -> RopeScaling:
    if kind == "linear":
        return RopeScaling("linear", rope.number("factor"), original_max)
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if high <= low:
            raise rope.wrong("high_freq_factor", f"{high:g} is not above low_freq_factor, {low:g}")
        return RopeScaling("llama3", rope.number("factor"), original_max, low_freq_factor=low, high_freq_factor=high)
    factor = rope.number("factor", max_positions / original_max)
    return RopeScaling(
        "yarn",
        factor,
        original_max,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        attention_factor=_attention_factor(rope, factor),
        truncate=rope.boolean("truncate", True),
    )


def _attention_factor(rope: Fields, factor: float) -> float:
    """YaRN's: given, or by `mscale` and `mscale_all_dim` (DeepSeek), or 0.1 ln(factor) + 1."""

    def scale(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if rope.has("attention_factor"):
        return rope.number("attention_factor")
    if rope.values.get("mscale") and rope.values.get("mscale_all_dim"):
        return scale(rope.number("mscale")) / scale(rope.number("mscale_all_dim"))
    return scale(1.0)

"""The forms of config.json, and the errors for invalid ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import EngineError
from engines.paged.model.config import Experts, QuantizationSpec, RopeScaling
from engines.paged.model.config_reader import read_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}
REMOVED = object()


def config_of(tmp_path: Path, **fields: Any) -> Any:
    merged = {name: value for name, value in {**LLAMA, **fields}.items() if value is not REMOVED}
    (tmp_path / "config.json").write_text(json.dumps(merged))
    return read_config(tmp_path)


def test_a_plain_llama(tmp_path: Path):
    """Missing fields have the defaults of transformers: head size, no windows, float32, base 10000, untied."""
    config = config_of(tmp_path)
    assert (config.architecture, config.head_size, config.rotary_size) == ("LlamaForCausalLM", 16, 16)
    assert (config.windows, config.dtype, config.rope_theta, config.tie_embeddings) == ((0,) * 4, "float32", 1e4, False)
    assert config.rope_scaling is config.experts is config.quantization is None
    assert not (config.qkv_bias or config.output_bias or config.mlp_bias or config.qk_norm)
    assert config.kv_bytes_per_token == 4 * 2 * 2 * 16 * 4


SCALED = {"factor": 4.0, "original_max_position_embeddings": 1024}
SPELLINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"torch_dtype": "bfloat16"}, {"dtype": "bfloat16"}),
    ({"dtype": "float16"}, {"dtype": "float16"}),
    ({"num_key_value_heads": None}, {"num_kv_heads": 4}),
    ({"head_dim": 32}, {"head_size": 32, "rotary_size": 32}),
    ({"head_dim": None}, {"head_size": 16}),
    ({"attention_bias": True}, {"qkv_bias": True, "output_bias": True}),
    ({"mlp_bias": True}, {"mlp_bias": True}),
    ({"rope_theta": 5e5}, {"rope_theta": 5e5, "rope_scaling": None}),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, {"rope_theta": 5e5, "rope_scaling": None}),
    ({"rope_theta": 3e4, "rope_scaling": None}, {"rope_theta": 3e4, "rope_scaling": None}),
    (
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_scaling": RopeScaling("linear", 2.0, 4096), "max_positions": 4096},
    ),
    (
        {"rope_scaling": {"type": "yarn", **SCALED}},
        {"rope_scaling": RopeScaling("yarn", 4.0, 1024, attention_factor=1.1386294361119891), "max_positions": 4096},
    ),
    (
        {"rope_parameters": {"rope_type": "yarn", **SCALED, "attention_factor": 1.0}, "max_position_embeddings": 1024},
        {"rope_scaling": RopeScaling("yarn", 4.0, 1024), "max_positions": 4096},
    ),
    (
        {"rope_scaling": {"rope_type": "llama3", **SCALED, "low_freq_factor": 1.0, "high_freq_factor": 2.0}},
        {"rope_scaling": RopeScaling("llama3", 4.0, 1024, high_freq_factor=2.0), "max_positions": 4096},
    ),
    ({"eos_token_id": 7}, {"eos_token_ids": (7,)}),
    ({"eos_token_id": [7, 9]}, {"eos_token_ids": (7, 9)}),
    ({"architectures": REMOVED, "model_type": "qwen3"}, {"architecture": "Qwen3ForCausalLM", "head_size": 128}),
    ({"architectures": ["Qwen2ForCausalLM"]}, {"qkv_bias": True, "output_bias": False, "windows": (0,) * 4}),
    (
        {
            "architectures": ["Qwen2ForCausalLM"],
            "use_sliding_window": True,
            "sliding_window": 8,
            "max_window_layers": 3,
        },
        {"windows": (0, 0, 0, 8)},
    ),
    (
        {"architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True, "sliding_window": 8}
        | {"layer_types": ["sliding_attention", "full_attention"] * 2},
        {"windows": (8, 0, 8, 0), "qk_norm": True},
    ),
    ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, {"windows": (0,) * 4}),
    ({"architectures": ["MistralForCausalLM"]}, {"windows": (4096,) * 4}),
    ({"architectures": ["MistralForCausalLM"], "sliding_window": 9}, {"windows": (9,) * 4}),
    (
        {"architectures": ["MixtralForCausalLM"], "num_local_experts": 8},
        {"windows": (0,) * 4, "experts": Experts(8, 2, 96, True, frozenset(range(4))), "rope_theta": 1e6},
    ),
    (
        {"architectures": ["Qwen2MoeForCausalLM"], "num_experts": 8, "moe_intermediate_size": 24}
        | {"shared_expert_intermediate_size": 40, "mlp_only_layers": [1], "decoder_sparse_step": 1},
        {"experts": Experts(8, 4, 24, False, frozenset({0, 2, 3}), 40), "qkv_bias": True},
    ),
    (
        {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 16, "moe_intermediate_size": 24}
        | {"num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 2},
        {"experts": Experts(16, 8, 24, True, frozenset({1, 3})), "qk_norm": True},
    ),
    (
        {"quantization": {"group_size": 32, "bits": 4, "lm_head": {"group_size": 64, "bits": 8}, "model.norm": False}},
        {"quantization": QuantizationSpec(4, 32, {"lm_head": (8, 64), "model.norm": None})},
    ),
    ({"quantization_config": {"group_size": 64, "bits": 8}}, {"quantization": QuantizationSpec(8, 64, {})}),
]


@pytest.mark.parametrize("fields, expected", SPELLINGS)
def test_spellings(fields: dict[str, Any], expected: dict[str, Any], tmp_path: Path):
    """Configs of transformers 4, 5 and MLX describe the same model with different fields."""
    config = config_of(tmp_path, **fields)
    assert {name: getattr(config, name) for name in expected} == expected


def test_end_tokens_of_generation_config(tmp_path: Path):
    """The end tokens of generation_config.json come first, then those of config.json, without duplicates."""
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert config_of(tmp_path, eos_token_id=6).eos_token_ids == (5, 6)
    assert config_of(tmp_path, eos_token_id=2).eos_token_ids == (5, 6, 2)


ALL = "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, MixtralForCausalLM"
MOE = {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "moe_intermediate_size": 24}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["GemmaForCausalLM"]}, f"architectures: 'GemmaForCausalLM' is not supported; {ALL}"),
    ({"architectures": REMOVED, "model_type": "opt"}, f"model_type: 'opt' is not supported; {ALL}"),
    ({"architectures": "LlamaForCausalLM"}, "architectures: a list of texts is expected, not 'LlamaForCausalLM'"),
    ({"hidden_size": REMOVED}, "hidden_size: is missing"),
    ({"hidden_size": 0}, "hidden_size: an integer of at least 1 is expected, not 0"),
    ({"vocab_size": "many"}, "vocab_size: an integer of at least 1 is expected, not 'many'"),
    ({"num_hidden_layers": True}, "num_hidden_layers: an integer of at least 1 is expected, not True"),
    ({"num_attention_heads": 6, "num_key_value_heads": 6}, "num_attention_heads: 6 does not divide hidden_size, 64"),
    ({"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide num_attention_heads, 4"),
    ({"head_dim": 15}, "head_dim: 15 is odd"),
    ({"hidden_act": "gelu"}, "hidden_act: 'gelu' is not supported; silu is"),
    ({"rms_norm_eps": -1}, "rms_norm_eps: a number above 0 is expected, not -1"),
    ({"dtype": "float8_e4m3fn"}, "dtype: 'float8_e4m3fn' is not supported; float32, float16, bfloat16 are"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: true or false is expected, not 'yes'"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.type: 'dynamic' is not supported; default,"),
    ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters.rope_type: 'longrope' is not supported"),
    ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor: is missing"),
    ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "rope_scaling.low_freq_factor: is missing"),
    (
        {"rope_scaling": {"type": "llama3", **SCALED, "low_freq_factor": 4.0, "high_freq_factor": 4.0}},
        "rope_scaling.high_freq_factor: 4 is not above low_freq_factor, 4",
    ),
    ({"rope_scaling": "linear"}, "rope_scaling: an object is expected, not 'linear'"),
    ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters: rotations that differ"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ({"quantization_config": {"quant_method": "awq"}}, "quantization_config.quant_method: 'awq' is not supported"),
    ({"quantization": {"bits": 7, "group_size": 64}}, "quantization.bits: 7 is not supported"),
    ({"quantization": {"bits": 4, "group_size": 16}}, "quantization.group_size: 16 is not supported"),
    ({"quantization": {"bits": 4, "mode": "mxfp4"}}, "quantization.mode: 'mxfp4' is not supported; affine is"),
    ({"quantization": {"bits": 4, "lm_head": {"bits": 1}}}, "quantization.lm_head.bits: 1 is not supported"),
    ({"eos_token_id": "</s>"}, "eos_token_id: '</s>' is no token id and no list of them"),
    ({**MOE, "num_experts_per_tok": 5}, "num_experts_per_tok: 5 is more than there are experts, 4"),
    ({**MOE, "moe_intermediate_size": None, "num_experts_per_tok": 2}, "moe_intermediate_size: is missing"),
    (
        {"architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True, "layer_types": ["full_attention"]},
        "layer_types: 4 of sliding_attention, full_attention are expected, not ['full_attention']",
    ),
]


@pytest.mark.parametrize("fields, problem", WRONG)
def test_wrong_fields(fields: dict[str, Any], problem: str, tmp_path: Path):
    """An error names the file, the field and the remedy."""
    with pytest.raises(EngineError) as caught:
        config_of(tmp_path, **fields)
    assert caught.value.message.startswith(f"{tmp_path / 'config.json'}: ")
    assert problem in caught.value.message


@pytest.mark.parametrize("content, problem", [
    (None, "is not there: a model is a folder with config.json and safetensors files"),
    ("{", "Expecting property name"),
    ("[]", "an object is expected, not list"),
])  # fmt: skip
def test_no_config(content: str | None, problem: str, tmp_path: Path):
    """A folder without a readable config is refused."""
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(EngineError, match=problem):
        read_config(tmp_path)

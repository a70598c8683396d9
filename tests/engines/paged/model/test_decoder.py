"""The decoder against transformers, on tiny random models of every family."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engines.paged.model.config_reader import read_config
from engines.paged.model.decoder import Decoder
from engines.paged.model.rope import rope_tables
from engines.paged.ops.reference import Ops
from engines.paged.weights.loader import load_model
from tests.engines.paged.support.paging import Pages
from tests.engines.paged.support.tiny_models import FAMILIES, VOCAB_SIZE, tiny_model, transformers_model

# Relative to the largest logit. Float32 keeps 1e-7; the sums of a layer have another order than in transformers.
TOLERANCE = 1e-5

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 7}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in FAMILIES},
    "llama, all biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, one key-value head": ("llama", {"num_key_value_heads": 1}),
    "llama, a head size of its own": ("llama", {"head_dim": 40}),
    "llama, linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}),
    "llama 3.1": ("llama", {"rope_parameters": LLAMA3}),
    "qwen2, yarn": ("qwen2", {"rope_parameters": YARN, "tie_word_embeddings": True}),
    "yarn with an attention factor": ("llama", {"rope_parameters": {**YARN, "attention_factor": 1.3, "beta_fast": 20}}),
    "yarn with mscale": ("llama", {"rope_parameters": {**YARN, "mscale": 1.2, "mscale_all_dim": 0.7}}),
    "yarn, not truncated": ("llama", {"rope_parameters": {**YARN, "truncate": False}}),
    "mistral, a window": ("mistral", {"sliding_window": 9}),
    "mixtral, a window": ("mixtral", {"sliding_window": 9}),
    "qwen2, a window from layer 1": ("qwen2", {**QWEN_WINDOW, "max_window_layers": 1}),
    "qwen3, a window by layer": (
        "qwen3",
        {**QWEN_WINDOW, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "qwen2_moe, a window": ("qwen2_moe", {**QWEN_WINDOW, "max_window_layers": 3}),
    "qwen3_moe, a window": ("qwen3_moe", QWEN_WINDOW),
    "qwen3, biases": ("qwen3", {"attention_bias": True}),
    "qwen3_moe, every other layer": ("qwen3_moe", {"decoder_sparse_step": 2, "norm_topk_prob": False}),
    "qwen2_moe, renormalised, without biases": ("qwen2_moe", {"norm_topk_prob": True, "qkv_bias": False}),
}
LENGTHS = {"a": 1, "b": 23, "c": 40, "d": 8, "e": 61}


def texts(lengths: dict[str, int]) -> dict[str, list[int]]:
    rng = random.Random(7)
    return {name: [rng.randrange(VOCAB_SIZE) for _ in range(length + 12)] for name, length in lengths.items()}


@cache
def decoder_of(folder: Path) -> Decoder:
    return load_model(folder, Ops("cpu")).decoder


@torch.inference_mode()
def expected_logits(folder: Path, tokens: Sequence[int], **options: Any) -> Tensor:
    model = transformers_model(folder, **options)
    logits: Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


def assert_close(seen: Tensor, expected: Tensor) -> None:
    assert float((seen - expected).abs().max()) <= TOLERANCE * float(expected.abs().max())


@torch.inference_mode()
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_those_of_transformers(variant: str):
    """Sequences of different lengths in one batch, prefilled whole or in chunks and then decoded token by token, have
    the logits that transformers computes for each alone."""
    family, fields = VARIANTS[variant]
    folder = tiny_model(family, **fields)
    model = transformers_model(folder)
    tokens = texts(LENGTHS)
    expected = {name: model(torch.tensor([text])).logits[0] for name, text in tokens.items()}
    pages = Pages(decoder_of(folder))
    done = dict.fromkeys(tokens, 0)

    def step(rows: dict[str, int]) -> None:
        given = {name: tokens[name][done[name] : done[name] + count] for name, count in rows.items()}
        for name, logits in pages.step(given).items():
            assert_close(logits, expected[name][done[name] : done[name] + rows[name]])
            done[name] += rows[name]

    step({"a": 1, "b": 23, "c": 17})  # whole prompts and a chunk
    step({"a": 1, "b": 1, "c": 23, "d": 5, "e": 3})  # decodes beside chunks
    step({"a": 1, "b": 1, "c": 1, "d": 1, "e": 58})
    for _ in range(8):
        step(dict.fromkeys(tokens, 1))


@torch.inference_mode()
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_moe"])
def test_16_bit_logits_are_near(family: str, dtype: str):
    """In 16 bits the logits are about as close to float32's as transformers' own in 16 bits."""
    folder = tiny_model(family)
    tokens = texts({"b": 100})["b"]
    exact = expected_logits(folder, tokens)
    theirs = expected_logits(folder, tokens, dtype=getattr(torch, dtype)).float()
    loaded = load_model(folder, Ops("cpu"), dtype=dtype)
    assert loaded.config.dtype == dtype
    seen = Pages(loaded.decoder).step({"b": tokens})["b"]
    assert seen.dtype == torch.float32
    assert float((seen - exact).norm()) < 1.25 * float((theirs - exact).norm())


@pytest.mark.parametrize("variant", ["llama", "llama, linear", "llama 3.1", "qwen2, yarn", "yarn with mscale"])
def test_rotations_are_those_of_transformers(variant: str):
    """cos and sin of every position are bit-identical to those of transformers."""
    family, fields = VARIANTS[variant]
    folder = tiny_model(family, **fields)
    cos, sin = rope_tables(read_config(folder), 300)
    expected_cos, expected_sin = transformers_model(folder).model.rotary_emb(cos, torch.arange(300)[None])
    assert torch.equal(torch.cat((cos, cos), -1), expected_cos[0])
    assert torch.equal(torch.cat((sin, sin), -1), expected_sin[0])


def test_num_positions_bounds_the_tables():
    """The rotation tables cover the requested number of positions, by default the config's maximum."""
    folder = tiny_model("llama")
    assert load_model(folder, Ops("cpu"), num_positions=50).decoder.num_positions == 50
    assert decoder_of(folder).num_positions == 2048

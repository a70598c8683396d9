"""The bytes that a step reads from memory."""

from dataclasses import replace

import pytest

from engines.paged.bench.figures import cache_bytes_per_step, weight_bytes_per_step
from engines.paged.model.config import DecoderConfig, Experts, QuantizationSpec

LLAMA = DecoderConfig(
    architecture="LlamaForCausalLM",
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_size=16,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    rotary_size=16,
    max_positions=512,
    windows=(0, 0),
    dtype="bfloat16",
)
# Queries and outputs 64 x 64 each, keys and values 64 x 32 each, an MLP of 3 x 64 x 128; and the head.
ATTENTION, MLP, HEAD = 2 * 64 * 64 + 2 * 64 * 32, 3 * 64 * 128, 1000 * 64
ELEMENTS = 2 * (ATTENTION + MLP) + HEAD


def test_dense_weights_are_read_once() -> None:
    """A step reads every layer and the head once for any number of sequences, and does not read the whole embedding
    table."""
    assert weight_bytes_per_step(LLAMA, 1) == ELEMENTS * 2
    assert weight_bytes_per_step(LLAMA, 32) == ELEMENTS * 2
    assert weight_bytes_per_step(replace(LLAMA, dtype="float32"), 1) == ELEMENTS * 4


@pytest.mark.parametrize("name, bits", [("int8", 8), ("int4", 4)])
def test_packed_weights_have_scales(name: str, bits: int) -> None:
    """Each group of packed weights has a scale and a bias, whichever tool packed them."""
    right = ELEMENTS * (bits / 8 + 4 / 32)
    assert weight_bytes_per_step(LLAMA, 1, name, 32) == right
    assert weight_bytes_per_step(replace(LLAMA, quantization=QuantizationSpec(bits, 32)), 1) == right


def test_a_mixture_reads_the_experts_that_are_chosen() -> None:
    """One token reads its own experts, several tokens read the union of theirs, many tokens read all experts."""
    experts = Experts(8, 2, 32, True, frozenset({1}), shared_intermediate_size=16)
    mixture = replace(LLAMA, experts=experts)
    always = 2 * ATTENTION + MLP + HEAD + 3 * 64 * 16 + 64 * 8
    one_expert = 3 * 64 * 32
    assert weight_bytes_per_step(mixture, 1) == pytest.approx(2 * (always + 2 * one_expert))
    assert weight_bytes_per_step(mixture, 2) == pytest.approx(2 * (always + 3.5 * one_expert))
    assert weight_bytes_per_step(mixture, 1000) == pytest.approx(2 * (always + 8 * one_expert))


def test_each_sequence_reads_its_own_keys_and_values() -> None:
    """Each sequence reads the keys and values of its context in two layers, and no more than the window in a layer that
    has one."""
    per_token = 2 * 2 * 16 * 2
    assert cache_bytes_per_step(LLAMA, 3, 100) == 3 * 2 * 100 * per_token
    assert cache_bytes_per_step(replace(LLAMA, windows=(0, 30)), 3, 100) == 3 * 130 * per_token

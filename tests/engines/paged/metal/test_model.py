"""Whole models with Metal's kernels yield the tokens of plain torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from engines.paged.model.decoder import Decoder
from engines.paged.ops.reference import Ops
from engines.paged.weights.loader import load_model
from tests.engines.paged.metal.conftest import MakeOps
from tests.engines.paged.metal.test_sampling import batch, on
from tests.engines.paged.support.paging import Pages
from tests.engines.paged.support.tiny_models import VOCAB_SIZE, tiny_model

STEPS = 10
# Prompts of one row, of a tile with a tail, and of more than one tile.
PROMPTS = {"a": [5], "b": list(range(40, 63)), "c": [(7 * i) % VOCAB_SIZE for i in range(50)]}


def generate(decoder: Decoder, ops: Ops) -> Iterator[list[int]]:
    """Tokens of three sequences, step by step: prompts together, then one row each. One is greedy, one samples from all
    tokens, one uses top-k and top-p."""
    pages = Pages(decoder)
    tokens = PROMPTS
    for step in range(STEPS):
        last = pages.step(tokens)
        logits = torch.stack([last[name][-1] for name in PROMPTS])
        request = batch(3, temperature=[0.0, 0.7, 1.0], top_k=[0, 0, 20], top_p=[1.0, 1.0, 0.9], positions=[step] * 3)
        drawn = ops.sample(logits, on(ops.device, request))[0].tolist()
        yield drawn
        tokens = {name: [token] for name, token in zip(PROMPTS, drawn, strict=True)}


@torch.inference_mode()
@pytest.mark.parametrize("quantize", [None, "int4"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "mixtral", "qwen2_moe"])
def test_models_generate_the_same_tokens(metal_ops: MakeOps, family: str, quantize: str | None) -> None:
    """A batch of three sequences, prefilled and decoded by Metal's kernels, yields the tokens of plain torch, greedy
    and sampled, with dense and with 4-bit weights."""
    folder = tiny_model(family)
    ops, reference = metal_ops(), Ops("cpu")
    made = load_model(folder, ops, quantize=quantize, quantize_group=32).decoder
    expected = load_model(folder, reference, quantize=quantize, quantize_group=32).decoder
    assert list(generate(made, ops)) == list(generate(expected, reference))


@torch.inference_mode()
@pytest.mark.parametrize(
    "family, dtype, quantize",
    [("qwen3", "float16", "int4"), ("llama", "bfloat16", None), ("mixtral", "float16", "int8")],
)
def test_16_bit_logits_are_as_near_as_torchs(metal_ops: MakeOps, family: str, dtype: str, quantize: str | None) -> None:
    """With 16-bit rounding after each operation, logits are as close to unrounded float32 logits as plain torch's."""
    folder = tiny_model(family)

    def logits_of(ops: Ops, dtype: str) -> Tensor:
        pages = Pages(load_model(folder, ops, dtype=dtype, quantize=quantize, quantize_group=32).decoder)
        prefilled = pages.step(PROMPTS)
        decoded = pages.step({name: [9] for name in PROMPTS})
        return torch.cat([each[name].cpu() for each in (prefilled, decoded) for name in PROMPTS])

    exact = logits_of(Ops("cpu"), "float32")
    theirs = (logits_of(Ops("cpu"), dtype) - exact).square().mean()
    ours = (logits_of(metal_ops(), dtype) - exact).square().mean()
    assert ours < 1.3 * theirs


@torch.inference_mode()
def test_a_decoded_row_takes_eight_kernels_a_layer(metal_ops: MakeOps) -> None:
    """Decoding runs 8 kernels per layer, 10 with a mixture of experts, and 3 for the whole model: their number limits a
    small model's speed."""
    for family, per_layer in (("llama", 8), ("qwen3", 8), ("mixtral", 10)):
        ops = metal_ops()
        pages = Pages(load_model(tiny_model(family), ops).decoder)
        pages.step(PROMPTS)
        before = ops.kernels.dispatches.total()
        pages.step({name: [9] for name in PROMPTS})
        layers = pages.decoder.config.num_layers
        assert ops.kernels.dispatches.total() - before == per_layer * layers + 3


@torch.inference_mode()
@pytest.mark.parametrize("family", ["qwen3", "mixtral"])
def test_deterministic_logits_do_not_depend_on_the_batch(metal_ops: MakeOps, family: str) -> None:
    """In deterministic mode a sequence's logits are bit-identical alone and beside others, prefilled at once or in
    chunks."""
    ops = metal_ops(is_deterministic=True)
    decoder = load_model(tiny_model(family), ops, dtype="float16", quantize="int4", quantize_group=32).decoder
    alone, beside = Pages(decoder), Pages(decoder, seed=1)
    whole = alone.step({"b": PROMPTS["b"]})["b"]
    chunk = beside.step({"b": PROMPTS["b"][:9], "c": PROMPTS["c"]})["b"]
    rest = beside.step({"b": PROMPTS["b"][9:], "a": PROMPTS["a"]})["b"]
    assert torch.equal(whole, torch.cat([chunk, rest]))
    together = beside.step({"a": [9], "b": [9], "c": [9]})["b"]
    assert torch.equal(alone.step({"b": [9]})["b"], together)

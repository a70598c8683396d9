"""Sampling on the device chooses the tokens that plain torch chooses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engines.paged.ops.interface import SamplingBatch
from engines.paged.ops.metal import MetalOps
from engines.paged.ops.metal.kernels import source
from engines.paged.ops.reference.gumbel_noise import gumbel, noise_at, row_keys, squares32
from engines.paged.ops.reference.sampling import sample
from tests.engines.paged.metal.conftest import MakeOps

# One token, about a simdgroup's, about a threadgroup's, no multiple of any of these.
VOCABULARIES = [1, 31, 33, 1024, 3001]


def batch(rows: int, **fields: Any) -> SamplingBatch:
    """Rows that sample from all tokens at temperature 1, each with its own seed; a field is one value for all rows or a
    list."""
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seeds": list(range(rows)), "positions": 7}
    types = {"top_k": torch.int32, "seeds": torch.int64, "positions": torch.int64}
    values = {
        name: torch.tensor(value if isinstance(value, list) else [value] * rows, dtype=types.get(name, torch.float32))
        if not isinstance(value, Tensor | bool)
        else value
        for name, value in {**defaults, **fields}.items()
    }
    return SamplingBatch(**values)  # type: ignore[arg-type]


def on(device: torch.device, sampling: SamplingBatch) -> SamplingBatch:
    values = {name: getattr(sampling, name) for name in SamplingBatch.__slots__}
    tensors = {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
    return replace(sampling, **tensors)


def run(ops: MetalOps, logits: Tensor, sampling: SamplingBatch) -> tuple[Tensor, Tensor]:
    """Sample on the device and return the result; the logits must stay unmodified."""
    given = logits.clone().to(ops.device)
    tokens, logprobs = ops.sample(given, on(ops.device, sampling))
    assert torch.equal(given.cpu().view(torch.int32), logits.view(torch.int32))
    assert tokens.dtype == torch.int32
    return tokens.cpu(), logprobs.cpu()


def assert_same(ops: MetalOps, logits: Tensor, sampling: SamplingBatch) -> None:
    tokens, logprobs = run(ops, logits, sampling)
    expected, expected_logprobs = sample(logits.clone(), sampling)
    assert tokens.tolist() == expected.tolist()
    torch.testing.assert_close(logprobs, expected_logprobs, rtol=1e-5, atol=1e-5)


def some_logits(rows: int, vocabulary: int, has_ties: bool) -> Tensor:
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * 4
    return logits.round() if has_ties else logits


@pytest.mark.usefixtures("lanes")
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("has_ties", [False, True])
def test_filters_leave_the_same_tokens(metal_ops: MakeOps, vocabulary: int, has_ties: bool) -> None:
    """Rows of all kinds in one batch get the tokens of plain torch: greedy, top-k, top-p, min-p, and all of them."""
    kinds: list[tuple[float, int, float, float]] = [
        (0.0, 5, 0.5, 0.5), (1.0, 0, 1.0, 0.0), (0.7, 1, 1.0, 0.0), (2.0, 20, 1.0, 0.0),
        (1.0, vocabulary - 1, 1.0, 0.0), (1.0, vocabulary, 1.0, 0.0), (1.0, 10**6, 1.0, 0.0),
        (1.0, 0, 0.9, 0.0), (3.0, 0, 0.999, 0.0), (1.0, 0, 0.0, 0.0), (1.0, 0, 0.3, 0.0), (1.0, 0, 1.0, 0.02),
        (1.0, 0, 1.0, 1.0), (1.5, 40, 0.8, 0.01), (2.0, 3, 0.6, 0.3), (1e-9, 9, 0.9, 0.1),
    ]  # fmt: skip
    temperature, top_k, top_p, min_p = (list(each) for each in zip(*kinds * 2, strict=True))
    sampling = batch(
        len(temperature), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        seeds=[seed * 2**58 - 2**62 for seed in range(len(temperature))], positions=list(range(len(temperature))),
    )  # fmt: skip
    assert_same(metal_ops(), some_logits(len(temperature), vocabulary, has_ties), sampling)


@pytest.mark.usefixtures("lanes")
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("kind", ["greedy", "unfiltered", "filtered"])
def test_adjustments_of_logits(metal_ops: MakeOps, vocabulary: int, kind: str) -> None:
    """A grammar's mask, penalties and bias, one by one and together, have the effect that they have in plain torch; the
    log probability stays the model's."""
    rows, generator = 12, torch.Generator().manual_seed(vocabulary)
    logits = some_logits(rows, vocabulary, has_ties=False)
    words = torch.randint(-(2**31), 2**31 - 1, (rows, -(-vocabulary // 32)), generator=generator, dtype=torch.int32)
    words[:, 0] |= 1
    words[1] = -1
    seen = {
        "seen_in_prompt": torch.rand(rows, vocabulary, generator=generator) < 0.3,
        "output_counts": torch.randint(0, 3, (rows, vocabulary), generator=generator, dtype=torch.int32),
    }
    request: list[dict[str, Tensor]] = [
        {"allowed": words},
        {"repetition": torch.linspace(0.5, 2, rows), **seen},
        {"presence": torch.linspace(-2, 2, rows), **seen},
        {"frequency": torch.linspace(-2, 2, rows), **seen},
        {
            "bias_rows": torch.tensor([0, 0, 3, 11, 0]),
            "bias_ids": torch.tensor([0, vocabulary - 1, vocabulary // 2, 0, 0]),
            "bias_values": torch.tensor([4.0, 100.0, -torch.inf, 5.0, -torch.inf]),
        },
    ]
    request.append({name: tensor for each in request for name, tensor in each.items()})
    draws: dict[str, dict[str, Any]] = {
        "greedy": {"temperature": 0.0, "is_greedy": True},
        "unfiltered": {"temperature": [0.0, 0.5, 1.0, 2.0] * 3, "is_unfiltered": True},
        "filtered": {"temperature": [0.0, 0.5, 1.0, 2.0] * 3, "top_k": [0, 0, 7] * 4, "top_p": 0.9},
    }
    ops = metal_ops()
    for fields in request:
        assert_same(ops, logits, batch(rows, **draws[kind], **fields))


@pytest.mark.usefixtures("lanes")
def test_lowest_id_of_equals(metal_ops: MakeOps) -> None:
    """Among equal logits the lowest id is chosen, wherever the others are; 0 and -0 are equal."""
    logits = torch.full((4, 3000), -1.0)
    logits[0, [7, 1031, 2055]] = 5.0  # of one thread
    logits[1, [40, 39, 1023]] = 5.0  # of neighbours, and of the last simdgroup
    logits[2, 1000], logits[2, 2000] = -0.0, 0.0
    logits[3, 1000], logits[3, 2000] = 0.0, -0.0
    for fields in ({"is_greedy": True, "temperature": 0.0}, {"top_k": 1}):
        tokens, _ = run(metal_ops(), logits, batch(4, **fields))
        assert tokens.tolist() == [7, 39, 1000, 1000]


def test_a_large_vocabulary(metal_ops: MakeOps) -> None:
    """A row of a hundred thousand tokens gets the token of plain torch, filtered or not."""
    logits = some_logits(3, 100_003, has_ties=False)
    ops = metal_ops()
    assert_same(ops, logits, batch(3, temperature=[0.8, 1.0, 1.3], top_k=[50, 0, 0], top_p=[1.0, 0.95, 0.9]))
    assert_same(ops, logits, batch(3, is_unfiltered=True))


@pytest.mark.parametrize("needs_logprobs", [True, False])
def test_rows_that_are_no_numbers(metal_ops: MakeOps, needs_logprobs: bool) -> None:
    """Any logits yield a valid token. NaN of any sign, masked or not, shows in the log probability, even where none was
    requested."""
    logits = torch.zeros(6, 40)
    logits[0] = -torch.inf
    logits[1, 3] = torch.inf
    logits[2, 39] = torch.nan
    logits.view(torch.int32)[3, 39] = -1  # NaN with a sign, as an x86 CPU makes it
    logits[4] = torch.nan
    draws: list[dict[str, Any]] = [
        {"top_k": 3, "top_p": 0.5},
        {"is_unfiltered": True},
        {"temperature": 0.0, "is_greedy": True},
        {"top_k": 3, "allowed": torch.full((6, 2), 2**31 - 1, dtype=torch.int32)},
        {"is_greedy": True, "allowed": torch.full((6, 2), 8, dtype=torch.int32)},
    ]
    for fields in draws:
        tokens, logprobs = run(metal_ops(), logits, replace(batch(6, **fields), needs_logprobs=needs_logprobs))
        assert ((tokens >= 0) & (tokens < 40)).all()
        assert tokens[1] == 3
        assert logprobs.isnan().tolist()[2:] == [True, True, True, False]


def test_log_probabilities_only_where_requested(metal_ops: MakeOps) -> None:
    """A batch without log probabilities gets zeros for them, and the same tokens."""
    ops, logits = metal_ops(), some_logits(3, 100, has_ties=False)
    tokens, logprobs = run(ops, logits, batch(3))
    without, zeros = run(ops, logits, replace(batch(3), needs_logprobs=False))
    assert torch.equal(tokens, without)
    assert zeros.tolist() == [0, 0, 0]
    torch.testing.assert_close(logprobs, logits.log_softmax(1).gather(1, tokens.long()[:, None])[:, 0])


@pytest.mark.parametrize(
    "fields, kernels",
    [
        ({"temperature": 0.0, "is_greedy": True}, {"sample": 1}),
        ({"is_unfiltered": True}, {"adjust": 1, "sample": 1}),
        ({"top_k": 5}, {"adjust": 1, "sample": 1}),
        ({"is_greedy": True, "allowed": torch.ones(1, 1, dtype=torch.int32)}, {"adjust": 1, "sample": 1}),
        (
            {"bias_rows": torch.tensor([0]), "bias_ids": torch.tensor([3]), "bias_values": torch.tensor([1.0])},
            {"adjust": 2, "add_bias": 1, "sample": 1},
        ),
    ],
)
def test_how_many_kernels_a_draw_takes(metal_ops: MakeOps, fields: dict[str, Any], kernels: dict[str, int]) -> None:
    """Greedy rows take one kernel, most others two."""
    ops = metal_ops()
    run(ops, torch.zeros(1, 8), batch(1, **fields))
    assert ops.kernels.dispatches == kernels


# Kernels that expose internal functions of the others.
SHOW_NOISE = """
kernel void show_noise(device uint *bits [[buffer(0)]], device float *noise [[buffer(1)]],
                       device const ulong *seeds [[buffer(2)]], device const ulong *positions [[buffer(3)]],
                       device const int *ids [[buffer(4)]], constant uint &count [[buffer(5)]],
                       uint at [[thread_position_in_grid]]) {
  if (at >= count) return;
  const ulong key = row_key(seeds[at], positions[at]);
  bits[at] = squares32(ulong(ids[at]) + 1, key);
  noise[at] = noise_of(uint(ids[at]), key);
}
kernel void show_gumbel(device float *noise [[buffer(0)]], device const uint *bits [[buffer(1)]],
                        uint at [[thread_position_in_grid]]) {
  noise[at] = gumbel(bits[at]);
}
"""


def test_noise_is_the_same_everywhere(metal_ops: MakeOps) -> None:
    """The integers are bit-identical to those of sampling/gumbel_noise.py for any seed, position and id; the floats
    differ by a few units in the last place at most, also at both ends of the 32-bit range."""
    ops, count = metal_ops(), 500
    library = ops.kernels._compile(source("sample", {}) + SHOW_NOISE)
    generator = torch.Generator().manual_seed(0)
    seeds = torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator)
    seeds[:3] = torch.tensor([0, -1, 2**63 - 1])
    positions = torch.randint(0, 2**40, (count,), generator=generator)
    positions[3:5] = 0
    ids = torch.randint(0, 2**31 - 1, (count,), generator=generator, dtype=torch.int32)
    ids[5:300] = torch.arange(295)
    bits = torch.zeros(count, dtype=torch.int32, device=ops.device)
    noise = torch.zeros(count, device=ops.device)
    on_device = (each.to(ops.device) for each in (seeds, positions, ids))
    library.show_noise(bits, noise, *on_device, count, threads=(count,), group_size=(32,))
    keys = row_keys(seeds, positions)
    assert torch.equal(bits.cpu().long() & 0xFFFFFFFF, squares32(ids.long() + 1, keys))
    torch.testing.assert_close(noise.cpu(), noise_at(keys, ids.long()), rtol=2e-6, atol=2e-7)

    ends = torch.tensor([0, 1, 2, 255, 256, 2**31 - 1, 2**31, 2**32 - 257, 2**32 - 2, 2**32 - 1])
    words = (ends - (ends >= 2**31) * 2**32).to(torch.int32).to(ops.device)
    found = torch.zeros(len(ends), device=ops.device)
    library.show_gumbel(found, words, threads=(len(ends),), group_size=(1,))
    torch.testing.assert_close(found.cpu(), gumbel(ends), rtol=2e-6, atol=2e-7)

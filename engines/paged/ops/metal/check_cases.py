"""The cases of the startup check: small inputs for every path of every kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engines.paged.ops.interface import Batch, Dense, LayerCache, Quantized, SamplingBatch, Weight
from engines.paged.ops.packing import pack
from engines.paged.ops.reference import Ops

# Methods replaced together, as one prepares what another computes with. The two groups of attention share a method: the
# step's sequences decide (self_check.ComposedOps).
GROUPS: dict[str, tuple[str, ...]] = {
    "embed": ("prepare_embedding", "embed"),
    "add_rmsnorm": ("add_rmsnorm",),
    "linear": ("prepare_linear", "linear"),
    "gate_up": ("prepare_gate_up", "gate_up"),
    "moe": ("prepare_experts", "moe"),
    "rope_write": ("rope_write",),
    "attention_decode": ("attention",),
    "attention_prefill": ("attention",),
    "sample": ("sample",),
    "copy_blocks": ("copy_blocks",),
    "pack_blocks": ("pack_blocks", "unpack_blocks"),
    "replay": ("replay",),
}


class RandomNumbers:
    """Random numbers, generated on the CPU, and so the same on every device."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int = 0) -> None:
        self.device, self.dtype = device, dtype
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *size: int, scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
        numbers = torch.randn(size, generator=self._generator) * scale
        return numbers.to(self.dtype if dtype is None else dtype).to(self.device)

    def ints(self, low: int, high: int, *size: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.randint(low, high, size, generator=self._generator, dtype=dtype).to(self.device)

    def matrix(self, rows: int, width: int, bits: int, group_size: int = 64) -> Weight:
        """Dense for 0 bits."""
        if not bits:
            return Dense(self.normal(rows, width, scale=width**-0.5))
        packed = pack(self.ints(0, 2**bits, rows, width, dtype=torch.int64).cpu(), bits).to(self.device)
        scales = self.normal(rows, width // group_size, scale=width**-0.5 / 2**bits)
        return Quantized(packed, scales, self.normal(rows, width // group_size, scale=0.02), bits, group_size)


@dataclass(frozen=True, slots=True)
class Case:
    """`make` computes results, from numbers that are the same on each device."""

    group: str
    name: str
    dtype: torch.dtype
    make: Callable[..., Sequence[Tensor]]
    arguments: tuple[Any, ...] = ()
    is_exact: bool = False

    def compute(self, ops: Ops) -> Sequence[Tensor]:
        return self.make(RandomNumbers(ops.device, self.dtype), ops, *self.arguments)


# (group, name, (rows, context) of each sequence, window, is_reproducible: all rows go to the prompts' kernel)
STEPS = (
    ("attention_decode", "new tokens", ((1, 40), (1, 1), (1, 17)), 0, False),
    ("attention_decode", "a long context", ((1, 600),), 0, False),
    ("attention_decode", "a window", ((1, 60), (3, 70)), 24, False),
    ("attention_prefill", "a prompt", ((37, 50), (20, 20)), 0, False),
    ("attention_prefill", "a prompt with a window", ((20, 70), (33, 33)), 24, False),
    ("attention_prefill", "a reproducible step", ((1, 40), (20, 20)), 0, True),
)


def cases(dtype: torch.dtype) -> Iterator[Case]:
    """All cases, for weights and rows of `dtype`."""
    for bits in (0, 4, 8):
        yield Case("embed", f"{bits} bits", dtype, _embed, (bits,))
        for rows in (1, 3, 8, 40):
            yield Case("linear", f"{bits} bits, {rows} rows", dtype, _linear, (bits, rows))
            yield Case("gate_up", f"{bits} bits, {rows} rows", dtype, _gate_up, (bits, rows))
        for rows in (1, 70):
            yield Case("moe", f"{bits} bits, {rows} rows", dtype, _moe, (bits, rows))
    yield Case("add_rmsnorm", "two rows", dtype, _add_rmsnorm)
    yield Case("rope_write", "without norms", dtype, _rope_write, (False,))
    yield Case("rope_write", "with norms", dtype, _rope_write, (True,))
    for group, name, *step in STEPS:
        yield Case(group, name, dtype, _attention, tuple(step))
    yield Case("sample", "greedy", dtype, _sample, (0.0,), is_exact=True)
    yield Case("sample", "drawn", dtype, _sample, (0.8,), is_exact=True)
    yield Case("copy_blocks", "two", dtype, _copy_blocks, is_exact=True)
    yield Case("pack_blocks", "there and back", dtype, _pack_blocks, is_exact=True)
    yield Case("replay", "three steps", dtype, _replay)


def _embed(numbers: RandomNumbers, ops: Ops, bits: int) -> Sequence[Tensor]:
    embedding = ops.prepare_embedding(numbers.matrix(50, 128, bits))
    last_tokens = numbers.ints(0, 50, 4)
    return [ops.embed(numbers.ints(-4, 50, 12), embedding, last_tokens)]


def _linear(numbers: RandomNumbers, ops: Ops, bits: int, rows: int) -> Sequence[Tensor]:
    weight, bias, x = numbers.matrix(72, 192, bits), numbers.normal(72), numbers.normal(rows, 192)
    return [ops.linear(x, ops.prepare_linear(weight)), ops.linear(x, ops.prepare_linear(weight, bias))]


def _gate_up(numbers: RandomNumbers, ops: Ops, bits: int, rows: int) -> Sequence[Tensor]:
    prepared = ops.prepare_gate_up(numbers.matrix(40, 192, bits), numbers.matrix(40, 192, bits))
    return [ops.gate_up(numbers.normal(rows, 192), prepared)]


def _moe(numbers: RandomNumbers, ops: Ops, bits: int, rows: int) -> Sequence[Tensor]:
    gate, up = ([numbers.matrix(64, 128, bits) for _ in range(6)] for _ in range(2))
    experts = ops.prepare_experts(gate, up, [numbers.matrix(128, 64, bits) for _ in range(6)])
    return [ops.moe(numbers.normal(rows, 128), numbers.normal(rows, 6), experts, 2, True)]


def _add_rmsnorm(numbers: RandomNumbers, ops: Ops) -> Sequence[Tensor]:
    x, residual, weight = numbers.normal(2, 520), numbers.normal(2, 520), numbers.normal(520)
    return [*ops.add_rmsnorm(x, residual, weight, 1e-5), ops.add_rmsnorm(x, None, weight, 1e-5)[0]]


def _batch(sequences: Sequence[tuple[int, int]], slots: int, device: torch.device) -> Batch:
    """Of (rows, context) for each sequence; each in turn gets a block, from block 1 on."""
    widths = [-(-context // slots) for _, context in sequences]
    tables = [[0] * max(widths) for _ in sequences]
    block = 1
    for at in range(max(widths)):
        for sequence, width in enumerate(widths):
            if at < width:
                tables[sequence][at] = block
                block += 1
    places = [
        (i, context - rows + row) for i, (rows, context) in enumerate(sequences) for row in range(rows)
    ]  # (sequence, position)
    starts = [sum(rows for rows, _ in sequences[:i]) for i in range(len(sequences) + 1)]

    def ids(numbers: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=device)

    return Batch(
        tokens=ids([0] * len(places)),
        positions=ids([position for _, position in places]),
        slots=ids([tables[i][position // slots] * slots + position % slots for i, position in places]),
        row_sequences=ids([i for i, _ in places]),
        query_starts=ids(starts),
        context_lens=ids([context for _, context in sequences]),
        block_tables=ids(tables),
        query_lens_list=[rows for rows, _ in sequences],
        context_lens_list=[context for _, context in sequences],
        block_tables_list=tables,
        num_decodes=next((i for i, (rows, _) in enumerate(sequences) if rows > 1), len(sequences)),
    )


def _cache(numbers: RandomNumbers, batch: Batch, slots: int, groups: int, size: int) -> LayerCache:
    blocks = max(max(table) for table in batch.block_tables_list) + 1
    return LayerCache(numbers.normal(blocks, slots, groups, size), numbers.normal(blocks, slots, groups, size))


def _rope_write(numbers: RandomNumbers, ops: Ops, normed: bool) -> Sequence[Tensor]:
    batch = _batch(((1, 18), (3, 40)), 16, ops.device)
    cache = _cache(numbers, batch, 16, 2, 64)
    angles = numbers.normal(64, 24, dtype=torch.float32)
    norms = (numbers.normal(64), numbers.normal(64)) if normed else None
    q = ops.rope_write(numbers.normal(4, 8 * 64), cache, batch, (angles.cos(), angles.sin()), norms, 1e-6)
    return [q, cache.keys, cache.values]


def _attention(
    numbers: RandomNumbers, ops: Ops, sequences: Sequence[tuple[int, int]], window: int, is_reproducible: bool
) -> Sequence[Tensor]:
    batch = _batch(sequences, 16, ops.device)
    batch.is_reproducible = is_reproducible
    cache = _cache(numbers, batch, 16, 2, 64)
    q = numbers.normal(sum(rows for rows, _ in sequences), 4, 64)
    return [ops.attention(q, cache, batch, 64**-0.5, window)]


def _sample(numbers: RandomNumbers, ops: Ops, temperature: float) -> Sequence[Tensor]:
    """Ten logits far above the rest, so that no rounding decides between two tokens."""
    logits = numbers.normal(3, 517, dtype=torch.float32)
    logits[:, ::50] += 12

    def rows(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((3,), value, dtype=dtype, device=ops.device)

    sampling = SamplingBatch(
        temperature=rows(temperature),
        top_k=rows(5, torch.int32),
        top_p=rows(0.9),
        min_p=rows(0.0),
        seeds=torch.tensor([3, 5, -7], device=ops.device),
        positions=torch.tensor([0, 9, 1 << 20], device=ops.device),
        last_tokens=torch.zeros(5, dtype=torch.int32, device=ops.device),
        seats=torch.tensor([3, -1, 1], dtype=torch.int32, device=ops.device),
        is_greedy=temperature == 0,
    )
    tokens, _ = ops.sample(logits, sampling)
    assert sampling.last_tokens is not None
    return [tokens, sampling.last_tokens[:4]]


def _replay(numbers: RandomNumbers, ops: Ops) -> Sequence[Tensor]:
    """The beginning and end of a step, captured once and replayed for other tokens."""
    embedding = ops.prepare_embedding(numbers.matrix(50, 128, 0))
    head, norm = ops.prepare_linear(numbers.matrix(72, 128, 0)), numbers.normal(128)
    batch = _batch(((1, 18), (1, 40)), 16, ops.device)

    def compute() -> Tensor:
        x, residual = ops.add_rmsnorm(ops.embed(batch.tokens, embedding), None, norm, 1e-6)
        x, _ = ops.add_rmsnorm(x, residual, norm, 1e-6)
        return ops.linear(x, head).float()

    results = []
    for _ in range(3):
        batch.tokens.copy_(numbers.ints(0, 50, 2))
        results.append(ops.replay("check", batch, compute).clone())
    return results


def _copy_blocks(numbers: RandomNumbers, ops: Ops) -> Sequence[Tensor]:
    keys, values = numbers.normal(2, 6, 16, 2, 8), numbers.normal(2, 6, 16, 2, 8)
    ops.copy_blocks(keys, values, torch.tensor([[1, 2], [5, 3]], device=ops.device))
    return [keys, values]


def _pack_blocks(numbers: RandomNumbers, ops: Ops) -> Sequence[Tensor]:
    keys, values = numbers.normal(2, 6, 16, 2, 8), numbers.normal(2, 6, 16, 2, 8)
    packed = ops.pack_blocks(keys, values, torch.tensor([4, 1], device=ops.device))
    ops.unpack_blocks(packed, keys, values, torch.tensor([2, 5], device=ops.device))
    return [packed, keys, values]

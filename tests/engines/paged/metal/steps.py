"""Steps for kernel tests: sequences in a paged cache, and a short float64 definition of attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engines.paged.ops.interface import Batch, LayerCache


@dataclass(frozen=True)
class Step:
    """Queries [n, H, D] of a batch, with the cache that they attend to."""

    q: Tensor
    cache: LayerCache
    batch: Batch
    window: int = 0

    @property
    def scale(self) -> float:
        return float(self.q.shape[-1]) ** -0.5


def make_step(
    sequences: list[tuple[int, int]],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    size: int = 64,
    slots: int = 16,
    window: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Step:
    """Make a step from (rows, context) of each sequence. Blocks are assigned in random order, and block 0 belongs to no
    sequence. Unwritten slots of the cache hold NaN, so that a kernel that reads one is detected."""
    generator = torch.Generator().manual_seed(seed)
    widths = [-(-context // slots) for _, context in sequences]
    num_blocks = sum(widths) + 3
    order = (torch.randperm(num_blocks - 1, generator=generator) + 1).tolist()
    keys = torch.full((num_blocks, slots, kv_heads, size), float("nan"))
    values = torch.full_like(keys, float("nan"))
    tables = torch.zeros(len(sequences), max(widths) + 1, dtype=torch.int32)
    rows_of, positions, slot_ids, starts = [], [], [], [0]
    for index, (rows, context) in enumerate(sequences):
        blocks = [order.pop() for _ in range(widths[index])]
        tables[index, : len(blocks)] = torch.tensor(blocks)
        for token in range(context):
            at = blocks[token // slots], token % slots
            keys[at] = torch.randn(kv_heads, size, generator=generator)
            values[at] = torch.randn(kv_heads, size, generator=generator)
            if token >= context - rows:
                positions.append(token)
                slot_ids.append(at[0] * slots + at[1])
        rows_of += [index] * rows
        starts.append(starts[-1] + rows)
    q = torch.randn(len(rows_of), heads, size, generator=generator)

    def ids(numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=device)

    batch = Batch(
        tokens=ids([0] * len(rows_of)),
        positions=ids(positions),
        slots=ids(slot_ids),
        row_sequences=ids(rows_of),
        query_starts=ids(starts),
        context_lens=ids([context for _, context in sequences]),
        block_tables=tables.to(device),
        query_lens_list=[rows for rows, _ in sequences],
        context_lens_list=[context for _, context in sequences],
        block_tables_list=tables.tolist(),
        num_decodes=next((i for i, (rows, _) in enumerate(sequences) if rows > 1), len(sequences)),
    )
    cache = LayerCache(keys.to(device, dtype), values.to(device, dtype))
    return Step(q.to(device, dtype), cache, batch, window)


def plain_attention(step: Step) -> Tensor:
    """Softmax over the keys that each row sees, row by row and head by head, [n, H * D] in float64."""
    q, slots = step.q.cpu().double(), step.cache.keys.shape[1]
    shared = q.shape[1] // step.cache.keys.shape[2]
    keys, values = (each.cpu().double() for each in step.cache)
    out = torch.empty_like(q)
    for row, (sequence, position) in enumerate(
        zip(step.batch.row_sequences.tolist(), step.batch.positions.tolist(), strict=True)
    ):
        table = step.batch.block_tables_list[sequence]
        seen = range(max(0, position - step.window + 1) if step.window else 0, position + 1)
        at = torch.tensor([table[token // slots] * slots + token % slots for token in seen])
        for head in range(q.shape[1]):
            k = keys.flatten(0, 1)[at, head // shared]
            v = values.flatten(0, 1)[at, head // shared]
            out[row, head] = torch.softmax(k @ q[row, head] * step.scale, 0) @ v
    return out.flatten(1)


# The allowed deviation of a result of type T from float64: its rounding, and float sums before it.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def assert_close(actual: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.cpu().double(), expected.double(), rtol=tolerance, atol=tolerance)

"""Steps of a decoder without an engine: sequences in scattered blocks, and the batches that the runner would make."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engines.paged.model.decoder import Decoder
from engines.paged.ops.interface import Batch

torch.set_num_threads(1)  # tiny tensors: a second thread would only wait


def batch_of(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    tables: Sequence[Sequence[int]],
    block_size: int,
    tokens: Sequence[int] | None = None,
    adapters: Any = None,
    device: torch.device | str = "cpu",
) -> Batch:
    """A batch of sequences, given their number of rows, their number of cached tokens, and their blocks; `tokens` of
    all rows, or 0."""
    positions = [p for q, c in zip(query_lens, context_lens, strict=True) for p in range(c - q, c)]
    of_row = [s for s, q in enumerate(query_lens) for _ in range(q)]
    slots = [tables[s][p // block_size] * block_size + p % block_size for s, p in zip(of_row, positions, strict=True)]
    starts = [sum(query_lens[:at]) for at in range(len(query_lens) + 1)]
    width = max(map(len, tables))

    def int32(values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return Batch(
        tokens=int32(tokens or [0] * len(positions)),
        positions=int32(positions),
        slots=int32(slots),
        row_sequences=int32(of_row),
        query_starts=int32(starts),
        context_lens=int32(context_lens),
        block_tables=int32([[*table, *[0] * (width - len(table))] for table in tables]),
        query_lens_list=query_lens,
        context_lens_list=context_lens,
        block_tables_list=tables,
        num_decodes=sum(q == 1 for q in query_lens),
        adapters=adapters,
    )


class Pages:
    """A cache and its sequences. Blocks are assigned in random order; unwritten slots hold NaN."""

    def __init__(self, decoder: Decoder, num_blocks: int = 200, block_size: int = 8, seed: int = 0) -> None:
        config = decoder.config
        shape = config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_size
        dtype = getattr(torch, config.dtype)
        self.decoder = decoder
        self.block_size = block_size
        device = decoder.ops.device
        self.keys, self.values = (torch.full(shape, float("nan"), dtype=dtype, device=device) for _ in range(2))
        self.tables: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}
        self._free = list(range(1, num_blocks))
        random.Random(seed).shuffle(self._free)

    def step(self, rows: dict[str, Sequence[int]], adapters: Any = None) -> dict[str, Tensor]:
        """Append tokens to some sequences, in one batch: the logits after each, [tokens, V], by sequence."""
        order = sorted(rows, key=lambda name: len(rows[name]) > 1)
        for name in order:
            self.lengths[name] = self.lengths.get(name, 0) + len(rows[name])
            table = self.tables.setdefault(name, [])
            while len(table) * self.block_size < self.lengths[name]:
                table.append(self._free.pop())
        batch = batch_of(
            [len(rows[name]) for name in order],
            [self.lengths[name] for name in order],
            [self.tables[name] for name in order],
            self.block_size,
            [token for name in order for token in rows[name]],
            adapters,
            self.keys.device,
        )
        logits = self.decoder.logits(self.decoder.forward(batch, self.keys, self.values))
        return dict(zip(order, logits.split([len(rows[name]) for name in order]), strict=True))

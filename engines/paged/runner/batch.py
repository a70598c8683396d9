"""A plan as tensors: written in one buffer on the host, so that a device gets it in one transfer."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import torch
from torch import Tensor

from engines.paged.ops.contract import Batch
from engines.paged.scheduling.plan import Piece


def build_batch(pieces: Many[Piece], block_size: int, device: torch.device, last_tokens: Tensor) -> Batch:
    """The rows of these pieces, those of one row first. A token that the host does not know yet is read from
    `last_tokens` [slots] int32, where the step before has left it."""
    num_rows = sum(piece.count for piece in pieces)
    num_sequences = len(pieces)
    width = max(len(piece.sequence.blocks) for piece in pieces)
    sizes = (num_rows, num_rows, num_rows, num_rows, num_sequences + 1, num_sequences, num_sequences * width)
    buffer = np.zeros(sum(sizes), np.int32)
    parts = np.split(buffer, np.cumsum(sizes)[:-1])
    tokens, positions, slots, rows, starts, lens, flat_tables = parts
    tables = flat_tables.reshape(num_sequences, width)
    row = 0
    is_known = True
    tables_list = []
    for index, piece in enumerate(pieces):
        sequence = piece.sequence
        blocks, start, count = sequence.blocks, piece.start, piece.count
        tables[index, : len(blocks)] = blocks
        tables_list.append(blocks)
        starts[index + 1] = row + count
        lens[index] = start + count
        if count == 1:
            known = sequence.tokens
            if start < len(known):
                tokens[row] = known[start]
            else:
                tokens[row] = -1 - sequence.slot
                is_known = False
            positions[row] = start
            slots[row] = blocks[start // block_size] * block_size + start % block_size
            rows[row] = index
        else:
            end = row + count
            tokens[row:end] = (sequence.tokens[start : start + count] + list(piece.drafts))[:count]
            place = np.arange(start, start + count, dtype=np.int32)
            positions[row:end] = place
            slots[row:end] = tables[index, place // block_size] * block_size + place % block_size
            rows[row:end] = index
        row += count
    on_device = torch.from_numpy(buffer).to(device, non_blocking=True)
    split: tuple[Tensor, ...] = on_device.split(sizes)  # type: ignore[no-untyped-call]
    token_ids = split[0]
    if not is_known:
        in_flight = last_tokens[(-1 - token_ids).clamp(min=0).long()]
        token_ids = torch.where(token_ids < 0, in_flight, token_ids)
    return Batch(
        tokens=token_ids,
        positions=split[1],
        slots=split[2],
        row_sequences=split[3],
        query_starts=split[4],
        context_lens=split[5],
        block_tables=split[6].view(num_sequences, width),
        query_lens_list=[piece.count for piece in pieces],
        context_lens_list=[piece.end for piece in pieces],
        block_tables_list=tables_list,
        num_decodes=sum(piece.count == 1 for piece in pieces),
    )

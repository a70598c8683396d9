"""What is done to logits before a token is chosen: the grammar's mask, penalties, bias."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engines.paged.ops.interface import SamplingBatch


def is_adjusting(sampling: SamplingBatch) -> bool:
    return any(
        each is not None
        for each in (
            sampling.allowed,
            sampling.repetition,
            sampling.presence,
            sampling.frequency,
            sampling.bias_values,
        )
    )


def adjust_(logits: Tensor, sampling: SamplingBatch) -> Tensor:
    """Logits [m, V] in place, in the order that `Ops.sample` states. Rows whose fields ask for nothing stay as they
    are, to the bit."""
    if sampling.allowed is not None:
        _forbid_(logits, sampling.allowed)
    _penalize_(logits, sampling)
    if sampling.bias_rows is not None and sampling.bias_ids is not None and sampling.bias_values is not None:
        logits.index_put_((sampling.bias_rows, sampling.bias_ids), sampling.bias_values, accumulate=True)
    return logits


def _forbid_(logits: Tensor, allowed: Tensor) -> None:
    """Tokens whose bit is not set cannot come. allowed [m, ceil(V / 32)] int32."""
    size = logits.shape[1]
    if logits.device.type == "cpu":
        for row, words in zip(logits.numpy(), allowed.numpy(), strict=True):
            if (words != -1).any():
                bits = np.unpackbits(words.astype("<i4", copy=False).view(np.uint8), count=size, bitorder="little")
                row[bits == 0] = -np.inf
        return
    logits.masked_fill_(~unpacked(allowed, size), -torch.inf)


def unpacked(allowed: Tensor, size: int) -> Tensor:
    """[m, ceil(V / 32)] int32 -> [m, V] bool, on any device."""
    bits = torch.arange(32, dtype=torch.int32, device=allowed.device)
    return ((allowed[:, :, None] >> bits) & 1).flatten(1)[:, :size].bool()


def _penalize_(logits: Tensor, sampling: SamplingBatch) -> None:
    counts = sampling.output_counts
    if counts is None:
        return
    if sampling.repetition is not None and sampling.seen_in_prompt is not None:
        by = sampling.repetition[:, None]
        seen = sampling.seen_in_prompt | (counts > 0)
        logits.copy_(torch.where(seen, torch.where(logits > 0, logits / by, logits * by), logits))
    if sampling.frequency is not None:
        logits.sub_(sampling.frequency[:, None] * counts)
    if sampling.presence is not None:
        logits.sub_(sampling.presence[:, None] * (counts > 0))

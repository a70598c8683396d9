"""Sampling in plain torch and numpy: the definition of `Ops.sample`, for CPU and CUDA.

A row's token is a function of its logits and its own fields alone. On the processor each row is processed by its own
fields: an argmax for a greedy row, the noise of the remaining tokens for a filtered one. On other devices all rows are
processed together, and the host does not wait.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engines.paged.ops.interface import SamplingBatch
from engines.paged.ops.reference.filters import filtered_ids, keep_
from engines.paged.ops.reference.gumbel_noise import add_noise_, add_row_noise_, noise_of, row_key, row_keys

_MASK = (1 << 64) - 1
# For a smaller vocabulary one array of noise for all rows is faster than one for each.
_SMALL = 2048


def sample(logits: Tensor, sampling: SamplingBatch) -> tuple[Tensor, Tensor]:
    """See `Ops.sample`: logits [m, V] float32 -> tokens [m] int32, log probabilities [m] float32. The logits are not
    modified."""
    adjusted = adjust_(logits.clone(), sampling) if is_adjusting(sampling) else logits
    choose = _choose_by_row if logits.device.type == "cpu" else _choose_together
    tokens = choose(adjusted, sampling)
    if not sampling.needs_logprobs:
        return tokens, logits.gather(1, tokens.to(torch.int64)[:, None])[:, 0] * 0.0
    return tokens, logprobs_of(logits, tokens)


def logprobs_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """The log probability of one token a row: logits [m, V], tokens [m] of any integers -> [m] float32."""
    at = logits.gather(1, tokens.to(torch.int64)[:, None])[:, 0]
    return at - _log_totals(logits)


def top_logprobs(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k likeliest tokens of each row, falling, lower ids first among equals: logits [m, V] float32 -> ids [m, k]
    int32 and log probabilities [m, k] float32."""
    k = min(k, logits.shape[1])
    chosen = _top_by_row(logits, k) if logits.device.type == "cpu" else _top_together(logits, k)
    return chosen.to(torch.int32), logits.gather(1, chosen) - _log_totals(logits)[:, None]


def _top_by_row(logits: Tensor, k: int) -> Tensor:
    """Tokens not below the k-th, sorted by value; ids rise where values are equal."""
    least = logits.topk(k, sorted=False).values.amin(1).numpy()
    chosen = np.empty((logits.shape[0], k), np.int64)
    for i, row in enumerate(logits.numpy()):
        ids = np.flatnonzero(row >= least[i])
        if ids.shape[0] < k:  # NaN: any ids, whose log probabilities are NaN too
            ids = np.arange(k)
        chosen[i] = ids[np.argsort(-row[ids], kind="stable")[:k]]
    return torch.from_numpy(chosen)


def _top_together(logits: Tensor, k: int) -> Tensor:
    # A float's bits, as an integer, rise with a positive float and fall with a negative one. With the id in the lower
    # half no two are equal.
    bits = logits.contiguous().view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64) << 32
    return (ordered - torch.arange(logits.shape[1], device=logits.device)).topk(k, dim=1).indices


def _log_totals(logits: Tensor) -> Tensor:
    """By row on the processor, where torch may split a single row among threads: the last bits of a sum would depend on
    the number of rows."""
    if logits.device.type == "cpu" and logits.shape[0] > 1:
        return torch.stack([row.logsumexp(0) for row in logits.unbind(0)])
    return logits.logsumexp(1)


def _choose_together(logits: Tensor, sampling: SamplingBatch) -> Tensor:
    if sampling.is_greedy:
        return logits.argmax(1).to(torch.int32)
    is_drawn = sampling.temperature > 0
    scores = logits / torch.where(is_drawn, sampling.temperature, 1.0)[:, None]
    if not sampling.is_unfiltered:
        scores = keep_(scores, sampling.top_k, sampling.top_p, sampling.min_p)
    noisy = add_noise_(scores, row_keys(sampling.seeds, sampling.positions))
    return torch.where(is_drawn, noisy.argmax(1), logits.argmax(1)).to(torch.int32)


def _choose_by_row(logits: Tensor, sampling: SamplingBatch) -> Tensor:
    rows = logits.numpy()
    if sampling.is_greedy:
        # numpy's is ten times as fast as torch's here; both return the first of equals.
        return torch.from_numpy(rows.argmax(1).astype(np.int32))
    with np.errstate(all="ignore"):
        return torch.from_numpy(_draws(rows, sampling))


def _draws(rows: Any, sampling: SamplingBatch) -> Any:
    """numpy rows. The few remaining tokens of all filtered rows get their noise together."""
    tokens = np.empty(rows.shape[0], np.int32)
    filtered: list[tuple[int, Any, Any, int]] = []
    columns = sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.seeds, sampling.positions
    each_row = zip(*(column.tolist() for column in columns), strict=True)
    for i, (temperature, top_k, top_p, min_p, seed, position) in enumerate(each_row):
        if temperature <= 0:
            tokens[i] = rows[i].argmax()
            continue
        scores = rows[i] / np.float32(temperature)
        if not math.isfinite(scores.max()):  # no token is allowed, or the temperature is next to 0
            tokens[i] = scores.argmax()
        elif scores.shape[0] <= _SMALL or 0 < top_k < scores.shape[0] or top_p < 1 or min_p > 0:
            ids = filtered_ids(scores, top_k, top_p, min_p)
            filtered.append((i, ids, scores[ids], row_key(seed & _MASK, position)))
        else:
            add_row_noise_(torch.from_numpy(scores), row_key(seed & _MASK, position))
            tokens[i] = scores.argmax()
    if filtered:
        _draw_filtered(filtered, tokens)
    return tokens


def _draw_filtered(filtered: list[tuple[int, Any, Any, int]], tokens: Any) -> None:
    """Sample one id of each (row, ids, their scores, key) into `tokens`."""
    sizes = [ids.shape[0] for _, ids, _, _ in filtered]
    keys = np.repeat(np.array([key for _, _, _, key in filtered], np.uint64), sizes)
    noise = noise_of(np.concatenate([ids for _, ids, _, _ in filtered]), keys)
    start = 0
    for (row, ids, scores, _), size in zip(filtered, sizes, strict=True):
        tokens[row] = ids[(scores + noise[start : start + size]).argmax()]
        start += size


def is_adjusting(sampling: SamplingBatch) -> bool:
    penalties = sampling.repetition, sampling.presence, sampling.frequency
    return any(each is not None for each in (sampling.allowed, sampling.bias_values, *penalties))


def adjust_(logits: Tensor, sampling: SamplingBatch) -> Tensor:
    """Adjust logits [m, V] in place, in the order of `Ops.sample`. Rows without such fields stay bit-identical."""
    if sampling.allowed is not None:
        _forbid_(logits, sampling.allowed)
    _penalize_(logits, sampling)
    if sampling.bias_rows is not None and sampling.bias_ids is not None and sampling.bias_values is not None:
        logits.index_put_((sampling.bias_rows, sampling.bias_ids), sampling.bias_values, accumulate=True)
    return logits


def _forbid_(logits: Tensor, allowed: Tensor) -> None:
    """Forbid tokens whose bit is not set. allowed [m, ceil(V / 32)] int32."""
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

"""The filters of sampling: top-k, top-p and min-p, each on the result of the one before; among equals the lower ids
stay.

Two implementations: for rows on any device by sorting, the definition; and for one row on the processor, where almost
all of the vocabulary is dropped before anything is sorted.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Least probabilities of the candidates of top-p: at most a thousand tokens, then at most thirty thousand, which text
# seldom needs.
_LIKELY, _UNLIKELY = 1e-3, 1 / 30_000
# A sum this close to p has reached it: half of 110 equals are half of all, at any rounding of sums.
EQUAL_SUMS = 1e-9


def keep_(scores: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Scores [m, V] (logits / temperature) with -inf for filtered tokens. In place; on any device, by one stable sort,
    so that the host does not wait."""
    values, ids = scores.sort(dim=1, descending=True, stable=True)
    ranks = torch.arange(scores.shape[1], device=scores.device)
    has_top_k = (top_k > 0)[:, None]
    keep = ~has_top_k | (ranks < top_k[:, None])
    # MPS has no float64.
    wide = torch.float32 if scores.device.type == "mps" else torch.float64
    remaining = values.to(wide).masked_fill(~keep, -torch.inf)
    before = remaining.softmax(1).cumsum(1).roll(1, dims=1)
    before[:, 0] = 0
    keep &= (top_p[:, None] >= 1) | (before < top_p[:, None].to(wide) - EQUAL_SUMS) | (ranks == 0)
    keep &= (min_p[:, None] <= 0) | (values >= values[:, :1] + min_p[:, None].log())
    return scores.masked_fill_(~torch.zeros_like(keep).scatter_(1, ids, keep), -torch.inf)


def filtered_ids(scores: Any, top_k: int, top_p: float, min_p: float) -> Any:
    """The same for one row, a numpy array [V] of float32 -> the remaining ids, rising, int64."""
    largest = scores.max()
    ids = _top_k(scores, top_k) if 0 < top_k < scores.shape[0] else None
    if top_p < 1:
        ids = _top_p(scores, largest, top_p) if ids is None else _nucleus(ids, _shares(scores[ids]), top_p)
    if min_p > 0:
        least = largest + np.log(np.float32(min_p))
        ids = np.flatnonzero(scores >= least) if ids is None else ids[scores[ids] >= least]
    return np.arange(scores.shape[0]) if ids is None else ids


def _top_k(scores: Any, top_k: int) -> Any:
    least = torch.from_numpy(scores).topk(top_k, sorted=False).values.min().item()
    if least == -math.inf:  # fewer than k tokens are allowed
        return np.flatnonzero(scores > least)
    ids = np.flatnonzero(scores >= least)
    if ids.shape[0] == top_k:
        return ids
    ties = np.flatnonzero(scores[ids] == least)
    return np.delete(ids, ties[top_k - ids.shape[0] :])


def _top_p(scores: Any, largest: Any, top_p: float) -> Any:
    """Of the whole vocabulary. Tokens less likely than (1 - p) / 2V sum to less than (1 - p) / 2, and are never among
    those whose sum reaches p."""
    log_total = torch.from_numpy(scores).to(torch.float64).logsumexp(0).item()
    surely = (1 - top_p) / (2 * scores.shape[0])
    for least in (_LIKELY, _UNLIKELY, surely):
        ids = np.flatnonzero(scores >= min(largest, log_total + math.log(least)))
        weights = np.exp(scores[ids].astype(np.float64) - log_total)
        if least == surely or weights.sum() >= top_p:
            break
    return _nucleus(ids, weights, top_p)


def _nucleus(ids: Any, weights: Any, top_p: float) -> Any:
    """The fewest likeliest of `ids`, rising, whose sum reaches p."""
    order = np.argsort(-weights, kind="stable")
    sums = np.cumsum(weights[order])
    count = 1 + int(np.searchsorted(sums[:-1], top_p - EQUAL_SUMS))
    return np.sort(ids[order[:count]])


def _shares(scores: Any) -> Any:
    weights = np.exp(scores.astype(np.float64) - scores.max())
    return weights / weights.sum()

"""gateway.statistics' sample ratio check on arrays; see power_formulas.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.power_formulas import Array, Pair, log_gamma
from gateway.statistics import confidence_sequences, sample_ratio


def sample_ratio_p(seen: Sequence[tuple[Array, Array]], shares: Sequence[float]) -> Array:
    """The p-values by units: [experiments, looks] of the control and the arm, by period; `shares` are the arm's."""
    evidence: Array | float = 0.0
    past = [0.0, 0.0]
    promised = [0.0, 0.0]
    prior = sample_ratio.PRIOR
    for period, of_arm in zip(seen, shares, strict=True):
        both = (1 - of_arm, of_arm)
        num = period[0] + period[1]
        tilted = [s * (p + prior * s) / (e + prior * s) for s, p, e in zip(both, past, promised, strict=True)]
        knows = (prior + past[0] + past[1]) / (tilted[0] + tilted[1])
        whole = knows * (tilted[0] + tilted[1])
        evidence = evidence + log_gamma(whole) - log_gamma(whole + num)
        for side in (0, 1):
            of_side = knows * tilted[side]
            evidence = evidence + log_gamma(of_side + period[side]) - log_gamma(of_side)
            evidence = evidence - period[side] * np.log(both[side])
            past[side] = past[side] + period[side]
            promised[side] = promised[side] + both[side] * num
    return np.exp(-np.maximum(evidence, 0.0))


def bucket_ratio_p(seen: Sequence[Pair], shares: Sequence[float]) -> Array:
    """The p-values by buckets, for requests of units."""
    beyond = sum(pair[1].counts - s * (pair[0].counts + pair[1].counts) for pair, s in zip(seen, shares, strict=True))
    sent = sum(pair[0].counts + pair[1].counts for pair in seen)
    nums = [(pair[0].counts + pair[1].counts).sum(-1) for pair in seen]
    with np.errstate(all="ignore"):
        time = sum(s * (1 - s) * num for s, num in zip(shares, nums, strict=True))
        share = sum(s * num for s, num in zip(shares, nums, strict=True)) / sum(nums)
        weigh = sent.sum(-1) ** 2 / (sent**2).sum(-1)
        t = np.abs(beyond.sum(-1)) / np.sqrt((beyond**2).sum(-1))
        degrees = weigh - 1
        z = np.sqrt(degrees * np.log1p(t * t / degrees)) * (8 * degrees + 1) / (8 * degrees + 3)
        u = confidence_sequences.RHO2 * time
        p = np.minimum(1.0, np.sqrt(1 + u) * np.exp(-z * z * u / (2 * (1 + u))))
        return np.where(weigh * np.minimum(share, 1 - share) >= sample_ratio.LEAST_BUCKETS, p, 1.0)

"""The sample-ratio test: whether arms receive the units that their shares promise. If not, units are lost or counted
twice, and no other figure of the experiment can be trusted.

Lindon and Malek, "Anytime-valid inference for multinomial count data" (2020; NeurIPS 2022): the likelihood of the arms
that units had, mixed over shares by a Dirichlet prior around the promised ones, over its likelihood under these, is a
martingale. Where shares change, periods' factors are multiplied: a period's prior may be anything that earlier periods
have shown, and what they have shown is by which factor each arm got more or less than promised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, lgamma, log, sqrt

from gateway.observability.arm_stats import NUM_BUCKETS, ArmCounts
from gateway.statistics.confidence_sequences import normal, p_value
from gateway.statistics.values import SampleRatio, Stratum

# The prior's weight in units: most sensitive to deviations of about a tenth.
PRIOR = 100.0
# An arm with fewer expected effective buckets is not tested.
LEAST_BUCKETS = 8.0
_SAME = 1e-9


def sample_ratio(strata: Sequence[Stratum], alpha: float, unit: str = "session") -> SampleRatio:
    """Test all periods together; `unit` is the experiment's.

    First exposures of units are compared if they are counted, requests if each request is a unit. Otherwise the traffic
    of buckets is compared, because all requests of one unit go to one arm: a heavy user moves one bucket only. That is
    valid only while shares are the initial ones, because units from before a change stay.
    """
    if any(sum(counts.units) for stratum in strata for counts in stratum.arms.values()):
        seen = [_by_arm(stratum, lambda counts: counts.units) for stratum in strata]
        counted = "units"
    else:
        seen = [_by_arm(stratum, lambda counts: counts.requests) for stratum in strata]
        counted = "requests" if unit == "request" else "requests of units"
    shares = [_promised(stratum, buckets) for stratum, buckets in zip(strata, seen, strict=True)]
    sums = [{arm: float(sum(of_arm)) for arm, of_arm in period.items()} for period in seen]
    p = _p_of_buckets(seen, shares) if counted == "requests of units" else _p_of_units(sums, shares)
    totals: dict[str, float] = {}
    expected: dict[str, float] = {}
    for period, promised in zip(sums, shares, strict=True):
        for arm, share in promised.items():
            totals[arm] = totals.get(arm, 0.0) + period[arm]
            expected[arm] = expected.get(arm, 0.0) + share * sum(period[each] for each in promised)
    if not sum(totals.values()):
        counted = "nothing"
    return SampleRatio(p, p <= alpha, expected, totals, counted)


def _by_arm(stratum: Stratum, buckets: Callable[[ArmCounts], Sequence[int]]) -> dict[str, Sequence[int]]:
    return {arm: buckets(counts) for arm, counts in stratum.arms.items()}


def _promised(stratum: Stratum, seen: Mapping[str, object]) -> dict[str, float]:
    """The normalised shares of the arms with a share; units that keep an arm without one do not matter."""
    shares = {arm: share for arm, share in stratum.shares.items() if share > 0 and arm in seen}
    total = sum(shares.values())
    return {arm: share / total for arm, share in shares.items()}


def _p_of_units(seen: Sequence[Mapping[str, float]], shares: Sequence[Mapping[str, float]]) -> float:
    evidence = 0.0
    past: dict[str, float] = {}
    promised: dict[str, float] = {}
    for period, share_of in zip(seen, shares, strict=True):
        num = sum(period[arm] for arm in share_of)
        tilted = {
            arm: share * (past.get(arm, 0.0) + PRIOR * share) / (promised.get(arm, 0.0) + PRIOR * share)
            for arm, share in share_of.items()
        }
        knows = (PRIOR + sum(past.values())) / (sum(tilted.values()) or 1.0)
        evidence += lgamma(knows * sum(tilted.values())) - lgamma(knows * sum(tilted.values()) + num)
        for arm, share in share_of.items():
            prior = knows * tilted[arm]
            evidence += lgamma(prior + period[arm]) - lgamma(prior) - period[arm] * log(share)
            past[arm] = past.get(arm, 0.0) + period[arm]
            promised[arm] = promised.get(arm, 0.0) + share * num
    return exp(-max(evidence, 0.0))


def _p_of_buckets(seen: Sequence[Mapping[str, Sequence[int]]], shares: Sequence[Mapping[str, float]]) -> float:
    """The smallest p-value of an arm, times the number of tested arms (Bonferroni)."""
    arms = dict.fromkeys(arm for share_of in shares for arm in share_of)
    if any(abs(share_of.get(arm, 0.0) - shares[0].get(arm, 0.0)) > _SAME for share_of in shares for arm in arms):
        return 1.0
    p_values = [p for arm in arms if (p := _p_of_arm(arm, seen, shares)) is not None]
    tests = len(p_values) - 1 if len(arms) == 2 == len(p_values) else len(p_values)
    return min([1.0, *(p * max(tests, 1) for p in p_values)])


def _p_of_arm(
    arm: str, seen: Sequence[Mapping[str, Sequence[int]]], shares: Sequence[Mapping[str, float]]
) -> float | None:
    beyond, sent, time = [0.0] * NUM_BUCKETS, [0.0] * NUM_BUCKETS, 0.0
    expected = 0.0
    for period, share_of in zip(seen, shares, strict=True):
        share = share_of.get(arm, 0.0)
        if not 0 < share < 1:
            continue
        for bucket in range(NUM_BUCKETS):
            num = sum(period[each][bucket] for each in share_of)
            beyond[bucket] += period[arm][bucket] - share * num
            sent[bucket] += num
            time += share * (1 - share) * num
            expected += share * num
    if not time:
        return None
    weigh = sum(sent) ** 2 / sum(num * num for num in sent)
    share = expected / sum(sent)
    if weigh * min(share, 1 - share) < LEAST_BUCKETS:
        return None
    spread = sqrt(sum(each * each for each in beyond))
    return p_value(normal(abs(sum(beyond)) / spread, weigh - 1), time) if spread else None

"""Comparison of an arm with the control on one metric, and guardrails."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from gateway.config.experiment_specs import GuardrailSpec
from gateway.statistics.means import Averages
from gateway.statistics.metrics import is_rate, quantile_of
from gateway.statistics.quantiles import Quantiles
from gateway.statistics.rates import Rates
from gateway.statistics.values import UNKNOWN, Breach, Comparison, Interval, Stratum, shared

# The estimates of a metric in two arms; `one_sided` sequences hold for each side alone.
Estimates = Rates | Averages | Quantiles

_BOUNDS = ("max", "max_increase", "max_decrease", "max_ratio", "min_ratio")


def watch(
    guardrails: Sequence[GuardrailSpec], strata: Sequence[Stratum], control: str, arm: str, alpha: float
) -> list[Breach]:
    """Evaluate all guardrails of an arm. They share alpha (Bonferroni), so that a harmless arm is ever called harmful
    by any of them with probability at most alpha, and a harmful one harmless likewise."""
    return [breaches(guardrail, strata, control, arm, alpha / len(guardrails)) for guardrail in guardrails]


def breaches(guardrail: GuardrailSpec, strata: Sequence[Stratum], control: str, arm: str, alpha: float) -> Breach:
    """Evaluate one guardrail at its alpha by one-sided sequences: the lower end breaches, the upper end clears
    (reversed for metrics that may not fall)."""
    of = estimates(guardrail.metric, strata, control, arm)
    name, bound = _bound(guardrail)
    value = _value(of, name, alpha)
    if name in ("max_decrease", "min_ratio"):
        is_breached, is_cleared = value.high < bound, value.low >= bound
    else:
        is_breached, is_cleared = value.low > bound, value.high <= bound
    return Breach(guardrail, is_breached, is_cleared, bound, name, value)


def _bound(guardrail: GuardrailSpec) -> tuple[str, float]:
    for name in _BOUNDS:
        bound = getattr(guardrail, name)
        if bound is not None:
            return name, (-bound if name == "max_decrease" else bound)
    return "max", inf


def _value(of: Estimates, name: str, alpha: float) -> Interval:
    if name == "max":
        return of.alone(alpha, one_sided=True)
    if name in ("max_increase", "max_decrease"):
        return of.difference(alpha, one_sided=True)
    return of.ratio(alpha, one_sided=True) or UNKNOWN


def compare(
    metric: str, strata: Sequence[Stratum], control: str, arm: str, alpha: float, adjust: bool = True
) -> Comparison:
    """The arm's metric, the control's, their difference and ratio; each interval at alpha.

    `adjust`: latencies and output tokens for prompt length, where permitted (see `variance.means`).
    """
    of = estimates(metric, strata, control, arm, adjust)
    return Comparison(
        metric=metric,
        control=of.control(alpha),
        arm=of.arm(alpha),
        difference=of.difference(alpha),
        ratio=of.ratio(alpha),
        n_control=of.num_control,
        n_arm=of.num_arm,
        p_value=of.p_value(),
        adjusted=isinstance(of, Averages) and of.is_adjusted,
    )


def estimates(metric: str, strata: Sequence[Stratum], control: str, arm: str, adjust: bool = True) -> Estimates:
    """The estimates of a metric, independent of alpha."""
    quantile = quantile_of(metric)
    if quantile is not None:
        return Quantiles(quantile, strata, control, arm)
    if is_rate(metric, [counts for pair in shared(strata, control, arm) for counts in pair]):
        return Rates(metric, strata, control, arm)
    return Averages(metric, strata, control, arm, adjust)

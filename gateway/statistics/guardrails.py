"""What an arm may not do to users: whether it does, whether it does not, or whether nobody knows yet."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from gateway.config.experiment_specs import GuardrailSpec
from gateway.statistics.comparison import Estimates, comparison_of, estimates
from gateway.statistics.values import UNKNOWN, Breach, Interval, Stratum

_BOUNDS = ("max", "max_increase", "max_decrease", "max_ratio", "min_ratio")


def watch(
    guardrails: Sequence[GuardrailSpec], strata: Sequence[Stratum], control: str, arm: str, alpha: float
) -> list[Breach]:
    """All guardrails of an arm. Each has its share of alpha (Bonferroni), so that a harmless arm is called harmful by
    any of them, ever, with a chance of alpha at the most; and the same for a harmful one called harmless."""
    return [breaches(guardrail, strata, control, arm, alpha / len(guardrails)) for guardrail in guardrails]


def breaches(guardrail: GuardrailSpec, strata: Sequence[Stratum], control: str, arm: str, alpha: float) -> Breach:
    """One guardrail, with an alpha of its own: one-sided sequences, the lower end of which breaches and the upper end
    of which clears (the other way round for what may not fall).

    Raises: UnknownMetricError.
    """
    of = estimates(guardrail.metric, strata, control, arm)
    name, bound = _bound(guardrail)
    value = _value(of, name, alpha)
    if name in ("max_decrease", "min_ratio"):
        is_breached, is_cleared = value.high < bound, value.low >= bound
    else:
        is_breached, is_cleared = value.low > bound, value.high <= bound
    comparison = comparison_of(guardrail.metric, of, alpha)
    return Breach(guardrail, is_breached, is_cleared, comparison, bound, name, value)


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

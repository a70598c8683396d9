"""Guardrails: breached, cleared, or undecided."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.config.experiment_specs import GuardrailSpec
from gateway.observability.arm_stats import ArmCounts
from gateway.statistics.comparison import breaches, watch
from gateway.statistics.values import Breach
from tests.statistics.making import ARM, CONTROL, arm_counts, buckets_of, stratum


def traffic(
    name: str, num: int, seed: int, error_rate: float = 0.01, slower: float = 1.0, stars: float = 4.0
) -> ArmCounts:
    dice = np.random.default_rng(seed)
    seconds = slower * 0.1 * dice.lognormal(0, 0.3, num)
    values = dice.normal(stars, 1.0, num)
    errors = dice.random(num) < error_rate
    return arm_counts(name, buckets_of(num, dice), errors, seconds, dice.lognormal(6, 1, num), values)


CONTROLS = traffic(CONTROL, 5000, 1)
SAME = traffic(ARM, 5000, 2)
WORSE = traffic(ARM, 5000, 3, error_rate=0.08, slower=1.5, stars=3.0)
# 105 ms in the mean, and 164 ms at the 95th percentile.
GUARDRAILS = [
    GuardrailSpec("error_rate", max=0.03),
    GuardrailSpec("error_rate", max_increase=0.02),
    GuardrailSpec("error_rate", max_ratio=3.0),
    GuardrailSpec("latency", max=0.12),
    GuardrailSpec("latency", max_increase=0.02),
    GuardrailSpec("first_token", max_ratio=1.15),
    GuardrailSpec("latency_p95", max=0.21),
    GuardrailSpec("latency_p50", max_increase=0.03),
    GuardrailSpec("per_token_p90", max_ratio=1.25),
    GuardrailSpec("output_tokens", max_ratio=1.2),
    GuardrailSpec("feedback:rating", max_decrease=0.4),
    GuardrailSpec("feedback:rating", min_ratio=0.9),
]


def named(guardrail: GuardrailSpec) -> str:
    bound = next(
        name for name in ("max", "max_increase", "max_decrease", "max_ratio", "min_ratio") if getattr(guardrail, name)
    )
    return f"{guardrail.metric} {bound}"


def judged(guardrail: GuardrailSpec, arm: ArmCounts, alpha: float = 0.05) -> Breach:
    return breaches(guardrail, [stratum(CONTROLS, arm)], CONTROL, ARM, alpha)


@pytest.mark.parametrize("guardrail", GUARDRAILS, ids=named)
def test_a_worse_arm_breaches_and_the_same_is_cleared(guardrail: GuardrailSpec) -> None:
    """5,000 requests of each; higher is better for ratings, lower for all other metrics."""
    worse, same = judged(guardrail, WORSE), judged(guardrail, SAME)
    assert (worse.is_breached, worse.is_cleared) == (True, False)
    assert (same.is_breached, same.is_cleared) == (False, True)
    assert worse.value.low <= worse.value.estimate <= worse.value.high
    assert worse.bound_name in named(guardrail)


@pytest.mark.parametrize("guardrail", GUARDRAILS, ids=named)
def test_a_dozen_requests_say_nothing(guardrail: GuardrailSpec) -> None:
    for arm in (traffic(ARM, 12, 4), traffic(ARM, 0, 4)):
        seen = judged(guardrail, arm)
        assert (seen.is_breached, seen.is_cleared) == (False, False)


def test_a_bound_of_a_decrease_is_told_as_the_difference_that_it_bounds() -> None:
    seen = judged(GuardrailSpec("feedback:rating", max_decrease=0.4), WORSE)
    assert (seen.bound, seen.bound_name) == (-0.4, "max_decrease")
    assert seen.value.high < -0.4


def test_an_arm_is_bounded_where_the_control_has_nothing() -> None:
    """`max` bounds the arm alone; all other bounds need a control."""
    nobody = traffic(CONTROL, 0, 9)
    strata = [stratum(nobody, WORSE)]
    assert breaches(GuardrailSpec("error_rate", max=0.03), strata, CONTROL, ARM, 0.05).is_breached
    assert breaches(GuardrailSpec("latency", max=0.12), strata, CONTROL, ARM, 0.05).is_breached
    assert breaches(GuardrailSpec("latency_p95", max=0.2), strata, CONTROL, ARM, 0.05).is_breached
    for guardrail in (GuardrailSpec("error_rate", max_ratio=1.1), GuardrailSpec("latency", max_increase=0.001)):
        seen = breaches(guardrail, strata, CONTROL, ARM, 0.05)
        assert (seen.is_breached, seen.is_cleared) == (False, False)


def test_errors_beside_a_control_without_any() -> None:
    """A ratio to a control without errors is a breach once the control has enough requests."""
    control = traffic(CONTROL, 2000, 1, error_rate=0.0)
    seen = breaches(GuardrailSpec("error_rate", max_ratio=2.0), [stratum(control, WORSE)], CONTROL, ARM, 0.05)
    assert seen.is_breached


def test_many_guardrails_share_alpha() -> None:
    """Each guardrail is judged at its part of alpha."""
    strata = [stratum(CONTROLS, WORSE)]
    together = watch(GUARDRAILS, strata, CONTROL, ARM, 0.05)
    assert together == [breaches(each, strata, CONTROL, ARM, 0.05 / 12) for each in GUARDRAILS]
    assert watch([], strata, CONTROL, ARM, 0.05) == []


@pytest.mark.parametrize("guardrail", GUARDRAILS, ids=named)
def test_who_wants_to_be_surer_waits_longer(guardrail: GuardrailSpec) -> None:
    """A guardrail that is breached, or cleared, at a small alpha is so at each larger one."""
    for arm in (SAME, WORSE, traffic(ARM, 400, 5, error_rate=0.04, slower=1.2, stars=3.7)):
        seen = [judged(guardrail, arm, alpha) for alpha in (1e-9, 1e-4, 0.01, 0.1)]
        assert [each.is_breached for each in seen] == sorted(each.is_breached for each in seen)
        assert [each.is_cleared for each in seen] == sorted(each.is_cleared for each in seen)

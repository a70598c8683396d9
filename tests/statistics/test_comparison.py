"""An arm compared with the control, with much data and with little."""

from __future__ import annotations

from math import inf, isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.observability.arm_stats import ArmCounts, ArmKey
from gateway.statistics.comparison import compare
from gateway.statistics.metrics import add
from gateway.statistics.values import Comparison, Interval, Stratum
from tests.statistics.making import ARM, CONTROL, arm_counts, buckets_of, stratum

METRICS = [
    "error_rate",
    "latency",
    "first_token_p50",
    "latency_p95",
    "per_token_p99",
    "output_tokens",
    "feedback:rating",
]
EVERYTHING = Interval()


def traffic(name: str, num: int, seed: int, error_rate: float = 0.01, slower: float = 1.0) -> ArmCounts:
    """Requests of a unit each, whose latencies grow with their size."""
    dice = np.random.default_rng(seed)
    sizes = dice.lognormal(6, 1, num)
    seconds = slower * 0.01 * np.sqrt(sizes) * dice.lognormal(0, 0.3, num)
    values = dice.integers(1, 6, num)
    return arm_counts(name, buckets_of(num, dice), dice.random(num) < error_rate, seconds, sizes, values)


def between(control: ArmCounts, arm: ArmCounts, metric: str, alpha: float = 0.05) -> Comparison:
    return compare(metric, [stratum(control, arm)], CONTROL, ARM, alpha)


@pytest.mark.parametrize("metric", METRICS)
def test_nothing_is_known_of_nobody(metric: str) -> None:
    """Without requests no interval excludes anything."""
    empty = [ArmCounts(ArmKey("x", name)) for name in (CONTROL, ARM)]
    for strata in ([], [stratum(*empty)], [stratum(traffic(CONTROL, 500, 1), empty[1])]):
        seen = compare(metric, strata, CONTROL, ARM, 0.05)
        assert (seen.difference.low, seen.difference.high, seen.p_value) == (-inf, inf, 1.0)
        assert isnan(seen.difference.estimate)
        assert not seen.is_different


def test_a_metric_that_nobody_measures_is_an_error() -> None:
    with pytest.raises(ValueError, match="'latenci' is no metric: error_rate, latency"):
        between(traffic(CONTROL, 50, 1), traffic(ARM, 50, 2), "latenci")


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("num", [1, 2, 7, 60, 800])
def test_arms_may_change_places(metric: str, num: int) -> None:
    """If the arms are swapped, the difference changes its sign."""
    one, other = traffic(CONTROL, num, 1), traffic(ARM, 2 * num, 2, error_rate=0.3, slower=1.5)
    there = between(one, other, metric)
    back = compare(metric, [stratum(one, other)], ARM, CONTROL, 0.05)
    near = {"rel": 1e-6, "abs": 1e-9}
    assert there.difference.low == pytest.approx(-back.difference.high, **near)
    assert there.difference.high == pytest.approx(-back.difference.low, **near)
    assert there.p_value == pytest.approx(back.p_value, **near)
    assert (there.n_control, there.n_arm) == (back.n_arm, back.n_control)


@pytest.mark.parametrize("metric", METRICS)
def test_intervals_of_smaller_alphas_are_wider(metric: str) -> None:
    one, other = traffic(CONTROL, 3000, 1), traffic(ARM, 1000, 2, error_rate=0.02, slower=1.1)
    seen = [between(one, other, metric, alpha).difference for alpha in (0.2, 0.05, 0.01, 0.0001)]
    assert [each.low for each in seen] == sorted((each.low for each in seen), reverse=True)
    assert [each.high for each in seen] == sorted(each.high for each in seen)


@pytest.mark.parametrize("metric", METRICS)
def test_the_p_value_belongs_to_the_intervals(metric: str) -> None:
    """Intervals exclude 0 at exactly the alphas above the p-value."""
    one, other = traffic(CONTROL, 4000, 1), traffic(ARM, 4000, 2, error_rate=0.03, slower=1.2)
    p_value = between(one, other, metric, 0.5).p_value
    if p_value < 0.9:
        assert between(one, other, metric, min(p_value * 1.05, 0.999)).is_different
        assert not between(one, other, metric, p_value * 0.95).is_different


@pytest.mark.parametrize("metric", METRICS)
def test_more_data_narrows(metric: str) -> None:
    """Sixteen times the traffic gives less than two thirds of the width, including the error of the bins."""
    few = between(traffic(CONTROL, 4000, 1), traffic(ARM, 4000, 2), metric).difference
    many = between(
        add(*(traffic(CONTROL, 4000, seed) for seed in range(16))),
        add(*(traffic(ARM, 4000, seed) for seed in range(20, 36))),
        metric,
    ).difference
    assert many.high - many.low < 0.66 * (few.high - few.low)


def test_an_arm_that_fails_is_seen_within_tens_of_requests() -> None:
    """Half of the arm's 30 requests fail, and none of the control's 30."""
    seen = between(
        arm_counts(CONTROL, range(30), [False] * 30), arm_counts(ARM, range(30), [True, False] * 15), "error_rate"
    )
    assert seen.is_different
    assert seen.difference.low > 0.1
    assert seen.p_value < 0.01


def test_one_unit_is_no_statistics() -> None:
    """One client whose requests all fail shows nothing about other clients."""
    seen = between(arm_counts(CONTROL, range(30), [False] * 30), arm_counts(ARM, [7] * 300, [True] * 300), "error_rate")
    assert not seen.is_different


def test_a_rate_that_moves_with_the_shares_is_no_difference() -> None:
    """Errors become rare while the arm grows: over all requests together the arm looks three times better (Simpson)."""
    dice = np.random.default_rng(5)

    def period(num_control: int, num_arm: int, rate: float) -> Stratum:
        arms = [(CONTROL, num_control), (ARM, num_arm)]
        counted = [arm_counts(name, buckets_of(num, dice), dice.random(num) < rate) for name, num in arms]
        return stratum(*counted, shares={CONTROL: num_control, ARM: num_arm})

    strata = [period(19_000, 1_000, 0.10), period(10_000, 10_000, 0.02)]
    seen = compare("error_rate", strata, CONTROL, ARM, 0.05)
    assert not seen.is_different
    assert abs(seen.difference.estimate) < 0.005
    whole = [stratum(*(add(*(each.arms[name] for each in strata)) for name in (CONTROL, ARM)))]
    assert compare("error_rate", whole, CONTROL, ARM, 0.05).difference.high < -0.03


def test_periods_without_a_share_are_no_comparison() -> None:
    """Requests to the control before the arm began, and those of units that stay with a closed arm, do not count."""
    now = stratum(traffic(CONTROL, 500, 1), traffic(ARM, 500, 2))
    before = stratum(traffic(CONTROL, 500, 3, error_rate=0.9), shares={CONTROL: 1.0, ARM: 0.0})
    after = stratum(traffic(CONTROL, 500, 3), traffic(ARM, 5, 3, error_rate=1.0), shares={CONTROL: 1.0, ARM: 0.0})
    for metric in METRICS:
        alone = compare(metric, [now], CONTROL, ARM, 0.05)
        assert compare(metric, [before, now, after], CONTROL, ARM, 0.05) == alone


@given(
    st.lists(st.tuples(st.integers(0, 63), st.booleans(), st.floats(1e-6, 1e4)), max_size=40),
    st.lists(st.tuples(st.integers(0, 63), st.booleans(), st.floats(1e-6, 1e4)), max_size=40),
    st.sampled_from(METRICS),
)
@settings(max_examples=150, deadline=None)
def test_whatever_was_counted_has_an_interval(
    control: list[tuple[int, bool, float]], arm: list[tuple[int, bool, float]], metric: str
) -> None:
    """No requests, one, all errors, one bucket, one value: intervals contain their estimates, and p is a
    probability."""
    counted = []
    for name, requests in ((CONTROL, control), (ARM, arm)):
        buckets, errors, seconds = zip(*requests, strict=True) if requests else ((), (), ())
        counted.append(arm_counts(name, buckets, errors, seconds, seconds, [float(error) for error in errors]))
    seen = between(counted[0], counted[1], metric)
    assert 0 <= seen.p_value <= 1
    for each in (seen.control, seen.arm, seen.difference, seen.ratio or EVERYTHING):
        assert each.low <= each.high
        assert isnan(each.estimate) or each.low <= each.estimate <= each.high

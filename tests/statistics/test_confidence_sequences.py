"""Boundaries and e-processes, checked on small cases that can be enumerated."""

from __future__ import annotations

from itertools import product
from math import exp, log, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.statistics import bernoulli
from gateway.statistics.bernoulli import Trials
from gateway.statistics.confidence_sequences import RHO2, boundary, normal, one_sided_boundary, p_value, student
from gateway.statistics.metrics import Series

alphas = st.floats(1e-6, 0.5)
nums = st.floats(1, 1e7)


@given(nums, alphas)
def test_the_boundary_is_where_the_mixture_reaches_one_over_alpha(n: float, alpha: float) -> None:
    """Robbins' mixture is 1 / alpha at the boundary, and the p-value there is alpha."""
    z, u = boundary(n, alpha), RHO2 * n
    assert exp(z * z * u / (2 * (1 + u))) / sqrt(1 + u) == pytest.approx(1 / alpha, rel=1e-6)
    assert p_value(z, n) == pytest.approx(alpha, rel=1e-6)


@given(nums, alphas)
def test_one_side_costs_less_than_two_and_more_than_two_at_twice_the_alpha(n: float, alpha: float) -> None:
    assert boundary(n, 2 * alpha) <= one_sided_boundary(n, alpha) <= boundary(n, alpha) * 1.0001


def test_the_boundary_is_lowest_where_it_says() -> None:
    """For alpha = 0.05 the minimum is at 500 requests, counted as the harmonic sum of two arms, and flat around it."""
    at = {n: boundary(n, 0.05) for n in (50, 250, 500, 1000, 5000)}
    assert min(at, key=lambda n: at[n]) == 500
    assert max(at.values()) < 1.3 * at[500]


@pytest.mark.parametrize("degrees, quantile", [(5, 5.893), (10, 4.144), (30, 3.385), (60, 3.232), (1000, 3.098)])
def test_students_quantiles(degrees: float, quantile: float) -> None:
    """Within two percent of the tables for a one-sided chance of 0.001, where the normal quantile is 3.0902."""
    assert student(3.0902, degrees) == pytest.approx(quantile, rel=0.02)
    assert normal(student(3.0902, degrees), degrees) == pytest.approx(3.0902)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5])
def test_the_e_process_is_a_martingale(share: float) -> None:
    """Over all outcomes of ten requests, weighted by their chances, its mean is 1."""
    mean = 0.0
    for ends in product((0, 1), repeat=10):
        hits = sum(ends)
        chance = share**hits * (1 - share) ** (10 - hits)
        mean += chance * exp(bernoulli.log_evidence(Trials(hits, 10), share))
    assert mean == pytest.approx(1.0)


def test_two_arms_evidence_is_that_of_the_share_that_fits_best() -> None:
    """On a fine grid, no common share is rejected less than the one that is found."""
    control, arm = Trials(3, 200), Trials(9, 120)
    found = bernoulli.log_evidence_against(control, arm)
    grid = [number / 10_000 for number in range(1, 10_000)]
    best = min(bernoulli.log_evidence(control, share) + bernoulli.log_evidence(arm, share) for share in grid)
    assert found <= best + 1e-9
    assert found == pytest.approx(best, abs=1e-3)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 60), st.integers(0, 60), st.floats(1e-4, 0.5))
def test_intervals_end_where_evidence_suffices(hits: int, misses: int, others: int, rest: int, alpha: float) -> None:
    control, arm = Trials(hits, hits + misses), Trials(others, others + rest)
    low, high = bernoulli.difference_interval(control, arm, alpha)
    assert -1 <= low <= arm.share - control.share <= high <= 1
    for end in (low, high):
        if abs(end) < 1 - 1e-9:
            assert bernoulli.log_evidence_against(control, arm, end) == pytest.approx(-log(alpha), abs=1e-4)
    least, most = bernoulli.interval(arm, alpha)
    assert 0 <= least <= arm.share <= most <= 1
    below, above = bernoulli.ratio_interval(control, arm, alpha)
    assert 0 <= below <= above
    if low > 0:
        assert below > 1 - 1e-6


def test_units_that_fail_together_count_once() -> None:
    """20 requests of each of 60 units, of which every tenth always fails: 1,200 requests are worth as much as 60."""
    failing = [20 if bucket % 10 == 0 else 0 for bucket in range(60)]
    together = Series([*failing, 0, 0, 0, 0], [20] * 60 + [0] * 4)
    assert bernoulli.design_effect([together]) == pytest.approx(20, rel=0.05)
    apart = Series([2] * 60 + [0] * 4, [20] * 60 + [0] * 4)
    assert bernoulli.design_effect([apart]) == 1.0
    one_unit = Series([300, *[0] * 63], [300, *[0] * 63])
    assert bernoulli.design_effect([one_unit]) == 300

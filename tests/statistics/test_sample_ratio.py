"""A sample ratio mismatch is found if arms do not get their share of the units."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.observability.arm_stats import ArmCounts, ArmKey
from gateway.statistics.sample_ratio import sample_ratio
from gateway.statistics.values import Stratum
from tests.statistics.making import buckets_of


def counts(name: str, units: int = 0, requests: int = 0, requests_of_unit: int = 1, seed: int = 1) -> ArmCounts:
    dice = np.random.default_rng(seed)
    made = ArmCounts(ArmKey("x", name))
    made.units = np.bincount(buckets_of(units, dice), minlength=64).tolist()
    made.requests = np.bincount(buckets_of(requests, dice, requests_of_unit), minlength=64).tolist()
    return made


def period(shares: dict[str, float], **units: int) -> Stratum:
    return Stratum({name: counts(name, num, 3 * num) for name, num in units.items()}, shares)


def test_what_was_promised() -> None:
    seen = sample_ratio([period({"a": 0.9, "b": 0.1}, a=9010, b=990)], 0.01)
    assert not seen.is_mismatched
    assert (seen.expected, seen.seen) == ({"a": 9000.0, "b": 1000.0}, {"a": 9010.0, "b": 990.0})
    assert seen.counted == "units"


@pytest.mark.parametrize("a, b", [(9250, 750), (8700, 1300), (500, 500), (1000, 0)])
def test_what_was_not(a: int, b: int) -> None:
    seen = sample_ratio([period({"a": 0.9, "b": 0.1}, a=a, b=b)], 0.01)
    assert seen.is_mismatched
    assert seen.p_value < 1e-3


def test_the_p_value_of_one_period_is_lindons_and_maleks() -> None:
    """Their Bayes factor, written out: 60 and 40 of units that should be equal, with a prior worth 100 units."""
    from math import exp, lgamma, log

    evidence = lgamma(100) - lgamma(200) + lgamma(110) - lgamma(50) + lgamma(90) - lgamma(50) + 100 * log(2)
    assert sample_ratio([period({"a": 0.5, "b": 0.5}, a=60, b=40)], 0.05).p_value == pytest.approx(
        min(1, exp(-evidence))
    )


def test_periods_add_up_although_shares_change() -> None:
    """A tenth of the arm's units is lost in each of six short periods: no single one shows it, all together do."""
    shares = [0.05, 0.1, 0.2, 0.4, 0.6, 0.8]
    periods = [
        period({"a": 1 - share, "b": share}, a=round(3000 * (1 - share)), b=round(3000 * share * 0.9))
        for share in shares
    ]
    assert not any(sample_ratio([each], 0.01).is_mismatched for each in periods)
    assert sample_ratio(periods, 0.01).is_mismatched


def test_an_arm_without_a_share_is_no_mismatch() -> None:
    """Units that stay with a closed arm are not part of the draw."""
    closed = period({"a": 0.5, "b": 0.5, "c": 0.0}, a=500, b=500, c=40)
    assert sample_ratio([closed], 0.05).p_value == 1.0
    assert sample_ratio([closed], 0.05).expected == {"a": 500.0, "b": 500.0}


def test_three_arms() -> None:
    fair = {"a": 0.5, "b": 0.3, "c": 0.2}
    assert not sample_ratio([period(fair, a=5020, b=2990, c=1990)], 0.05).is_mismatched
    assert sample_ratio([period(fair, a=5000, b=3300, c=1700)], 0.05).is_mismatched


def test_nothing_was_counted() -> None:
    for strata in ([], [period({"a": 0.5, "b": 0.5}, a=0, b=0)]):
        seen = sample_ratio(strata, 0.05)
        assert (seen.p_value, seen.is_mismatched, seen.counted) == (1.0, False, "nothing")


def test_a_heavy_user_is_no_mismatch() -> None:
    """Where units are unknown, one unit with thousands of requests is no mismatch; a loss over many units is."""
    shares = {"a": 0.5, "b": 0.5}

    def unknown(a: ArmCounts, b: ArmCounts, unit: str) -> tuple[bool, str]:
        seen = sample_ratio([Stratum({"a": a, "b": b}, shares)], 0.05, unit)
        return seen.is_mismatched, seen.counted

    light = counts("a", requests=4000, requests_of_unit=4, seed=1)
    heavy = counts("b", requests=4000, requests_of_unit=4, seed=2)
    heavy.requests[5] += 3000
    assert unknown(light, heavy, "header:x-user") == (False, "requests of units")
    assert unknown(light, heavy, "request") == (True, "requests")
    few = counts("b", requests=2000, requests_of_unit=4, seed=3)
    assert unknown(light, few, "header:x-user") == (True, "requests of units")

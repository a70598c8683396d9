"""A bandit gives each arm traffic by its chance to be the best."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.statistics.bandit import Belief, belief, belief_of_share, best_chances, thompson
from tests.statistics.making import arm_counts, buckets_of

trials = st.tuples(st.floats(0, 1e5), st.floats(0, 1e5))


@pytest.mark.parametrize(
    "seen",
    [
        {"a": (10, 100), "b": (15, 100)},
        {"a": (3, 500), "b": (4, 400), "c": (0, 3)},
        {"a": (0, 0), "b": (900, 100)},
        {"a": (5000, 500_000), "b": (5200, 500_000), "c": (1, 20)},
    ],
)
@pytest.mark.parametrize("goal", ["higher", "lower"])
def test_chances_are_those_that_dice_would_show(seen: dict[str, tuple[float, float]], goal: str) -> None:
    """The chances agree with 200,000 Thompson draws: within five standard errors, and a thousandth."""
    dice = np.random.default_rng(1)
    drawn = np.array([dice.beta(1 + hits, 1 + misses, 200_000) for hits, misses in seen.values()])
    best = (drawn.argmax(0) if goal == "higher" else drawn.argmin(0)).astype(int)
    chances = best_chances({name: belief_of_share(*each) for name, each in seen.items()}, goal)
    for place, name in enumerate(seen):
        share = float((best == place).mean())
        assert chances[name] == pytest.approx(share, abs=5 * (share * (1 - share) / 200_000) ** 0.5 + 1e-3)


def test_chances_of_means() -> None:
    """Two normal beliefs, one standard deviation of their difference apart."""
    chances = best_chances({"a": Belief(1.0, 0.6, False), "b": Belief(2.0, 0.8, False)})
    assert chances["b"] == pytest.approx(0.8413, abs=1e-3)


@given(st.dictionaries(st.sampled_from("abcde"), trials, min_size=1), st.floats(0, 0.2), st.floats(0.5, 1.0))
@settings(max_examples=40, deadline=None)
def test_shares_keep_their_bounds(seen: dict[str, tuple[float, float]], least: float, most: float) -> None:
    shares = thompson({name: belief_of_share(*each) for name, each in seen.items()}, least, most)
    assert sum(shares.values()) == pytest.approx(1.0)
    if least * len(shares) <= 1 <= most * len(shares):
        assert all(least - 1e-6 <= share <= most + 1e-6 for share in shares.values())
    else:
        assert len(set(shares.values())) == 1


def test_the_better_arm_gets_more() -> None:
    few = {"a": belief_of_share(50, 50), "b": belief_of_share(60, 40)}
    assert thompson(few)["b"] > 0.8
    many = {"a": belief_of_share(500, 500), "b": belief_of_share(600, 400)}
    assert thompson(many) == pytest.approx({"a": 0.05, "b": 0.95})
    assert thompson(many, goal="lower") == pytest.approx({"a": 0.95, "b": 0.05})
    assert thompson({"a": belief_of_share(0, 0), "b": belief_of_share(0, 0)}) == pytest.approx({"a": 0.5, "b": 0.5})


def test_what_is_old_counts_less() -> None:
    """If all requests failed an hour ago and none since, a half-life of ten minutes leaves almost none of those
    failures."""
    dice = np.random.default_rng(1)

    def period(rate: float) -> object:
        return arm_counts("a", buckets_of(200, dice), dice.random(200) < rate)

    periods = [(3600.0, period(1.0)), (0.0, period(0.0))]
    fresh, all_time = belief("error_rate", periods, 600.0), belief("error_rate", periods, 1e9)
    assert fresh is not None
    assert all_time is not None
    assert fresh.mean < 0.03
    assert all_time.mean == pytest.approx(0.5, abs=0.01)


def test_a_bandit_finds_the_better_arm() -> None:
    """A hundred rounds of 50 requests, 10 % against 5 % errors: most of the traffic goes to the better arm, in each of
    six runs."""
    for seed in range(6):
        dice = np.random.default_rng(seed)
        seen = {"a": [0, 0], "b": [0, 0]}
        rates, sent = {"a": 0.10, "b": 0.05}, {"a": 0, "b": 0}
        for _ in range(100):
            shares = thompson({name: belief_of_share(*each) for name, each in seen.items()}, goal="lower")
            for name, share in shares.items():
                num = int(dice.binomial(50, share))
                errors = int(dice.binomial(num, rates[name]))
                seen[name][0] += errors
                seen[name][1] += num - errors
                sent[name] += num
        assert sent["b"] > 0.75 * sum(sent.values())


def test_means_of_feedback() -> None:
    """Stars from one to five give a normal belief with the spread between buckets; a single unit gives none."""
    dice = np.random.default_rng(2)
    num = 2000
    stars = arm_counts("a", buckets_of(num, dice), values=dice.integers(1, 6, num))
    seen = belief("feedback:rating", [(0.0, stars)], 600.0)
    assert seen is not None
    assert not seen.is_share
    assert seen.mean == pytest.approx(3.0, abs=0.15)
    assert seen.deviation == pytest.approx(2**0.5 / num**0.5, rel=0.4)
    one_unit = arm_counts("a", [3] * 50, values=dice.integers(1, 6, 50))
    assert belief("feedback:rating", [(0.0, one_unit)], 600.0) is None

"""The counts of a period are those at its end less those at its beginning, and never below 0."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.observability.arm_stats import ArmCounts, ArmKey, Feedback
from gateway.statistics.metrics import add, subtract
from tests.statistics.making import arm_counts, buckets_of


def counts(num: int, seed: int) -> ArmCounts:
    dice = np.random.default_rng(seed)
    buckets = buckets_of(num, dice)
    seconds = dice.integers(1, 100, num) / 64  # sums of such numbers have no rounding
    made = arm_counts("a", buckets, dice.random(num) < 0.2, seconds, seconds, dice.integers(0, 2, num), buckets)
    made.kinds = {"503": num, f"kind-{seed % 2}": 1}
    made.feedback["rating"].labels = {"good": num}
    made.crossed, made.joules, made.joules_requests = num, num / 2, num
    return made


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 1000))
def test_what_is_added_can_be_taken_away(one: int, other: int, seed: int) -> None:
    first, second = counts(one, seed), counts(other, seed + 1)
    assert subtract(add(first, second), first) == subtract(second, None)


def test_counts_that_began_anew_make_nothing_negative() -> None:
    """Counts fall when a worker dies, since its part is lost."""
    between = subtract(counts(10, 1), counts(500, 2))
    assert between.requests == [0] * 64
    assert between.errors == [0] * 64
    assert (between.latency.bins, between.kinds) == ({}, {"kind-1": 1})
    assert (between.crossed, between.joules) == (0, 0.0)
    assert between.feedback["rating"].total == [0.0] * 64


def test_what_was_never_counted_before_is_all_new() -> None:
    """Feedback under a new name, an error of a new kind."""
    before, after = counts(10, 1), counts(10, 1)
    after.feedback["stars"] = Feedback([1] * 64, [5.0] * 64, 64 * 25.0, {"great": 3})
    after.kinds["504"] = 7
    between = subtract(after, before)
    assert between.feedback["stars"] == after.feedback["stars"]
    assert between.kinds == {"504": 7}
    assert sum(between.requests) == 0


def test_nothing_that_was_given_is_changed() -> None:
    first, second = counts(10, 1), counts(20, 2)
    whole = add(first, second)
    whole.requests[0] += 1
    whole.feedback["rating"].total[0] += 1
    assert (first, second) == (counts(10, 1), counts(20, 2))
    assert add(ArmCounts(ArmKey("x", "a"))) == ArmCounts(ArmKey("x", "a"))

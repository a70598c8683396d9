"""The arithmetic of a token bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.token_bucket import Bucket

# What was taken when, and what is in a bucket of 10 that gains 2 a second.
LEVELS = [
    ([], 5.0, 10.0),
    ([(0.0, 4)], 0.0, 6.0),
    ([(0.0, 4)], 1.0, 8.0),
    ([(0.0, 4)], 60.0, 10.0),
    ([(0.0, 10), (1.0, 2)], 1.0, 0.0),
    ([(0.0, 15)], 1.0, -3.0),
    ([(0.0, 5), (0.0, -2)], 0.0, 7.0),
    ([(0.0, -2)], 0.0, 10.0),
    ([(1.0, 3)], 0.5, 7.0),
]


@pytest.mark.parametrize("taken, now, level", LEVELS)
def test_a_bucket_gains_by_the_second_up_to_what_it_holds(
    taken: list[tuple[float, float]], now: float, level: float
) -> None:
    """It begins full, may owe, gets back what was not used, and a clock that goes back gives it nothing."""
    bucket = Bucket(2.0, 10.0, 0.0)
    for at, amount in taken:
        bucket.take(amount, at)
    assert bucket.level(now) == pytest.approx(level)


@pytest.mark.parametrize("amount, wait", [(1, 0.0), (8, 0.0), (10, 1.0), (50, 1.0)])
def test_it_tells_when_there_is_enough(amount: float, wait: float) -> None:
    """For more than it holds that is when it is full."""
    bucket = Bucket(2.0, 10.0, 0.0)
    bucket.take(2, 0.0)
    assert bucket.wait(amount, 0.0) == pytest.approx(wait)


def test_it_may_change_its_size() -> None:
    """What it has more than the new size is gone."""
    bucket = Bucket(2.0, 10.0, 0.0)
    bucket.resize(1.0, 4.0, 0.0)
    assert bucket.level(0.0) == 4
    bucket.take(4, 0.0)
    assert bucket.level(2.0) == 2


@given(
    rate=st.floats(0.1, 1000),
    full=st.floats(1, 1000),
    steps=st.lists(st.tuples(st.floats(0, 10), st.integers(1, 20)), max_size=100),
)
def test_it_never_lets_more_pass_than_it_may(rate: float, full: float, steps: list[tuple[float, int]]) -> None:
    """Whoever asks before he takes gets at most its size and what the time brings."""
    bucket = Bucket(rate, full, 0.0)
    now, taken = 0.0, 0
    for pause, amount in steps:
        now += pause
        if bucket.level(now) >= amount:
            bucket.take(amount, now)
            taken += amount
        assert taken <= full + rate * now + 1e-6

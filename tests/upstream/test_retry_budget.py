"""The budget for retries, with a clock moved by hand."""

from gateway.config.engine_specs import RetrySpec
from gateway.upstream.engine import RetryBudget


def taken(budget: RetryBudget, now: float, *, most: int = 10_000) -> int:
    """How many retries in a row are allowed."""
    number = 0
    while number < most and budget.take(now):
        number += 1
    return number


def test_a_few_are_always_allowed() -> None:
    """The floor allows some retries without traffic, and again ten seconds later."""
    budget = RetryBudget(RetrySpec(budget=0.2, budget_floor=3), 100.0)
    assert taken(budget, 100.0) == 3
    assert taken(budget, 105.0) == 0
    assert taken(budget, 120.0) == 3


def test_a_share_of_the_requests() -> None:
    """Every fifth request may be retried; requests and retries count for ten seconds."""
    budget = RetryBudget(RetrySpec(budget=0.2, budget_floor=0), 100.0)
    assert taken(budget, 100.0) == 0
    budget.requests += 50
    assert taken(budget, 105.0) == 10
    budget.requests += 50
    assert taken(budget, 109.0) == 10
    assert taken(budget, 110.0) == 0
    budget.requests += 10
    assert taken(budget, 115.0) == 2


def test_a_long_calm_is_remembered() -> None:
    """After an hour without failures, the requests of the last ten seconds count."""
    budget = RetryBudget(RetrySpec(budget=0.2, budget_floor=3), 1_000_000.0)
    budget.requests += 3600 * 100
    assert taken(budget, 1_003_600.0) == 203
    assert taken(budget, 1_003_605.0) == 0


def test_a_fleet_that_fails_is_not_flooded() -> None:
    """A thousand failing requests a second cause two hundred retries a second, not two thousand."""
    budget = RetryBudget(RetrySpec(budget=0.2, budget_floor=10), 1000.0)
    retries = 0
    for millisecond in range(60_000):
        budget.requests += 1
        retries += taken(budget, 1000.0 + millisecond / 1000, most=2)
    assert 0.18 < retries / 60_000 < 0.22


def test_it_can_be_none() -> None:
    """A budget of zero allows no retries."""
    budget = RetryBudget(RetrySpec(budget=0.0, budget_floor=0), 0.0)
    budget.requests += 1000
    assert not budget.take(1.0)

"""Leaving out what fails: the breaker and the retry budget, with a clock moved by hand."""

import pytest

from gateway.config.specs import BreakerSpec, RetrySpec
from gateway.upstream.breaker import Breaker
from gateway.upstream.retry import RetryBudget

CASES = [
    # events: f(ailed), s(ucceeded), t(rial sent), a(bandoned), a number: seconds pass;  allows afterwards
    ("", True),
    ("ff", True),
    ("fff", False),
    ("ffsff", True),  # failures must be in a row
    ("fff 4", False),
    ("fff 5", True),  # the pause is over: a trial may be sent
    ("fff 5 t", False),  # only one
    ("fff 5 ts", True),
    ("fff 5 tf", False),
    ("fff 5 tf 5", False),  # the second pause is twice as long
    ("fff 5 tf 10", True),
    ("fff 5 ta", True),  # a trial that told nothing is had anew
    ("fff 5 ts ff", True),  # all is forgotten after a success
    ("fff" + " 60 tf" * 9 + " 59", False),
    ("fff" + " 60 tf" * 9 + " 60", True),  # no pause is longer than twelve times the first
]


@pytest.mark.parametrize("events, allows", CASES)
def test_the_breaker(events: str, allows: bool) -> None:
    """Three failures in a row leave an endpoint out for five seconds; then one trial decides."""
    breaker, now = Breaker(BreakerSpec(failures=3, open_for=5.0)), 100.0
    for word in events.split():
        if word.isdigit():
            now += int(word)
            continue
        for event in word:
            if event == "f":
                breaker.failed(now)
            elif event == "t":
                breaker.sent(now)
            else:
                {"s": breaker.succeeded, "a": breaker.abandoned}[event]()
    assert breaker.allows(now) is allows


def test_the_breaker_can_be_off() -> None:
    """With `failures: 0` nothing is ever left out."""
    breaker = Breaker(BreakerSpec(failures=0))
    for _ in range(100):
        breaker.failed(0.0)
    assert breaker.allows(0.0)


def test_the_retry_budget() -> None:
    """Retries are a share of the requests of the last ten seconds, above a few that are always allowed."""
    budget = RetryBudget(RetrySpec(budget=0.2, budget_floor=3))
    assert [budget.take(100.0) for _ in range(5)] == [True, True, True, False, False]
    budget.requests += 50
    assert sum(budget.take(105.0) for _ in range(50)) == 10
    assert sum(budget.take(131.0) for _ in range(50)) == 3  # all of that is long past

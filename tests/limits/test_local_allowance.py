"""What one worker spends of a shared bucket without a request to Redis."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.local_allowance import AdmissionCheck, BorrowRequest, ConcurrencySlots, LocalAllowance, TokenBucket


def allowance(rate: float = 100.0, full: float = 100.0, num_workers: int = 4) -> LocalAllowance:
    return LocalAllowance(rate, full, num_workers, 0.0)


def test_nothing_is_spent_before_redis_is_asked() -> None:
    """The first request borrows for itself only, and the grant admits it."""
    it = allowance()
    assert it.check(1, 0.0, True) is AdmissionCheck.BORROW
    assert it.borrow_request([1.0], 0.0) == BorrowRequest(1, 1, 0)
    it.granted(1, 0.0, 0.001)
    assert it.check(1, 0.001, True) is AdmissionCheck.ADMIT
    it.take(1, 0.001, True)
    assert it.check(1, 0.002, True) is AdmissionCheck.BORROW


def test_a_busy_worker_borrows_ahead() -> None:
    """A busy worker borrows its need for a quarter of a second, at most a twentieth of the bucket, and again at half of
    it."""
    it = allowance(rate=1000, full=1000)
    it.granted(16, 0.0, 0.0)
    for _ in range(16):
        it.take(1, 0.1, True)
    assert it.borrow_request([], 0.2) == BorrowRequest(20, 0, 0)  # 80 a second
    it.granted(20, 0.0, 0.2)
    assert [it.take(1, 0.2, True) for _ in range(12)] == [False] * 10 + [True] * 2
    assert it.borrow_request([], 0.21) == BorrowRequest(12, 0, 0)  # too short an interval for a new rate
    it.granted(12, 0.0, 0.21)
    for _ in range(20):
        it.take(1, 0.22, True)
    assert it.borrow_request([], 0.25) == BorrowRequest(50, 0, 0)  # 640 a second


def test_no_worker_has_more_at_hand_than_it_says() -> None:
    """However often it borrows, a worker fills up to a bound and not beyond."""
    it = allowance(rate=1000, full=1000)
    for step in range(1000):
        now = step / 1000
        if it.check(1, now, True) is AdmissionCheck.BORROW:
            it.granted(it.borrow_request([1.0], now).want, 0.0, now)
        if it.take(1, now, True):
            it.granted(it.borrow_request([], now).want, 0.0, now)
        assert it.available <= it.ahead


def test_who_cannot_wait_owes_no_more_than_is_borrowed_ahead() -> None:
    """The messages of a stream continue while Redis is queried, up to a bounded debt."""
    it = allowance()
    owed = 0
    while it.may_owe(1, 0.0, True):
        it.take(1, 0.0, True)
        owed += 1
    assert owed == 5
    assert it.borrow_request([], 0.0).back == -5


def test_where_redis_has_none_nobody_asks_until_it_has() -> None:
    """While Redis has none, requests are rejected at once with the time to wait."""
    it = allowance()
    it.borrow_request([1.0], 0.0)
    it.granted(0, 0.04, 0.0)
    assert it.check(1, 0.03, True) is AdmissionCheck.REJECT
    assert it.wait(1, 0.03, True) == pytest.approx(0.01)
    assert it.check(1, 0.041, True) is AdmissionCheck.BORROW


def test_what_was_used_beyond_is_owed() -> None:
    """Overspending is a debt, unused tokens are available to the next request, and an idle worker returns all."""
    it = allowance()
    it.granted(10, 0.0, 0.0)
    it.take(10, 0.0, True)
    it.put_back(-5, 0.0, True)
    assert it.check(1, 0.0, True) is AdmissionCheck.BORROW
    assert it.borrow_request([1.0], 0.0) == BorrowRequest(1, 1, -5)
    it.granted(4, 0.0, 0.0)
    it.put_back(2, 0.0, True)
    assert it.borrow_request([], 0.0, is_idle=True) == BorrowRequest(0, 0, 6)
    assert it.available == 0


def test_alone_a_worker_keeps_to_its_share() -> None:
    """Without Redis a worker has its share of the rate; a new number of workers changes that share."""
    it = allowance()
    admitted = 0
    for step in range(1000):
        if it.check(1, step / 1000, False) is AdmissionCheck.ADMIT:
            it.take(1, step / 1000, False)
            admitted += 1
    assert admitted == pytest.approx(25 + 25, abs=1)
    it.resize(1, 1.0)
    assert it.own.rate == 100
    tiny = LocalAllowance(0.5, 1, 4, 0.0)
    assert tiny.check(1, 0.0, False) is AdmissionCheck.ADMIT


@pytest.mark.parametrize("seed", range(5))
def test_workers_together_admit_no_more_than_the_bound(seed: int) -> None:
    """All workers together admit at most burst, rate by time, and what each borrows ahead, and leave little unused."""
    chance = random.Random(seed)
    shared = TokenBucket(100.0, 50.0, 0.0)
    workers = [allowance(rate=100.0, full=50.0) for _ in range(3)]
    ahead = sum(worker.ahead for worker in workers)
    admitted = 0
    for step in range(4000):
        now = step / 1000
        worker = chance.choice(workers)
        admission = worker.check(1, now, True)
        if admission is AdmissionCheck.BORROW or (
            admission is AdmissionCheck.ADMIT and worker.available <= worker.ahead / 2
        ):
            requested = worker.borrow_request([1.0] if admission is AdmissionCheck.BORROW else [], now)
            shared.take(-requested.back, now)
            there = int(shared.level(now))
            granted = min(requested.want, there) if there >= requested.least else 0
            shared.take(granted, now)
            worker.granted(granted, 0.01 if granted < requested.want else 0.0, now)
            admission = worker.check(1, now, True)
        if admission is AdmissionCheck.ADMIT:
            worker.take(1, now, True)
            admitted += 1
        assert admitted <= 50 + 100 * now + ahead
    assert admitted >= 50 + 100 * 4 - ahead - 10


# The tokens taken at each time, and the level of a bucket of 10 that gains 2 a second.
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
    """A bucket begins full, may go into debt, takes returned tokens, and gains nothing when the clock goes back."""
    bucket = TokenBucket(2.0, 10.0, 0.0)
    for at, amount in taken:
        bucket.take(amount, at)
    assert bucket.level(now) == pytest.approx(level)


@pytest.mark.parametrize("amount, wait", [(1, 0.0), (8, 0.0), (10, 1.0), (50, 1.0)])
def test_it_tells_when_there_is_enough(amount: float, wait: float) -> None:
    """The wait for more tokens than the bucket holds is the time until it is full."""
    bucket = TokenBucket(2.0, 10.0, 0.0)
    bucket.take(2, 0.0)
    assert bucket.wait(amount, 0.0) == pytest.approx(wait)


def test_it_may_change_its_size() -> None:
    """Tokens beyond a reduced size are dropped."""
    bucket = TokenBucket(2.0, 10.0, 0.0)
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
    """A client that checks before it takes gets at most the bucket's size plus the rate by time."""
    bucket = TokenBucket(rate, full, 0.0)
    now, taken = 0.0, 0
    for pause, amount in steps:
        now += pause
        if bucket.level(now) >= amount:
            bucket.take(amount, now)
            taken += amount
        assert taken <= full + rate * now + 1e-6


def test_a_request_needs_a_slot_that_is_leased() -> None:
    """A request borrows a slot where none is free; if Redis has none, requests are rejected for a moment."""
    slots = ConcurrencySlots(4, 2)
    assert slots.check(0.0, True) is AdmissionCheck.BORROW
    assert slots.borrow_request(2) == 2
    slots.granted(1, 2, 0.0)
    assert slots.check(0.0, True) is AdmissionCheck.ADMIT
    slots.in_use += 1
    assert slots.check(0.01, True) is AdmissionCheck.BORROW
    assert slots.borrow_request(1) == 2
    slots.granted(1, 2, 0.01)
    assert slots.check(0.02, True) is AdmissionCheck.REJECT
    assert slots.check(0.04, True) is AdmissionCheck.BORROW


def test_a_busy_worker_keeps_a_few_at_hand() -> None:
    """A busy worker keeps some slots in reserve: an eighth of the limit in all workers together, none when idle or for
    a small limit."""
    slots = ConcurrencySlots(80, 2)
    assert slots.borrow_request(1) == 1 + 5
    slots.granted(6, 6, 0.0)
    slots.in_use = 1
    assert not slots.has_surplus
    slots.in_use = 0
    assert slots.has_surplus
    assert slots.borrow_request(0) == 5
    assert slots.borrow_request(0, is_idle=True) == 0
    assert slots.held == 0
    assert ConcurrencySlots(4, 2).borrow_request(1) == 1


def test_what_is_given_back_is_used_no_more_before_redis_knows() -> None:
    """Returned slots are unusable from the moment of the request to Redis on."""
    slots = ConcurrencySlots(80, 2)
    slots.granted(6, 6, 0.0)
    slots.in_use = 2
    slots.borrow_request(0, is_idle=True)
    assert slots.check(0.0, True) is AdmissionCheck.BORROW


def test_alone_a_worker_keeps_to_its_share_of_slots() -> None:
    """Without Redis a worker has its share of the slots, and at least one."""
    slots = ConcurrencySlots(4, 2)
    assert [slots.check(0.0, False) for slots.in_use in range(4)] == [
        AdmissionCheck.ADMIT,
        AdmissionCheck.ADMIT,
        AdmissionCheck.REJECT,
        AdmissionCheck.REJECT,
    ]
    slots.resize(9)
    assert [slots.check(0.0, False) for slots.in_use in range(2)] == [AdmissionCheck.ADMIT, AdmissionCheck.REJECT]

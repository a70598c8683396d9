"""What one worker spends of a shared bucket without asking."""

from __future__ import annotations

import random

import pytest

from gateway.limits.local_allowance import Ask, Say, Slack
from gateway.limits.token_bucket import Bucket


def slack(rate: float = 100.0, full: float = 100.0, num_workers: int = 4) -> Slack:
    return Slack(rate, full, num_workers, 0.0)


def test_nothing_is_spent_before_redis_is_asked() -> None:
    """The first request asks for itself alone, and what is granted lets it go."""
    it = slack()
    assert it.say(1, 0.0, True) is Say.ASK
    assert it.ask([1.0], 0.0) == Ask(1, 1, 0)
    it.told(1, 0.0, 0.001)
    assert it.say(1, 0.001, True) is Say.YES
    it.take(1, 0.001, True)
    assert it.say(1, 0.002, True) is Say.ASK


def test_a_busy_worker_borrows_ahead() -> None:
    """What a quarter of a second takes of it, at most a twentieth of the bucket, and asks again at half of it."""
    it = slack(rate=1000, full=1000)
    it.told(16, 0.0, 0.0)
    for _ in range(16):
        it.take(1, 0.1, True)
    assert it.ask([], 0.2) == Ask(20, 0, 0)  # 80 a second
    it.told(20, 0.0, 0.2)
    assert [it.take(1, 0.2, True) for _ in range(12)] == [False] * 10 + [True] * 2
    assert it.ask([], 0.21) == Ask(12, 0, 0)  # too short a time to measure anew
    it.told(12, 0.0, 0.21)
    for _ in range(20):
        it.take(1, 0.22, True)
    assert it.ask([], 0.25) == Ask(50, 0, 0)  # 640 a second


def test_no_worker_has_more_at_hand_than_it_says() -> None:
    """However often it asks: it fills up to so much, not by so much."""
    it = slack(rate=1000, full=1000)
    for step in range(1000):
        now = step / 1000
        if it.say(1, now, True) is Say.ASK:
            it.told(it.ask([1.0], now).want, 0.0, now)
        if it.take(1, now, True):
            it.told(it.ask([], now).want, 0.0, now)
        assert it.allowance <= it.ahead


def test_who_cannot_wait_owes_no_more_than_is_borrowed_ahead() -> None:
    """The messages of a stream go on while Redis is asked, but not for long."""
    it = slack()
    owed = 0
    while it.may_owe(1, 0.0, True):
        it.take(1, 0.0, True)
        owed += 1
    assert owed == 5
    assert it.ask([], 0.0).back == -5


def test_where_redis_has_none_nobody_asks_until_it_has() -> None:
    """Requests are refused at once until then, and read when to come again."""
    it = slack()
    it.ask([1.0], 0.0)
    it.told(0, 0.04, 0.0)
    assert it.say(1, 0.03, True) is Say.NO
    assert it.wait(1, 0.03, True) == pytest.approx(0.01)
    assert it.say(1, 0.041, True) is Say.ASK


def test_what_was_used_beyond_is_owed() -> None:
    """And what was not used is there for the next; what is idle goes back whole."""
    it = slack()
    it.told(10, 0.0, 0.0)
    it.take(10, 0.0, True)
    it.put_back(-5, 0.0, True)
    assert it.say(1, 0.0, True) is Say.ASK
    assert it.ask([1.0], 0.0) == Ask(1, 1, -5)
    it.told(4, 0.0, 0.0)
    it.put_back(2, 0.0, True)
    assert it.ask([], 0.0, is_idle=True) == Ask(0, 0, 6)
    assert it.allowance == 0


def test_alone_a_worker_keeps_to_its_share() -> None:
    """A quarter where four share: never all refused, never unlimited; and it takes up what more or fewer leave."""
    it = slack()
    admitted = 0
    for step in range(1000):
        if it.say(1, step / 1000, False) is Say.YES:
            it.take(1, step / 1000, False)
            admitted += 1
    assert admitted == pytest.approx(25 + 25, abs=1)
    it.resize(1, 1.0)
    assert it.own.rate == 100
    tiny = Slack(0.5, 1, 4, 0.0)
    assert tiny.say(1, 0.0, False) is Say.YES


@pytest.mark.parametrize("seed", range(5))
def test_workers_together_admit_no_more_than_the_bound(seed: int) -> None:
    """Whatever comes to whom: burst, rate by time, and what each has borrowed ahead; and they leave little unused."""
    chance = random.Random(seed)
    shared = Bucket(100.0, 50.0, 0.0)
    workers = [slack(rate=100.0, full=50.0) for _ in range(3)]
    ahead = sum(worker.ahead for worker in workers)
    admitted = 0
    for step in range(4000):
        now = step / 1000
        worker = chance.choice(workers)
        said = worker.say(1, now, True)
        if said is Say.ASK or (said is Say.YES and worker.allowance <= worker.ahead / 2):
            asked = worker.ask([1.0] if said is Say.ASK else [], now)
            shared.take(-asked.back, now)
            there = int(shared.level(now))
            granted = min(asked.want, there) if there >= asked.least else 0
            shared.take(granted, now)
            worker.told(granted, 0.01 if granted < asked.want else 0.0, now)
            said = worker.say(1, now, True)
        if said is Say.YES:
            worker.take(1, now, True)
            admitted += 1
        assert admitted <= 50 + 100 * now + ahead
    assert admitted >= 50 + 100 * 4 - ahead - 10

"""The scripts on a real Redis."""

from __future__ import annotations

import time

import pytest

from gateway.limits.lease_client import BORROW, COUNT, HOLD
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually


def borrow(
    server: RedisServer, rate: float, full: float, want: float, least: float, back: float = 0
) -> tuple[int, int]:
    granted, wait = server.client.eval(BORROW.text, 1, "bucket", rate, full, want, least, back)
    return int(granted), int(wait)


def hold(
    server: RedisServer, limit_key: str, used: int, want: int, sequence: int, *, limit: int = 4, lease: int = 5000
) -> int:
    return int(server.client.eval(HOLD.text, 1, "leases", limit_key, used, want, limit, lease, sequence))


def test_a_bucket_begins_full_and_grants_what_it_has(redis_server: RedisServer) -> None:
    """The first client gets all it wants, the next the rest, and the last the time until more is available."""
    assert borrow(redis_server, 0.01, 10, 6, 1) == (6, 0)
    granted, wait = borrow(redis_server, 0.01, 10, 6, 1)
    assert granted == 4
    assert wait == pytest.approx(100_000, rel=0.01)
    granted, wait = borrow(redis_server, 0.01, 10, 3, 3)
    assert granted == 0
    assert wait == pytest.approx(300_000, rel=0.01)


def test_what_goes_back_is_there_for_others(redis_server: RedisServer) -> None:
    """Returned tokens never overfill the bucket; overspending is a debt, but a bounded one."""
    borrow(redis_server, 0.001, 10, 10, 1)
    assert borrow(redis_server, 0.001, 10, 3, 1, back=3)[0] == 3
    assert borrow(redis_server, 0.001, 10, 100, 1, back=50)[0] == 10
    assert borrow(redis_server, 0.001, 10, 1, 1, back=-5000)[0] == 0
    assert borrow(redis_server, 0.001, 10, 5, 1, back=15)[0] == 5


def test_a_bucket_gains_by_redis_own_clock(redis_server: RedisServer) -> None:
    """A bucket refills by Redis' own clock, and expires some seconds after it is full again."""
    borrow(redis_server, 100, 10, 10, 1)
    assert 5_000 <= redis_server.client.pttl("bucket") <= 10_110
    time.sleep(0.05)
    granted, _ = borrow(redis_server, 100, 10, 10, 1)
    assert 4 <= granted <= 10


def test_slots_are_granted_as_far_as_there_are(redis_server: RedisServer) -> None:
    """A client states the total that it wants to hold; slots in use count in any case."""
    assert hold(redis_server, "a", 0, 3, 1) == 3
    assert hold(redis_server, "b", 0, 3, 2) == 1
    assert hold(redis_server, "a", 1, 1, 3) == 1
    assert hold(redis_server, "b", 0, 3, 4) == 3
    assert hold(redis_server, "c", 2, 2, 5) == 2
    assert hold(redis_server, "c", 0, 2, 6) == 0


def test_an_order_that_comes_late_undoes_no_later_one(redis_server: RedisServer) -> None:
    """The sequence number decides which request is the latest."""
    assert hold(redis_server, "a", 0, 3, 8) == 3
    assert hold(redis_server, "a", 0, 0, 7) == 3
    assert hold(redis_server, "b", 0, 3, 9) == 1


def test_what_a_dead_worker_held_is_free_when_its_lease_ends(redis_server: RedisServer) -> None:
    """The slots of a dead worker are free when its lease ends."""
    assert hold(redis_server, "dead", 4, 4, 1, lease=50) == 4
    assert hold(redis_server, "a", 0, 1, 2) == 0
    eventually(lambda: hold(redis_server, "a", 0, 4, 3) == 4)
    assert set(redis_server.client.hgetall("leases")) == {"a"}


def test_workers_are_counted_as_long_as_they_are_heard_of(redis_server: RedisServer) -> None:
    """A worker that deregisters stops counting at once, and a dead one when its registration expires."""
    client = redis_server.client
    assert [client.eval(COUNT.text, 1, "workers", *granted) for granted in (("a", 5000), ("b", 50), ("a", 5000))] == [
        1,
        2,
        2,
    ]
    eventually(lambda: client.eval(COUNT.text, 1, "workers", "a", 5000) == 1)
    assert client.eval(COUNT.text, 1, "workers", "a", 0) == 0

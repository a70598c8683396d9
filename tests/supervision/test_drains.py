"""Drained endpoints: decided here, received from other replicas, read from Redis."""

import json

from gateway.events.event_types import EndpointDrained
from gateway.supervision.drains import KEY, DrainedSince, Drains

A, B = ("it", "http://a:1"), ("it", "http://b:1")
BY_ME = DrainedSince(17.5, "me")
FIELD_A, FIELD_B = b'["it", "http://a:1"]', b'["it", "http://b:1"]'
TOLD = b'{"since": 17.5, "by": "me"}'


def test_what_is_decided_is_written_once() -> None:
    """A decision takes effect at once, is written with the next read of Redis, and is not written again after Redis has
    replied."""
    drains = Drains()
    drains.decide(A, BY_ME)
    assert drains.drained == {A: BY_ME}
    assert drains.commands() == [("HSET", KEY, FIELD_A.decode(), TOLD.decode()), ("HGETALL", KEY)]
    drains.take({FIELD_A: TOLD}, drains.unwritten())
    assert drains.commands() == [("HGETALL", KEY)]
    assert drains.drained == {A: BY_ME}
    drains.decide(A, None)
    assert drains.drained == {}
    assert drains.commands() == [("HDEL", KEY, FIELD_A.decode()), ("HGETALL", KEY)]


def test_redis_knows_better_but_for_what_was_decided_since() -> None:
    """The state in Redis replaces the local one, except decisions made during the read, which are still to be
    written."""
    drains = Drains()
    drains.apply(EndpointDrained("it", "http://a:1", True, 17.5, "me"))
    requested = drains.unwritten()
    drains.decide(B, BY_ME)
    drains.take({}, requested)
    assert drains.drained == {B: BY_ME}
    assert drains.unwritten() == {B: BY_ME}


def test_what_others_decide_later_counts() -> None:
    """An event from another replica overrides an earlier decision made here."""
    drains = Drains()
    drains.decide(A, BY_ME)
    drains.apply(EndpointDrained("it", "http://a:1", False, 18.0, "other"))
    assert drains.drained == {}
    assert drains.unwritten() == {}


def test_what_cannot_be_read_is_passed_over() -> None:
    """Unreadable fields in the hash are ignored; a value that is not a hash changes nothing."""
    drains = Drains()
    drains.take({b"?": b"1", b"[1]": b"{}", FIELD_A: b"[]", FIELD_B: json.dumps({"since": 1, "by": "x"}).encode()}, {})
    assert drains.drained == {B: DrainedSince(1.0, "x")}
    drains.take(None, {})
    assert drains.drained == {B: DrainedSince(1.0, "x")}

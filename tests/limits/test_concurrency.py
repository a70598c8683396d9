"""Slots for requests at the same time, as one worker holds them."""

from __future__ import annotations

from gateway.limits.concurrency import Slots
from gateway.limits.local_allowance import Say


def test_a_request_needs_a_slot_that_is_leased() -> None:
    """It asks where none is free, and where Redis has none it is refused for a moment."""
    slots = Slots(4, 2)
    assert slots.say(0.0, True) is Say.ASK
    assert slots.ask(2) == 2
    slots.told(1, 2, 0.0)
    assert slots.say(0.0, True) is Say.YES
    slots.in_use += 1
    assert slots.say(0.01, True) is Say.ASK
    assert slots.ask(1) == 2
    slots.told(1, 2, 0.01)
    assert slots.say(0.02, True) is Say.NO
    assert slots.say(0.04, True) is Say.ASK


def test_a_busy_worker_keeps_a_few_at_hand() -> None:
    """An eighth of the limit in all workers together; none where it lies idle, and none of a small limit."""
    slots = Slots(80, 2)
    assert slots.ask(1) == 1 + 5
    slots.told(6, 6, 0.0)
    slots.in_use = 1
    assert not slots.has_surplus
    slots.in_use = 0
    assert slots.has_surplus
    assert slots.ask(0) == 5
    assert slots.ask(0, is_idle=True) == 0
    assert slots.held == 0
    assert Slots(4, 2).ask(1) == 1


def test_what_is_given_back_is_used_no_more_before_redis_knows() -> None:
    """From the moment of asking on."""
    slots = Slots(80, 2)
    slots.told(6, 6, 0.0)
    slots.in_use = 2
    slots.ask(0, is_idle=True)
    assert slots.say(0.0, True) is Say.ASK


def test_alone_a_worker_keeps_to_its_share_of_slots() -> None:
    """At least one."""
    slots = Slots(4, 2)
    assert [slots.say(0.0, False) for slots.in_use in range(4)] == [Say.YES, Say.YES, Say.NO, Say.NO]
    slots.resize(9)
    assert [slots.say(0.0, False) for slots.in_use in range(2)] == [Say.YES, Say.NO]

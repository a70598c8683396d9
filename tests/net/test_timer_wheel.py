"""Deadlines: none is missed or early, cleared ones cost nothing, and no timer runs while none is near."""

import asyncio
import random
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any, cast

import pytest

from gateway.net.timer_wheel import RESOLUTION_SECONDS, Slot, TimerWheel


class Handle:
    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """Virtual time; timers may fire early by as much as a real loop's, whose clock has millisecond resolution."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.num_wakes = 0
        self.early = 0.0
        self._timers: list[tuple[float, int, Handle, Callable[[], None]]] = []
        self._order = count()

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[[], None]) -> Handle:
        handle = Handle()
        heappush(self._timers, (self.now + max(seconds - self.early, 0.0), next(self._order), handle, call))
        return handle

    def run_until(self, end: float) -> None:
        while self._timers and self._timers[0][0] <= end:
            at, _, handle, call = heappop(self._timers)
            if not handle.is_cancelled:
                self.now = max(self.now, at)
                self.num_wakes += 1
                call()
        self.now = end


class Request:
    def __init__(self, loop: Loop, at: float) -> None:
        self._loop = loop
        self.at = at
        self.expired_at: float | None = None

    def expired(self) -> None:
        assert self.expired_at is None
        self.expired_at = self._loop.now


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def wheel(loop: Loop) -> TimerWheel:
    return TimerWheel(cast(asyncio.AbstractEventLoop, loop), loop.time)


@pytest.mark.parametrize("early", [0.0, 0.0009])
def test_deadlines_are_kept_and_cleared_ones_forgotten(loop: Loop, wheel: TimerWheel, early: float) -> None:
    chance = random.Random(7)
    loop.early = early
    requests: list[tuple[Request, Slot]] = []
    cleared: set[int] = set()
    for _ in range(2000):
        request = Request(loop, loop.now + chance.choice((0.0, 0.005, 0.05, 0.7, 30.0)) * chance.random())
        requests.append((request, wheel.add(request, request.at)))
        if chance.random() < 0.7:
            index = chance.randrange(len(requests))
            request, slot = requests[index]
            if request.expired_at is None:
                slot.discard(request)
                cleared.add(index)
        loop.run_until(loop.now + 0.003 * chance.random())
    loop.run_until(loop.now + 60)
    for index, (request, _) in enumerate(requests):
        if index in cleared:
            assert request.expired_at is None
        else:
            assert request.expired_at is not None
            assert request.at <= request.expired_at <= request.at + 2 * RESOLUTION_SECONDS
    assert "0 deadlines in 0 slots" in repr(wheel)


def test_nothing_ticks_while_no_deadline_is_near(loop: Loop, wheel: TimerWheel) -> None:
    slow = Request(loop, loop.now + 600)
    wheel.add(slow, slow.at)
    for number in range(5000):  # short requests in the meantime
        quick = Request(loop, loop.now + 5)
        wheel.add(quick, quick.at).discard(quick)
        loop.run_until(loop.now + 0.01)
        if number % 100 == 0:
            wheel.rest()
    assert loop.num_wakes < 20
    assert len(wheel._slots) < 300  # and their slots are freed
    loop.run_until(loop.now + 600)
    assert slow.expired_at is not None


def test_many_cleared_deadlines_are_forgotten_bit_by_bit(loop: Loop, wheel: TimerWheel) -> None:
    first = Request(loop, loop.now + 1)
    wheel.add(first, first.at)
    for number in range(10_000):
        request = Request(loop, loop.now + 2 + number / 100)
        wheel.add(request, request.at).discard(request)
    last = Request(loop, loop.now + 200)
    wheel.add(last, last.at)
    before = len(wheel._slots)
    loop.run_until(loop.now + 1.05)
    assert first.expired_at is not None
    assert 0 < before - len(wheel._slots) < 1000
    loop.run_until(loop.now + 200)
    assert last.expired_at is not None
    assert not wheel._slots


def test_it_rests_where_all_are_cleared(loop: Loop, wheel: TimerWheel) -> None:
    request = Request(loop, loop.now + 5)
    wheel.add(request, request.at).discard(request)
    wheel.rest()
    loop.run_until(loop.now + 10)
    assert loop.num_wakes == 0
    again = Request(loop, loop.now + 1)
    wheel.add(again, again.at)
    loop.run_until(loop.now + 2)
    assert again.expired_at is not None


def test_a_fault_in_one_request_does_not_stop_the_others(
    loop: Loop, wheel: TimerWheel, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Request):
        def expired(self) -> None:
            raise RuntimeError("a fault")

    broken, sound = Broken(loop, loop.now + 1), Request(loop, loop.now + 2)
    wheel.add(broken, broken.at)
    wheel.add(sound, sound.at)
    loop.run_until(loop.now + 3)
    assert sound.expired_at is not None
    assert "a deadline could not be kept" in caplog.text


def test_one_deadline_may_set_another(loop: Loop, wheel: TimerWheel) -> None:
    class Again(Request):
        def expired(self) -> None:
            super().expired()
            wheel.add(after, after.at)

    after: Any = Request(loop, loop.now + 1.5)
    first = Again(loop, loop.now + 1)
    wheel.add(first, first.at)
    loop.run_until(loop.now + 3)
    assert after.expired_at is not None
    assert after.expired_at >= after.at

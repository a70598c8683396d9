"""Deadlines of many requests at the price of a dict entry each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from heapq import heappop, heappush
from time import monotonic
from typing import Protocol

_log = logging.getLogger("pointsman")

# How late a deadline may be noticed. Ten milliseconds are little beside any time limit on inference.
RESOLUTION_SECONDS = 0.01
# Slots without deadlines that are forgotten at a time: of ten minutes there are 60,000, which must hold nobody up.
_FORGOTTEN_AT_ONCE = 256


class HasDeadline(Protocol):
    """Whoever has a deadline."""

    def expired(self) -> None: ...


Slot = set[HasDeadline]


class TimerWheel:
    """Timers by rounded time: setting and clearing one are a dict lookup and a set operation, and the event loop has
    one timer for all, which rests until the first deadline that somebody still has."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = monotonic) -> None:
        self._loop = loop
        self._clock = clock
        self._slots: dict[int, Slot] = {}  # by the tick at which they are over
        self._ticks: list[int] = []  # the same as a heap
        self._handle: asyncio.TimerHandle | None = None
        self._wakes_at = 0  # the tick for which the handle is

    def __repr__(self) -> str:
        return f"<TimerWheel {sum(map(len, self._slots.values()))} deadlines in {len(self._slots)} slots>"

    def add(self, expiring: HasDeadline, at: float) -> Slot:
        """Call `expired` at this time of the clock, unless it is discarded from the returned slot before."""
        slot = self._slots.get(int(at / RESOLUTION_SECONDS) + 1)
        if slot is not None:  # and so it is to come
            slot.add(expiring)
            return slot
        tick = max(int(at / RESOLUTION_SECONDS), self._now()) + 1
        slot = self._slots.get(tick)
        if slot is None:
            slot = self._slots[tick] = set()
            heappush(self._ticks, tick)
            if self._handle is None or tick < self._wakes_at:
                self._wake_at(tick)
        slot.add(expiring)
        return slot

    def rest(self) -> None:
        """Forget the next slots, as far as their deadlines were all discarded; called about once a second."""
        self._forget_empty()
        if not self._ticks:
            self._stop()

    def _forget_empty(self) -> None:
        ticks = self._ticks
        for _ in range(_FORGOTTEN_AT_ONCE):
            if not ticks or self._slots[ticks[0]]:
                break
            del self._slots[heappop(ticks)]

    def _turn(self) -> None:
        self._handle = None
        now, ticks = self._now(), self._ticks
        while ticks and ticks[0] <= now:
            for expiring in list(self._slots.pop(heappop(ticks))):
                try:
                    expiring.expired()
                except Exception:  # a fault of ours in one request must not leave the others without their deadlines
                    _log.exception("a deadline could not be kept")
        self._forget_empty()
        if ticks:
            self._wake_at(ticks[0])

    def _wake_at(self, tick: int) -> None:
        self._stop()
        self._wakes_at = tick
        seconds = tick * RESOLUTION_SECONDS - self._clock()
        # The loop's clock is coarser: a timer may be early by as much.
        self._handle = self._loop.call_later(max(seconds, 0.0) + 0.001, self._turn)

    def _stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _now(self) -> int:
        return int(self._clock() / RESOLUTION_SECONDS)

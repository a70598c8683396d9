"""Deadlines of many requests, at the cost of a dict entry each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from heapq import heappop, heappush
from time import monotonic
from typing import Protocol

_log = logging.getLogger("pointsman")

# How late a deadline may be noticed: little beside any time limit on inference.
RESOLUTION_SECONDS = 0.01
# Empty slots that are dropped at a time: ten minutes have 60,000, which must not block the event loop.
_DROPPED_AT_ONCE = 256


class HasDeadline(Protocol):
    """An object with a deadline."""

    def expired(self) -> None: ...


Slot = set[HasDeadline]


class TimerWheel:
    """Timers by rounded time: setting and clearing one is a dict lookup and a set operation. The event loop has one
    timer for all, set to the first slot."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = monotonic) -> None:
        self._loop = loop
        self._clock = clock
        self._slots: dict[int, Slot] = {}  # by the tick at which they expire
        self._ticks: list[int] = []  # of `_slots`, as a heap
        self._handle: asyncio.TimerHandle | None = None
        self._wakes_at = 0  # the tick of the handle

    def __repr__(self) -> str:
        return f"<TimerWheel {sum(map(len, self._slots.values()))} deadlines in {len(self._slots)} slots>"

    def add(self, expiring: HasDeadline, at: float) -> Slot:
        """Call `expired` at this time of the clock, unless the object is discarded from the returned slot before."""
        slot = self._slots.get(int(at / RESOLUTION_SECONDS) + 1)
        if slot is not None:  # it is in the future
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
        """Drop the next slots whose deadlines were all discarded; called about once a second."""
        self._drop_empty()
        if not self._ticks:
            self._stop()

    def _drop_empty(self) -> None:
        ticks = self._ticks
        for _ in range(_DROPPED_AT_ONCE):
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
                except Exception:  # an error in one request must not keep the others from expiring
                    _log.exception("a deadline could not be kept")
        self._drop_empty()
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

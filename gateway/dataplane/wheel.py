"""Deadlines of many requests at the price of a dict entry each."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Protocol

# How late a deadline may be noticed. Ten milliseconds are little beside any time limit on inference.
RESOLUTION_SECONDS = 0.01


class Expiring(Protocol):
    """Whoever has a deadline."""

    def expired(self) -> None: ...


Slot = set[Expiring]


class Wheel:
    """Timers by rounded time: setting and clearing one are a dict lookup and a set operation, and the event loop has
    one timer for all. While nobody has a deadline, nothing ticks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slots: dict[int, Slot] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._turned_to = 0  # the last tick whose slot was emptied

    def __repr__(self) -> str:
        return f"<Wheel {sum(map(len, self._slots.values()))} deadlines in {len(self._slots)} slots>"

    def add(self, expiring: Expiring, at: float) -> Slot:
        """Call `expired` at this time of `monotonic`, unless it is discarded from the returned slot before."""
        slot = self._slots.get(int(at / RESOLUTION_SECONDS) + 1)
        if slot is not None:  # and so it is to come
            slot.add(expiring)
            return slot
        tick = max(int(at / RESOLUTION_SECONDS), self._now()) + 1
        slot = self._slots.get(tick)
        if slot is None:
            slot = self._slots[tick] = set()
            if self._handle is None:
                self._turned_to = self._now()
                self._handle = self._loop.call_later(RESOLUTION_SECONDS, self._turn)
        slot.add(expiring)
        return slot

    def _turn(self) -> None:
        since, self._turned_to = self._turned_to, self._now()
        for tick in range(since + 1, self._turned_to + 1):
            for expiring in list(self._slots.pop(tick, ())):
                expiring.expired()
        self._handle = self._loop.call_later(RESOLUTION_SECONDS, self._turn) if self._slots else None

    def rest(self) -> None:
        """Stop ticking where every deadline was discarded; called now and then."""
        if not any(self._slots.values()):
            self._slots.clear()

    def _now(self) -> int:
        return int(monotonic() / RESOLUTION_SECONDS)

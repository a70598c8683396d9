"""Watches how late the event loop is, and tells how many of the lowest priority classes are refused meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from gateway.upstream.engine import Engine

_TICK_SECONDS = 0.1


class LoopLag:
    """`num_shed` rises by one with each tick that is later than `max_seconds`, and falls where one is half as late.
    It stays 0 where `max_seconds` is 0, and until `start`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_seconds: float) -> None:
        self._loop = loop
        self._max_seconds = max_seconds
        self._handle: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self.num_shed = 0
        self.seconds = 0.0  # at the last tick

    def watch_for(self, engines: Iterable[Engine]) -> None:
        """Watch while some of these engines, which are in force from now on, refuse requests of low classes."""
        is_needed = False
        for engine in engines:
            if engine.overload is not None:
                is_needed = True
                engine.overload.use(engine)
        if is_needed:
            self.start()
        else:
            self.stop()

    def start(self) -> None:
        if self._max_seconds and self._handle is None:
            self._schedule(self._loop.time())

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self.num_shed = 0

    def tick(self, lag: float, num_classes: int = 16) -> None:
        """The loop was so many seconds late."""
        self.seconds = lag
        if lag > self._max_seconds:
            self.num_shed = min(self.num_shed + 1, num_classes)
        elif self.num_shed and lag < self._max_seconds / 2:
            self.num_shed -= 1

    def _schedule(self, now: float) -> None:
        self._due_at = now + _TICK_SECONDS
        self._handle = self._loop.call_at(self._due_at, self._turn)

    def _turn(self) -> None:
        now = self._loop.time()
        self.tick(now - self._due_at)
        self._schedule(now)

"""The event loop's time for schedulers: nanoseconds of the monotonic clock, and timers that are never early."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class LoopTimer:
    """One call at a time in the future."""

    __slots__ = ("_callback", "_handle", "_loop", "_when_ns")

    def __init__(self, loop: asyncio.AbstractEventLoop, when_ns: int, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._when_ns = when_ns
        self._callback = callback
        self._handle: asyncio.Handle
        self._wait()

    def cancel(self) -> None:
        self._handle.cancel()

    def _wait(self) -> None:
        remaining_ns = self._when_ns - time.monotonic_ns()
        # uvloop's timers count whole milliseconds; less than that takes a few turns of the loop.
        if remaining_ns > 1_000_000:
            self._handle = self._loop.call_later(remaining_ns / 1e9, self._due)
        else:
            self._handle = self._loop.call_soon(self._due)

    def _due(self) -> None:
        if time.monotonic_ns() >= self._when_ns:
            self._callback()
        else:
            self._wait()


class LoopClock:
    """A scheduler's `Clock` over an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> LoopTimer:
        return LoopTimer(self._loop, when_ns, callback)

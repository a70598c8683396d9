"""The admin API's app, made when it is first needed: its framework takes longer to load than all else of a start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

# A gateway that nobody asks makes the app after this time: a caller in an emergency must not depend on files and
# descriptors that are no longer there.
_IDLE_SECONDS = 30.0


class DeferredApp:
    """Makes the app in a thread, for the first request or some time after `start`, whichever comes first."""

    def __init__(self, make: Callable[[], tuple[ASGIApp, Callable[[], None]]]) -> None:
        """`make` returns the app, and what ends its streams."""
        self._make = make
        self._end: Callable[[], None] | None = None
        self._making: asyncio.Task[ASGIApp] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def start(self, seconds: float = _IDLE_SECONDS) -> None:
        """Make the app after this time, unless it is made before."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._made)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = await asyncio.shield(self._made())
        await app(scope, receive, send)

    def close(self) -> None:
        """End all streams at once."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._end is not None:
            self._end()

    def _made(self) -> asyncio.Task[ASGIApp]:
        """The making, once for all requests; again after one that has failed."""
        making = self._making
        if making is None or (making.done() and making.exception() is not None):
            making = self._making = asyncio.get_running_loop().create_task(self._make_in_thread())
        return making

    async def _make_in_thread(self) -> ASGIApp:
        app, end = await asyncio.to_thread(self._make)
        self._end = end
        if self._is_closed:
            end()
        return app

"""A queue of a call's responses."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from engines.core.calls import InferenceCall
from engines.core.messages import InferResponse, SharedMemory
from engines.host.exchange import Exchange


class ResponseQueue:
    """Collects the responses of a call.

    `is_starting` until the call is submitted: an error before that is the request's, not the model's. `overrun` is
    called once, when more than `max_bytes` wait; later responses are dropped.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, max_bytes: int) -> None:
        self._loop = loop
        self.max_bytes = max_bytes
        self.num_bytes = 0  # that wait
        self.overrun: Callable[[], None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.responses: deque[InferResponse] = deque()
        self.num_responses = 0
        self.is_over = False
        self.is_starting = True
        self.failed_at_once = False
        self.is_gone = False  # the client

    def take(self, response: InferResponse | None, is_final: bool) -> None:
        """The call's sink."""
        if response is not None and self.num_bytes <= self.max_bytes:
            self.num_responses += 1
            self.num_bytes += _size(response)
            self.responses.append(response)
            if self.is_starting and response.error is not None:
                self.failed_at_once = True
            if self.num_bytes > self.max_bytes and self.overrun is not None:
                self.overrun()
        if is_final:
            self.is_over = True
        self._wake()

    async def next(self) -> InferResponse | None:
        """The next response; None at the end, and after the client's disconnect."""
        while not self.responses and not self.is_over and not self.is_gone:
            await self._wait()
        if not self.responses or self.is_gone:
            return None
        response = self.responses.popleft()
        if self.num_bytes <= self.max_bytes:
            self.num_bytes -= _size(response)
        return response

    async def complete(self, call: InferenceCall, exchange: Exchange, watch_after_seconds: float) -> None:
        """Return when the call is over or its client has gone. The client is watched from `watch_after_seconds` on."""
        if self.is_over:
            return
        watch: asyncio.Task[None] | None = None

        def begin() -> None:
            nonlocal watch
            watch = self._loop.create_task(self.watch(call, exchange))

        timer = self._loop.call_later(watch_after_seconds, begin)
        try:
            while not self.is_over and not self.is_gone:
                await self._wait()
        except asyncio.CancelledError:
            call.cancel()
            raise
        finally:
            timer.cancel()
            if watch is not None:
                watch.cancel()

    async def watch(self, call: InferenceCall, exchange: Exchange) -> None:
        """Cancel the call when its client disconnects."""
        await exchange.disconnected()
        if not self.is_over:
            self.is_gone = True
            call.cancel()
            self._wake()

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _size(response: InferResponse) -> int:
    return sum([len(output.data) for output in response.outputs if not isinstance(output.data, SharedMemory)])

"""A queue of a call's responses."""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic_ns

from engines.core.calls import InferenceCall
from engines.core.messages import InferRequest, InferResponse, SharedMemory
from engines.host.exchange import Exchange


class ResponseQueue:
    """Collects the responses of a call, which is cancelled when its client has gone, and when more than `max_bytes`
    wait; later responses are dropped."""

    _num_bytes = 0  # that wait
    _waiter: asyncio.Future[None] | None = None
    is_over = False
    is_gone = False  # the client

    def __init__(self, exchange: Exchange, request: InferRequest, max_bytes: int) -> None:
        self.call = InferenceCall(request, self._take, monotonic_ns())
        self.responses: deque[InferResponse] = deque()
        self._max_bytes = max_bytes
        exchange.when_gone(self._client_gone)

    def _take(self, response: InferResponse | None, is_final: bool) -> None:
        if response is not None and self._num_bytes <= self._max_bytes:
            self._num_bytes += _size(response)
            self.responses.append(response)
            if self._num_bytes > self._max_bytes:
                self.call.cancel()
        if is_final:
            self.is_over = True
        self._wake()

    def _client_gone(self) -> None:
        if not self.is_over:
            self.is_gone = True
            self.call.cancel()
            self._wake()

    async def next(self) -> InferResponse | None:
        """The next response; None at the end, and after the client's disconnect."""
        while not self.responses and not self.is_over and not self.is_gone:
            await self._wait()
        if not self.responses or self.is_gone:
            return None
        response = self.responses.popleft()
        if self._num_bytes <= self._max_bytes:
            self._num_bytes -= _size(response)
        return response

    async def complete(self) -> None:
        """Return when the call is over or its client has gone."""
        while not self.is_over and not self.is_gone:
            await self._wait()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _size(response: InferResponse) -> int:
    return sum([len(output.data) for output in response.outputs if not isinstance(output.data, SharedMemory)])

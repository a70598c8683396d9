"""The limits of a request that is answered by a coroutine."""

from __future__ import annotations

import asyncio
from time import monotonic

from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.snapshot import Lane
from gateway.limits.limiter import Limiter
from gateway.limits.pending import Grant
from gateway.protocol.errors import GatewayError


class Admission:
    """Asks for one request of a lane with limits, which is no generation."""

    __slots__ = ("_answer", "_lane", "_request", "session")

    def __init__(self, request: Request, lane: Lane, session: str | None) -> None:
        self._request = request
        self._lane = lane
        self.session = session
        self._answer: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<Admission to {self._lane!r}>"

    async def ask(self, limiter: Limiter) -> Grant:
        """Wait until the request may go; whoever gets the grant ends it.

        Raises: GatewayError where a limit is reached.
        """
        found = limiter.admit(self._lane.limits, self, monotonic())
        if isinstance(found, Grant):
            return found
        try:
            return await self._answer
        except asyncio.CancelledError:
            found.end()
            if self._answer.done() and not self._answer.cancelled() and self._answer.exception() is None:
                self._answer.result().end()  # it came as nobody waited any more
            raise

    # What the limits ask and tell

    @property
    def route(self) -> str:
        return self._lane.target.route

    def field(self, name: bytes) -> bytes | None:
        return self._request.value(name)

    def expected_tokens(self) -> int:
        return 0

    def admitted(self, grant: Grant) -> None:
        if self._answer.done():
            grant.end()
        else:
            self._answer.set_result(grant)

    def refused(self, error: GatewayError) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)

"""A REST request of a session that this worker has not seen: Redis is asked where it is, and which arm it has."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client, Handler
from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.dispatch.deferred_handler import StandingAside

GoOn = Callable[[Lane, bytes], tuple[Handler, bytes]]


class SessionLookup(StandingAside):
    """Holds the body for as long as Redis takes, a few milliseconds at most, and stands aside."""

    __slots__ = ("_asks", "_ended", "_go_on", "_held", "_is_over", "_lane", "_session")

    def __init__(self, client: Client, request: Request, lane: Lane, session: str, go_on: GoOn) -> None:
        """`go_on` makes the handler for the session's lane, and the body that it takes of the one that has come."""
        super().__init__(client, request)
        self._lane = lane
        self._session = session
        self._go_on = go_on
        self._held: list[bytes] = []
        self._ended = False
        self._asks = False
        self._is_over = False  # the client is gone

    def body_received(self, data: bytes, ended: bool) -> None:
        if self._handler is not None:
            self._handler.body_received(data, ended)
            return
        self._held.append(data)
        self._ended = ended
        if not self._asks:
            self._asks = True
            if self._request.timing is not None:
                self._request.timing.recalls_at = monotonic()
            self._client.plane.keeper.find(self._lane, self._session, self._found)
        if not ended:
            self._client.pause_body()

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        self._is_over = True
        super().client_gone(reason, status)

    def _found(self, lane: Lane) -> None:
        if self._is_over:
            return
        if self._request.timing is not None:
            self._request.timing.recalled(monotonic())
        self._handler, body = self._go_on(lane, b"".join(self._held))
        self._held.clear()
        if not self._ended:
            self._client.resume_body()
        self._handler.body_received(body, self._ended)

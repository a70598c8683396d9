"""A handler that finds out who answers, and stands aside for them."""

from __future__ import annotations

from abc import abstractmethod
from time import monotonic

from gateway.dataplane.context.active_request import Progress, Stage, of_request
from gateway.dataplane.context.error_handler import ErrorHandler
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client, Handler
from gateway.dataplane.context.prepared_head import no_route
from gateway.protocol.errors import GatewayError


class StandingAside:
    """Passes on what the client's connection tells, once `_handler` is set."""

    __slots__ = ("_client", "_handler", "_request", "_started_at")

    def __init__(self, client: Client, request: Request) -> None:
        self._client = client
        self._request = request.timed()
        self._handler: Handler | None = None
        self._started_at = monotonic()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._request.plan!r} {self._handler!r}>"

    @property
    def begun(self) -> bool:
        return self._handler is not None and self._handler.begun

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        handler = self._handler or ErrorHandler(self._client, self._request, no_route(self._request.plan.facts))
        handler.client_gone(reason, status)

    def client_paused(self) -> None:
        if self._handler is not None:
            self._handler.client_paused()

    def client_resumed(self) -> None:
        if self._handler is not None:
            self._handler.client_resumed()

    def sweep(self, now: float) -> None:
        if self._handler is not None:
            self._handler.sweep(now)

    def progress(self) -> Progress:
        if self._handler is not None:
            return self._handler.progress()
        return of_request(self._request, Stage.READING, self._started_at)


class WaitingForWhole(StandingAside):
    """Holds the body until it is whole, and stands aside for whom it then finds by `_answerer`."""

    __slots__ = ("_pieces",)

    def __init__(self, client: Client, request: Request) -> None:
        super().__init__(client, request)
        self._pieces: list[bytes] = []

    def body_received(self, data: bytes, ended: bool) -> None:
        if self._handler is not None:
            self._handler.body_received(data, ended)
            return
        self._pieces.append(data)
        if not ended:
            self._client.expect_body()
            return
        body = b"".join(self._pieces)
        self._pieces.clear()
        try:
            self._handler, body = self._answerer(body)
        except GatewayError as error:
            self._handler = ErrorHandler(self._client, self._request, error)
        self._handler.body_received(body, True)

    @abstractmethod
    def _answerer(self, body: bytes) -> tuple[Handler, bytes]:
        """Who answers the request, and the body that he takes.

        Raises: GatewayError, which the client is told.
        """

"""Handlers that stand in until it is known which handler answers: they hold the body, then pass everything on."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from gateway.dataplane.context.active_requests import Progress, Stage, progress_of
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client, Handler, Serve
from gateway.dataplane.context.local_handler import ErrorHandler
from gateway.dataplane.context.prepared_head import no_route
from gateway.dataplane.context.request_body import RequestBody, decide
from gateway.dataplane.context.snapshot import Lane
from gateway.protocol.errors import GatewayError
from gateway.routing.decision import Decision, Undecided

# The handler of a request, and the body that it takes.
Chosen = tuple[Handler, bytes]


class DeferredHandler(Handler):
    """Passes on the events of the client's connection, once `_handler` is set."""

    __slots__ = ("_client", "_handler", "_request", "_started_at")

    def __init__(self, client: Client, request: Request) -> None:
        self._client = client
        self._request = request.timed()
        self._handler: Handler | None = None
        self._started_at = monotonic()

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
        return progress_of(self._request, Stage.READING, self._started_at)


class BufferingHandler(DeferredHandler):
    """Holds the body until it is whole; then `choose` makes the handler, or raises the GatewayError of the reply."""

    __slots__ = ("_choose", "_pieces")

    def __init__(self, client: Client, request: Request, choose: Callable[[Client, Request, bytes], Chosen]) -> None:
        super().__init__(client, request)
        self._choose = choose
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
            self._handler, body = self._choose(self._client, self._request, body)
        except GatewayError as error:
            self._handler = ErrorHandler(self._client, self._request, error)
        self._handler.body_received(body, True)


class RouteOnBody(DeferredHandler):
    """A request whose lane depends on its body, or on chance: holds the body until the rules decide."""

    __slots__ = ("_body", "_serve")

    def __init__(self, client: Client, request: Request, serve: Serve) -> None:
        super().__init__(client, request)
        self._serve = serve
        self._body = RequestBody(request, client.plane.settings.limits.max_body_bytes)

    def body_received(self, data: bytes, ended: bool) -> None:
        if self._handler is not None:
            self._handler.body_received(data, ended)
            return
        self._body.add(data, ended)
        self._handler = handler = route_on_body(self._client, self._request, self._body, self._serve)
        if handler is None:
            self._client.expect_body()
        else:
            handler.body_received(self._body.held(), ended)


def route_on_body(client: Client, request: Request, body: RequestBody, serve: Serve) -> Handler | None:
    """The handler of a request by what has come of its body; None while more of it must come."""
    plan = request.plan
    try:
        decision = decide(plan, body, client.plane.settings.limits.max_body_bytes)
    except GatewayError as error:
        return ErrorHandler(client, request, error, body)
    if decision is Undecided.NEEDS_BODY:
        return None
    if not isinstance(decision, Decision):
        return ErrorHandler(client, request, no_route(plan.facts), body)
    return serve(client, request, plan.snapshot.lane_of(decision), decision.session)


class SessionLookup(DeferredHandler):
    """A request of a session that this worker has not seen: holds the body while Redis looks up the session's place and
    its arm, a few milliseconds at most."""

    __slots__ = ("_choose", "_ended", "_is_over", "_is_started", "_lane", "_pieces", "_session")

    def __init__(
        self, client: Client, request: Request, lane: Lane, session: str, choose: Callable[[Lane, bytes], Chosen]
    ) -> None:
        """`choose` makes the handler for the session's lane, given the body that has come."""
        super().__init__(client, request)
        self._lane = lane
        self._session = session
        self._choose = choose
        self._pieces: list[bytes] = []
        self._ended = False
        self._is_started = False
        self._is_over = False  # the client is gone

    def body_received(self, data: bytes, ended: bool) -> None:
        if self._handler is not None:
            self._handler.body_received(data, ended)
            return
        self._pieces.append(data)
        self._ended = ended
        if not self._is_started:
            self._is_started = True
            if self._request.timing is not None:
                self._request.timing.recalls_at = monotonic()
            self._client.plane.affinity.find(self._lane, self._session, self._go_on)
        if not ended:
            self._client.pause_body()

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        self._is_over = True
        super().client_gone(reason, status)

    def _go_on(self, lane: Lane) -> None:
        if self._is_over:
            return
        if self._request.timing is not None:
            self._request.timing.recalled(monotonic())
        self._handler, body = self._choose(lane, b"".join(self._pieces))
        self._pieces.clear()
        if not self._ended:
            self._client.resume_body()
        self._handler.body_received(body, self._ended)

"""Handlers that hold the body until it is known which handler answers, then pass everything on to that one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from time import monotonic

from gateway.dataplane.context.active_requests import Progress, Stage, progress_of
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client, Handler, Serve
from gateway.dataplane.context.local_handler import ErrorHandler, ForwardingHandler
from gateway.dataplane.context.prepared_head import check_size, no_route, undecided
from gateway.dataplane.context.request_body import RequestBody
from gateway.dataplane.context.route_target import RouteTarget
from gateway.protocol.errors import GatewayError
from gateway.protocol.json_bounds import SHORT_BYTES
from gateway.protocol.sequence import AnySession
from gateway.routing.decision import Decision, Undecided

# The handler of a request, and the body that it takes.
Chosen = tuple[Handler, bytes]


class DeferredHandler(ForwardingHandler):
    """Holds the body until there is a handler."""

    def __init__(self, client: Client, request: Request) -> None:
        self._client = client
        self._request = request.timed()
        self._body = RequestBody(request, 0)
        self._handler = None
        self._started_at = monotonic()

    def body_received(self, data: bytes, ended: bool) -> None:
        if self._handler is not None:
            self._handler.body_received(data, ended)
            return
        self._body.add(data, ended)
        try:
            chosen = self._chosen()
        except GatewayError as error:
            chosen = ErrorHandler(self._client, self._request, error), self._body.held()
        if chosen is not None:
            self._pass_on(chosen)

    @abstractmethod
    def _chosen(self) -> Chosen | None:
        """The handler; None while it is not known.

        Raises: GatewayError, which is the reply.
        """

    def _pass_on(self, chosen: Chosen) -> None:
        self._handler, body = chosen
        ended = self._body.is_complete
        del self._body  # its memory
        self._handler.body_received(body, ended)

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        handler = self._handler or ErrorHandler(self._client, self._request, no_route(self._request.plan.facts))
        handler.client_gone(reason, status)

    def progress(self) -> Progress:
        if self._handler is not None:
            return self._handler.progress()
        return progress_of(self._request, Stage.READING, self._started_at)


class BufferingHandler(DeferredHandler):
    """`choose` makes the handler from what has come of the body, None while more must come."""

    def __init__(
        self, client: Client, request: Request, choose: Callable[[Client, Request, RequestBody], Chosen | None]
    ) -> None:
        super().__init__(client, request)
        self._choose = choose

    def _chosen(self) -> Chosen | None:
        chosen = self._choose(self._client, self._request, self._body)
        if chosen is None:
            self._client.hold_body()
        return chosen


class LongBodyHandler(ForwardingHandler):
    """Passes a long body on in a turn of the event loop of its own: reading it twice would keep others waiting."""

    def __init__(self, client: Client, handler: Handler) -> None:
        self._loop = client.plane.loop
        self._handler = self._target = handler
        self._is_over = False

    def body_received(self, data: bytes, ended: bool) -> None:
        self._loop.call_soon(self._pass_on, data, ended)

    def _pass_on(self, data: bytes, ended: bool) -> None:
        if not self._is_over:
            self._target.body_received(data, ended)

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        self._is_over = True
        self._target.client_gone(reason, status)

    def progress(self) -> Progress:
        return self._target.progress()


def in_own_turn(client: Client, handler: Handler, size: int) -> Handler:
    """The handler of a body of this size that has been read already."""
    return handler if size <= SHORT_BYTES else LongBodyHandler(client, handler)


def on_whole_body(client: Client, request: Request, choose: Callable[[Client, Request, bytes], Chosen]) -> Handler:
    """The handler that `choose` makes once the body is whole."""

    def choose_or_wait(client: Client, request: Request, body: RequestBody) -> Chosen | None:
        return choose(client, request, body.held()) if body.is_complete else None

    return BufferingHandler(client, request, choose_or_wait)


def route_on_body(client: Client, request: Request, body: RequestBody, serve: Serve) -> Chosen | None:
    """The handler of a request whose target depends on its body, or on chance; None while more of the body must come.

    Raises: GatewayError.
    """
    plan = request.plan
    decision = plan.decide(None, request.session, request.units)
    size = 0
    is_open = plan.snapshot.bounds_bodies and request.length is None and not body.is_complete
    if decision is Undecided.NEEDS_BODY:
        if is_open:  # reading it with each piece would cost its square
            return None
        facts = body.facts(plan.call.operation, client.plane.settings.limits)
        if facts is None:
            return None
        decision, size = plan.decide(facts, request.session, request.units), body.size
    if not isinstance(decision, Decision):
        raise undecided(decision, plan.facts)
    route_target = plan.snapshot.target_of(decision)
    if route_target.spec.max_body_bytes is not None:
        if is_open:
            return None
        check_size(route_target, max(request.length or 0, body.size))
    handler = serve(client, request, route_target, decision.session)
    return in_own_turn(client, handler, size), body.held()


class LookupHandler(DeferredHandler):
    """Holds the body while something is looked up that its head asks for; the client waits meanwhile."""

    def __init__(self, client: Client, request: Request) -> None:
        super().__init__(client, request)
        self._is_started = False
        self._is_over = False  # the client is gone

    @abstractmethod
    def _start(self) -> None:
        """Look it up; `_go_on` follows, unless the client is gone."""

    def _chosen(self) -> Chosen | None:
        if not self._is_started:
            self._is_started = True
            self._start()
        if not self._body.is_complete:
            self._client.pause_body()
        return None

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        self._is_over = True
        super().client_gone(reason, status)

    def _go_on(self, choose: Callable[[bytes], Chosen]) -> None:
        """Pass on to the handler that `choose` makes, given the body that has come."""
        chosen = choose(self._body.held())
        if not self._body.is_complete:
            self._client.resume_body()
        self._pass_on(chosen)


class SessionLookup(LookupHandler):
    """Holds the body of a request of a session that this worker has not seen, while Redis looks up the session's place
    and its arm, a few milliseconds at most."""

    def __init__(
        self,
        client: Client,
        request: Request,
        route_target: RouteTarget,
        session: AnySession,
        choose: Callable[[RouteTarget, bytes], Chosen],
    ) -> None:
        """`choose` makes the handler for the session's target, given the body that has come."""
        super().__init__(client, request)
        self._route_target = route_target
        self._session = session
        self._choose = choose

    def _start(self) -> None:
        if self._request.timing is not None:
            self._request.timing.lookup_at = monotonic()
        self._client.plane.affinity.find(self._route_target, self._session, self._found, self._request)

    def _found(self, route_target: RouteTarget) -> None:
        if self._is_over:
            return
        timing = self._request.timing
        if timing is not None:
            timing.waited += monotonic() - timing.lookup_at
        self._go_on(partial(self._choose, route_target))

"""A REST request of which only its body, or the dice, tell which engine it goes to, where some engines have no REST."""

from __future__ import annotations

from gateway.dataplane.context.error_handler import ErrorHandler
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.prepared_head import no_route
from gateway.dataplane.context.request_body import RequestBody, decide
from gateway.dataplane.dispatch.deferred_handler import StandingAside
from gateway.dataplane.dispatch.serving import serve
from gateway.protocol.errors import GatewayError
from gateway.routing.decision import Decision, Undecided


class Deciding(StandingAside):
    """Asks the rules, then stands aside for the handler that the engine takes."""

    __slots__ = ("_body",)

    def __init__(self, client: Client, request: Request) -> None:
        super().__init__(client, request)
        self._body = RequestBody(request, client.plane.settings.limits.max_body_bytes)

    def body_received(self, data: bytes, ended: bool) -> None:
        if self._handler is not None:
            self._handler.body_received(data, ended)
            return
        body, plan = self._body, self._request.plan
        body.add(data, ended)
        try:
            decision = decide(plan, body, self._client.plane.settings.limits.max_body_bytes)
        except GatewayError as error:
            self._handler = ErrorHandler(self._client, self._request, error)
            self._handler.body_received(body.held(), ended)
            return
        if decision is Undecided.NEEDS_BODY:
            self._client.expect_body()
            return
        if not isinstance(decision, Decision):
            self._handler = ErrorHandler(self._client, self._request, no_route(plan.facts))
        else:
            lane = plan.snapshot.lane_of(decision)
            self._handler = serve(self._client, self._request, lane, decision.session)
        self._handler.body_received(body.held(), ended)

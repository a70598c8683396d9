"""A REST request of which only its body, or the dice, tell which engine it goes to, where some engines have no REST."""

from __future__ import annotations

from gateway.dataplane.body import RequestBody, decide
from gateway.dataplane.plan import no_route
from gateway.dataplane.refusal import Refusal
from gateway.dataplane.request import Request
from gateway.dataplane.seams import Client, Handler
from gateway.dataplane.serving import serve
from gateway.routing.decision import Decision, Undecided


class Deciding:
    """Asks the rules, then stands aside for the handler that the engine takes."""

    __slots__ = ("_body", "_client", "_handler", "_request")

    def __init__(self, client: Client, request: Request) -> None:
        self._client = client
        self._request = request
        self._body = RequestBody(request, client.plane.settings.limits.max_body_bytes)
        self._handler: Handler | None = None

    def __repr__(self) -> str:
        return f"<Deciding {self._request.plan!r} {self._handler!r}>"

    @property
    def begun(self) -> bool:
        return self._handler is not None and self._handler.begun

    def body_received(self, data: bytes, ended: bool) -> None:
        if self._handler is not None:
            self._handler.body_received(data, ended)
            return
        body, plan = self._body, self._request.plan
        body.add(data, ended)
        decision = decide(plan, body, self._client.plane.settings.limits.max_body_bytes)
        if decision is Undecided.NEEDS_BODY:
            self._client.expect_body()
            return
        if not isinstance(decision, Decision):
            self._handler = Refusal(self._client, self._request, no_route(plan.facts))
        else:
            lane = plan.snapshot.lane(decision.target)
            self._handler = serve(self._client, self._request, lane, decision.session)
        self._handler.body_received(body.held(), ended)

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        handler = self._handler or Refusal(self._client, self._request, no_route(self._request.plan.facts))
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

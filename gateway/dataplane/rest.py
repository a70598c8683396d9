"""Who answers a REST request: an engine, the fleet as a whole, or nobody."""

from __future__ import annotations

from gateway.dataplane.bridging.deciding import Deciding
from gateway.dataplane.exchange import Exchange
from gateway.dataplane.fleet import FleetCall
from gateway.dataplane.llm.model_in_body import ModelInBody, answerer
from gateway.dataplane.refusal import Refusal
from gateway.dataplane.request import Request
from gateway.dataplane.seams import Client, Handler
from gateway.dataplane.serving import serve


def handler_of_whole(client: Client, request: Request, body: bytes) -> tuple[Handler, bytes]:
    """The handler of a request whose body is all there, and the body that it takes."""
    if request.plan.call.names_its_model_in_the_body and request.plan.error is None:
        return answerer(client, request, body, serve)
    return handler_for(client, request), body


def handler_for(client: Client, request: Request) -> Handler:
    """The handler of one request."""
    plan = request.plan
    if plan.error is not None:
        return Refusal(client, request, plan.error)
    if plan.is_fleet:
        return FleetCall(client, request)
    if plan.passes:
        return Exchange(client, request)
    if plan.call.names_its_model_in_the_body:
        return ModelInBody(client, request, serve)
    lane = plan.lane
    if lane is None:
        return Exchange(client, request) if plan.snapshot.all_pass(plan.call) else Deciding(client, request)
    return serve(client, request, lane, plan.session)

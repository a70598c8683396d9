"""Who answers a REST request: an engine, the fleet as a whole, or nobody."""

from __future__ import annotations

from gateway.dataplane.bridging.deciding import Deciding
from gateway.dataplane.exchange import Exchange
from gateway.dataplane.fleet import FleetCall
from gateway.dataplane.llm.model_in_body import ModelInBody, answerer
from gateway.dataplane.refusal import Refusal
from gateway.dataplane.request import Request
from gateway.dataplane.seams import Client, Handler
from gateway.dataplane.serving import serve, serve_by
from gateway.protocol.operations import INFERENCE_OPERATIONS


def handler_of_whole(client: Client, request: Request, body: bytes) -> tuple[Handler, bytes]:
    """The handler of a request whose body is all there, and the body that it takes."""
    if request.plan.call.names_its_model_in_the_body and request.plan.error is None:
        return answerer(client, request, body, serve_by)
    return handler_for(client, request), body


def may_name_in_body(request: Request) -> bool:
    """Whether the body may name a session that the head does not."""
    identity = request.plan.snapshot.table.identity
    operation = request.plan.call.operation
    return request.session is None and bool(identity.session_parameters) and operation in INFERENCE_OPERATIONS


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
        return ModelInBody(client, request, serve_by)
    lane = plan.lane
    if lane is None:
        return Exchange(client, request) if plan.snapshot.all_pass(plan.call) else Deciding(client, request)
    if lane.target.asks_session and may_name_in_body(request):
        return Deciding(client, request)
    return serve(client, request, lane, request.session)

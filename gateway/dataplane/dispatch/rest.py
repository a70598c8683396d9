"""Who answers a REST request: an engine, the fleet as a whole, or nobody."""

from __future__ import annotations

from gateway.dataplane.context.error_handler import ErrorHandler
from gateway.dataplane.context.fork import Fork
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client, Handler
from gateway.dataplane.dispatch.model_in_body import ModelInBody, answerer
from gateway.dataplane.dispatch.route_on_body import Deciding
from gateway.dataplane.dispatch.serving import serve, serve_mirrored
from gateway.dataplane.rest.exchange import Exchange
from gateway.dataplane.rest.fleet_operations import FleetOperation
from gateway.protocol.operations import INFERENCE_OPERATIONS
from gateway.protocol.v2_facts import read_parameters

# Of a length that is one.
_MAX_DIGITS = 10


def handler_of_whole(client: Client, request: Request, body: bytes) -> tuple[Handler, bytes]:
    """The handler of a request whose body is all there, and the body that it takes."""
    plan = request.plan
    if plan.call.names_its_model_in_the_body and plan.error is None:
        return answerer(client, request, body, serve_mirrored)
    lane = plan.lane
    if lane is not None and lane.needs_session and plan.encoding is None and _may_name_in_body(request):
        return serve(client, request, lane, _session_in(request, body)), body
    if plan.fork is not None and plan.encoding is None:
        return _at_fork(client, request, body, plan.fork), body
    return handler_for(client, request), body


def _at_fork(client: Client, request: Request, body: bytes, fork: Fork) -> Handler:
    """The handler of a request whose arm its unit chooses."""
    session = request.session
    if fork.needs_session and session is None and _may_name_in_body(request):
        session = _session_in(request, body)
    keeper = client.plane.keeper
    if fork.leads and type(session) is str:  # a Sequence is somewhere only while it goes on
        led = keeper.led(fork, session)
        if led is not None:
            return Exchange(client, request, (led, session))
    lane = fork.lane(session if fork.by_session else request.unit(fork.header))
    if session is None or not lane.needs_session:
        return Exchange(client, request, (lane, None)) if fork.passes else serve(client, request, lane, None)
    if fork.passes:  # as `serve` does, at the price of a look
        kept = keeper.recall(lane, session) if lane.keeps_session else lane
        if kept is not None:
            if fork.leads and type(session) is str:
                keeper.lead(fork, session, kept)
            return Exchange(client, request, (kept, session))
    return serve(client, request, lane, session)


def _may_name_in_body(request: Request) -> bool:
    """Whether the body may name a session that the head does not."""
    snapshot, operation = request.plan.snapshot, request.plan.call.operation
    return request.session is None and bool(snapshot.session_words) and operation in INFERENCE_OPERATIONS


def _session_in(request: Request, body: bytes) -> str | None:
    """The session that a whole body names. Most name none, which is seen without reading them."""
    plan = request.plan
    told = request.json_length
    end = int(told) if told is not None and told.isdigit() and len(told) < _MAX_DIGITS else len(body)
    for word in plan.snapshot.session_words:
        if body.find(word, 0, end) >= 0:
            break
    else:
        return None
    parameters = read_parameters(plan.call.operation, body[:end])
    return plan.snapshot.session_lookup.in_parameters(plan.facts.model, parameters)


def handler_for(client: Client, request: Request) -> Handler:
    """The handler of one request."""
    plan = request.plan
    if plan.error is not None:
        return ErrorHandler(client, request, plan.error)
    if plan.is_fleet:
        return FleetOperation(client, request)
    if plan.passes:
        return Exchange(client, request)
    if plan.call.names_its_model_in_the_body:
        return ModelInBody(client, request, serve_mirrored)
    lane = plan.lane
    if lane is None:
        return Exchange(client, request) if plan.snapshot.all_pass(plan.call) else Deciding(client, request)
    if lane.needs_session and _may_name_in_body(request):
        return Deciding(client, request)
    return serve(client, request, lane, request.session)

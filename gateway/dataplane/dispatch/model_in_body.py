"""A request whose body names the model, as OpenAI's API does: the rules are asked once it is there."""

from __future__ import annotations

from collections.abc import Callable

from gateway.dataplane.context.error_handler import ErrorHandler
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client, Handler
from gateway.dataplane.context.prepared_head import PreparedHead, no_route
from gateway.dataplane.context.request_body import decoded
from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.dispatch.deferred_handler import WaitingForWhole
from gateway.dataplane.dispatch.session_lookup import SessionLookup
from gateway.dataplane.rest.generation_proxy import GenerationExchange
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.model_name import ModelName, find_model, renamed
from gateway.protocol.llm.request_facts import read_generation_facts
from gateway.routing.decision import Decision, Undecided

# What a model may be called; what is remembered of a request holds its name.
_MAX_NAME_LENGTH = 1024

Serve = Callable[[Client, Request, Lane, str | None], Handler]


class ModelInBody(WaitingForWhole):
    """Holds the body until it is whole, asks the rules, and stands aside for the handler that the engine takes."""

    __slots__ = ("_serve",)

    def __init__(self, client: Client, request: Request, serve: Serve) -> None:
        """`serve` makes the handler of a request whose way is known."""
        super().__init__(client, request)
        self._serve = serve

    def _answerer(self, body: bytes) -> tuple[Handler, bytes]:
        return answerer(self._client, self._request, body, self._serve)


def answerer(client: Client, request: Request, body: bytes, serve: Serve) -> tuple[Handler, bytes]:
    """Who answers a request whose body is all there, and the body that goes to them."""
    try:
        return _decided(client, request, body, serve)
    except GatewayError as error:
        return ErrorHandler(client, request, error), body


def answerer_by(client: Client, request: Request, body: bytes, lane: Lane, serve: Serve) -> tuple[Handler, bytes]:
    """Who answers a request that goes this way, whatever the rules say, and the body that goes to them.

    Raises: GatewayError.
    """
    request, body, found = _named(client, request, body)
    return _prepared(client, request, request.plan.for_model(found.name), lane, None, found, body, serve)


def _named(client: Client, request: Request, body: bytes) -> tuple[Request, bytes, ModelName]:
    """The request and its body without coding, and the model that it names.

    Raises: GatewayError.
    """
    plan = request.plan
    if plan.encoding is not None:
        body = decoded(request, body, client.plane.settings.limits.max_body_bytes)
        request = request.of(plan.decoded(), len(body))
    found = find_model(body)
    if found is None:
        what = "the body must be a JSON object that names its 'model' by a string"
        raise GatewayError(ErrorKind.BAD_REQUEST, what)
    if len(found.name) > _MAX_NAME_LENGTH:
        what = f"the model's name is longer than {_MAX_NAME_LENGTH} characters"
        raise GatewayError(ErrorKind.BAD_REQUEST, what)
    return request, body, found


def _decided(client: Client, request: Request, body: bytes, serve: Serve) -> tuple[Handler, bytes]:
    """Raises: GatewayError."""
    request, body, found = _named(client, request.timed(), body)
    plan = request.plan.for_model(found.name)
    lane, session = plan.lane, None
    if lane is None or lane.needs_session:
        lane, session = _asked(plan, request, body)

    def go_on(lane: Lane, body: bytes) -> tuple[Handler, bytes]:
        return _prepared(client, request, plan, lane, session, found, body, serve)

    if session is None or not lane.keeps_session:
        return go_on(lane, body)
    kept = client.plane.keeper.recall(lane, session)
    if kept is None:
        return SessionLookup(client, request, lane, session, go_on), body
    return go_on(kept, body)


def _prepared(
    client: Client,
    request: Request,
    plan: PreparedHead,
    lane: Lane,
    session: str | None,
    found: ModelName,
    body: bytes,
    serve: Serve,
) -> tuple[Handler, bytes]:
    """Who answers a request whose lane is settled, and the body with the model's name there."""
    name = lane.target.model
    if (name is None and found.start >= 0) or not lane.engine.adapter.passes(plan.call):
        request = request.of(plan)
    else:
        body = renamed(body, found, name or found.name)
        request = request.of(plan, len(body))
    if plan.passes:  # the usual case, and known for all requests like this one
        return GenerationExchange(client, request, (lane, session)), body
    return serve(client, request, lane, session), body


def _asked(plan: PreparedHead, request: Request, body: bytes) -> tuple[Lane, str | None]:
    """What the rules say of one request, where its head and its model alone do not tell.

    Raises: GatewayError.
    """
    if plan.error is not None:
        raise plan.error
    decision = plan.decide(None, request.session, request.units)
    if decision is Undecided.NEEDS_BODY:
        decision = plan.decide(read_generation_facts(body), request.session, request.units)
    if not isinstance(decision, Decision):
        raise no_route(plan.facts)
    return plan.snapshot.lane_of(decision), decision.session

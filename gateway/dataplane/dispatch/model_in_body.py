"""Requests whose body names the model, as in OpenAI's API: the rules decide once it has come."""

from __future__ import annotations

from functools import partial

from gateway.config.settings import Limits
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client, Serve
from gateway.dataplane.context.local_handler import ErrorHandler
from gateway.dataplane.context.prepared_head import PreparedHead, check_size, undecided
from gateway.dataplane.context.request_body import decoded
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.dispatch.deferred_handler import Chosen, SessionLookup, in_own_turn, on_whole_body
from gateway.dataplane.rest.exchange import Exchange
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.json_bounds import SHORT_BYTES
from gateway.protocol.llm.cache_salt import SALTED_APIS, salted
from gateway.protocol.llm.model_name import ModelName, find_model, renamed
from gateway.protocol.llm.request_facts import read_generation_facts
from gateway.protocol.principal import tenant_of
from gateway.protocol.sequence import AnySession
from gateway.routing.decision import Decision, Undecided

# The longest name of a model; what is cached of a request holds its name.
_MAX_NAME_LENGTH = 1024


def route_on_model(client: Client, request: Request, body: bytes, serve: Serve, num_sent: int = 0) -> Chosen:
    """The handler of a request whose body is all there, and its body; `serve` makes that of its target. The client sent
    `num_sent` bytes, where these are not the body's."""
    size = num_sent or len(body)
    try:
        if request.plan.encoding is not None:
            request, body = _decoded(client, request, body)
            if len(body) > SHORT_BYTES:  # reading it is another turn's work
                handler = on_whole_body(client, request, partial(route_on_model, serve=serve, num_sent=size))
                return in_own_turn(client, handler, len(body)), body
        request, body, name = _named(client, request.timed(), body)
        plan = request.plan.for_model(name.name)
        route_target, session = plan.route_target, None
        if route_target is None or route_target.needs_session:
            route_target, session = _decided(plan, request, body, client.plane.settings.limits)
        if route_target.spec.max_body_bytes is not None:
            check_size(route_target, size)
        if session is not None and route_target.is_sticky:
            known = client.plane.affinity.lookup_cached(route_target, session, request)
            if known is None:
                choose = partial(_on_target, client, request, plan, session, name, serve)
                return SessionLookup(client, request, route_target, session, choose), body
            route_target = known
        return _on_target(client, request, plan, session, name, serve, route_target, body)
    except GatewayError as error:
        return ErrorHandler(client, request, error), body


def serve_model(client: Client, request: Request, body: bytes, route_target: RouteTarget, serve: Serve) -> Chosen:
    """The handler of a request that goes to this target, whatever the rules say, and the body that it takes.

    Raises: GatewayError.
    """
    request, body, name = _named(client, request, body)
    return _on_target(client, request, request.plan.for_model(name.name), None, name, serve, route_target, body)


def serve_settled(
    client: Client, request: Request, body: bytes, route_target: RouteTarget, session: AnySession | None, serve: Serve
) -> Chosen:
    """The handler of a request that may go to several engines, for this one, and the body that it takes.

    Raises: GatewayError.
    """
    name = find_model(body, client.plane.json_bounds)
    assert name is not None, "its route was found by it"
    return _on_target(client, request, request.plan, session, name, serve, route_target, body, is_settled=True)


def _named(client: Client, request: Request, body: bytes) -> tuple[Request, bytes, ModelName]:
    """The request and its body without coding, and the model that it names.

    Raises: GatewayError.
    """
    if request.plan.encoding is not None:
        request, body = _decoded(client, request, body)
    name = find_model(body, client.plane.json_bounds)
    if name is None:
        what = "the body must be a JSON object that names its 'model' by a string"
        raise GatewayError(ErrorKind.BAD_REQUEST, what)
    if len(name.name) > _MAX_NAME_LENGTH:
        what = f"the model's name is longer than {_MAX_NAME_LENGTH} characters"
        raise GatewayError(ErrorKind.BAD_REQUEST, what)
    return request, body, name


def _decoded(client: Client, request: Request, body: bytes) -> tuple[Request, bytes]:
    """The request and its body without coding. Raises: GatewayError."""
    body = decoded(request, body, client.plane.settings.limits)
    return request.of(request.plan.decoded(), len(body)), body


def _decided(
    plan: PreparedHead, request: Request, body: bytes, limits: Limits
) -> tuple[RouteTarget, AnySession | None]:
    """The target and the session of one request, where its head and its model alone do not decide.

    Raises: GatewayError.
    """
    if plan.error is not None:
        raise plan.error.again()
    decision = plan.decide(None, request.session, request.units)
    if decision is Undecided.NEEDS_BODY:
        facts = read_generation_facts(body, limits.json_bounds)
        decision = plan.decide(facts, request.session, request.units)
    if not isinstance(decision, Decision):
        raise undecided(decision, plan.facts)
    return plan.snapshot.target_of(decision), decision.session


def _on_target(
    client: Client,
    request: Request,
    plan: PreparedHead,
    session: AnySession | None,
    name: ModelName,
    serve: Serve,
    route_target: RouteTarget,
    body: bytes,
    *,
    is_settled: bool = False,
) -> Chosen:
    """The handler of a request for this target, and the body with the model's name there. One that may go to a
    fallback, or passes hooks, stays as it is, unless it `is_settled` which engine gets it."""
    if not is_settled and (route_target.fallbacks is not None or route_target.hooks is not None):
        request = request.of(plan, len(body))
        return in_own_turn(client, serve(client, request, route_target, session), len(body)), body
    model = route_target.spec.model
    if (model is None and name.start >= 0) or not route_target.engine.passes(plan.call):
        request = request.of(plan)
    else:
        body = renamed(body, name, model or name.name)
        request = request.of(plan, len(body))
    if route_target.salts_cache and plan.call.api in SALTED_APIS and route_target.engine.passes(plan.call):
        body = salted(body, tenant_of(plan.principal), client.plane.json_bounds)
        request = request.of(plan, len(body))
    if plan.passes:  # the usual case, and known for all requests like this one
        return Exchange(client, request, route_target, session, is_generation=plan.is_inference), body
    return in_own_turn(client, serve(client, request, route_target, session), len(body)), body

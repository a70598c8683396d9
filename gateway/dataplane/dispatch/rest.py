"""The REST front: which handler answers a request over HTTP.

request                          target, by the rules                         handler
-------------------------------  -----------------------------------------  ---------------------------------------
refused by its head                                                         ErrorHandler
of a token not seen before                                                  VerificationHandler, then as above
about the fleet                                                             FleetOperation
names its model in the body      (`model_in_body` reads it)                 that of the target
about a model                    the head decides                           that of the target
                                 the body or chance decides                 BufferingHandler, then that of the target
                                 each unit has an arm (`ArmSelector`)       that of the arm's target
of a session                     not known to this worker                   SessionLookup, then that of the target

a target, its engine               request                                    handler
-------------------------------  -----------------------------------------  ---------------------------------------
with hooks                                                                  HookedHandler, around that below
with a shadow                                                               MirroringHandler, around that below
with fallbacks                                                              FallbackHandler, around that below
with conversations               text, of a session                         ConversationHandler, or the request with
                                                                            the session for engines that hold it
REST, takes it as it is          tensors                                    Exchange
                                 text                                       Exchange, as a generation
V2's gRPC, takes it as it is                                                RestToGrpcHandler
takes it translated              an inference                               TranslatingHandler, by one of the three
                                                                            above or by GrpcBackendCall
                                 about a model                              ModelDescriptionHandler
no language model's API          a count of tokens                          TokenEstimateHandler
"""

from __future__ import annotations

from functools import cache, partial
from time import monotonic
from typing import TYPE_CHECKING

from gateway.auth.identity import UnverifiedError
from gateway.config.specs import HistorySpec
from gateway.dataplane.attempts.fallback_handler import FallbackHandler
from gateway.dataplane.attempts.hedged_attempts import HedgedAttempts
from gateway.dataplane.attempts.upstream_attempts import UpstreamAttempts
from gateway.dataplane.context.arm_selector import ArmSelector
from gateway.dataplane.context.authenticated_head_reader import AuthenticatedRequest
from gateway.dataplane.context.fallbacks import takes_requests
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client, Handler, Serve
from gateway.dataplane.context.local_handler import ErrorHandler
from gateway.dataplane.context.request_body import RequestBody, declared_json_bytes, document
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.conversation.handler import ConversationHandler
from gateway.dataplane.conversation.session_forwarding import held_by_engine
from gateway.dataplane.dispatch.deferred_handler import (
    BufferingHandler,
    Chosen,
    SessionLookup,
    on_whole_body,
    route_on_body,
)
from gateway.dataplane.dispatch.model_in_body import route_on_model, serve_settled
from gateway.dataplane.dispatch.verification import VerificationHandler
from gateway.dataplane.mirroring.mirroring_handler import mirrored
from gateway.dataplane.protocol_bridge.rest_to_grpc import RestToGrpcHandler
from gateway.dataplane.rest.exchange import Exchange
from gateway.dataplane.rest.fallback_exchange import FallbackExchange, ReplaceableClient
from gateway.dataplane.rest.fleet_operations import FleetOperation
from gateway.dataplane.rest.renamed_regions import has_names, with_names_at_engine
from gateway.dataplane.translation.grpc_backend import GrpcBackendCall
from gateway.dataplane.translation.model_description import ModelDescriptionHandler
from gateway.dataplane.translation.token_estimate_handler import TokenEstimateHandler
from gateway.dataplane.translation.translation import TranslatingHandler
from gateway.dataplane.translation.translators import translator_for
from gateway.net.http1_client import Http1ClientConnection
from gateway.protocol.errors import GatewayError
from gateway.protocol.operations import INFERENCE_OPERATIONS, OF_TEXT, OF_V2, LlmApi, Operation
from gateway.protocol.sequence import AnySession, Sequence, id_of
from gateway.protocol.v2_facts import read_body_facts, read_parameters

if TYPE_CHECKING:
    from gateway.dataplane.hooks.hooked_handler import HookedHandler

# The APIs of engines that are the client's own bytes, where the target passes them.
_V2_APIS = (None, *OF_V2)
# The APIs of engines for tensors.
_TENSOR_APIS = (None, LlmApi.INFER, LlmApi.INFER_STREAM)

_TEXT_INPUT = "text_input"


# By the request


def handler_of_whole(client: ReplaceableClient, request: Request, body: bytes) -> Chosen:
    """The handler of a request whose body is all there, and the body that it takes."""
    plan = request.plan
    if plan.direct_target is not None:
        return Exchange(client, request, plan.direct_target, None), body
    if plan.attended_target is not None and (exchange := _attended(client, request, body, plan.attended_target)):
        return exchange, body
    if plan.error is None:
        if plan.may_name_region:
            try:
                request, body = with_names_at_engine(client, request, body)
            except GatewayError as error:
                return ErrorHandler(client, request, error), body
        if plan.call.names_its_model_in_the_body:
            return route_on_model(client, request, body, serve_mirrored)
        route_target, selector = plan.route_target, plan.arm_selector
        try:
            if (
                route_target is not None
                and route_target.needs_session
                and plan.encoding is None
                and _body_may_name_session(request)
            ):
                return serve(client, request, route_target, _session_in_body(client, request, body)), body
            if selector is not None and plan.encoding is None:
                return _on_arm(client, request, body, selector), body
            if route_target is None and not plan.is_fleet:
                whole = RequestBody(request, len(body))
                whole.add(body, True)
                chosen = route_on_body(client, request.timed(), whole, serve)
                if chosen is not None:
                    return chosen
        except GatewayError as error:
            return ErrorHandler(client, request, error), body
    return handler_for(client, request, plan.may_name_region), body


def _attended(client: ReplaceableClient, request: Request, body: bytes, target: RouteTarget) -> Exchange | None:
    """The handler of a request whose target has hedging or fallbacks; None where it needs more than mostly."""
    is_hedged = target.is_hedged(request.plan.call)
    attempts_type: type[UpstreamAttempts[Http1ClientConnection]] = HedgedAttempts if is_hedged else UpstreamAttempts
    if target.fallbacks is None:
        return Exchange(client, request, target, None, attempts_type=attempts_type)
    if len(body) > client.plane.settings.limits.retry_body_bytes or not takes_requests(target.engine, monotonic()):
        return None
    return FallbackExchange(client, request, target, body, _serve_one, attempts_type)


def handler_for(client: Client, request: Request, has_engine_names: bool = False) -> Handler:
    """The handler of a request whose body comes in pieces; `has_engine_names`: it names regions as engines do."""
    plan = request.plan
    route_target = plan.route_target
    if plan.error is not None:
        if isinstance(plan.error, UnverifiedError) and isinstance(request, AuthenticatedRequest):
            return VerificationHandler(client, request, plan.error, handler_for)
        return ErrorHandler(client, request, plan.error)
    if plan.is_fleet:
        return FleetOperation(client, request)
    if route_target is not None and plan.passes:
        return Exchange(client, request, route_target, None)
    if plan.may_name_region and not has_engine_names:
        return BufferingHandler(client, request, _with_engine_names)
    if plan.call.names_its_model_in_the_body:
        return on_whole_body(client, request, partial(route_on_model, serve=serve_mirrored))
    if route_target is None or (route_target.needs_session and _body_may_name_session(request)):
        return BufferingHandler(client, request, partial(route_on_body, serve=serve))
    return serve(client, request, route_target, request.session)


def _with_engine_names(client: Client, request: Request, body: RequestBody) -> Chosen | None:
    if not has_names(request, body):
        return None
    request, held = with_names_at_engine(client, request, body.held())
    return handler_for(client, request, has_engine_names=True), held


def _on_arm(client: Client, request: Request, body: bytes, selector: ArmSelector) -> Handler:
    """The handler of a request whose arm its unit chooses."""
    session: AnySession | None = request.session
    if selector.needs_session and session is None and _body_may_name_session(request):
        session = _session_in_body(client, request, body)
    affinity = client.plane.affinity
    if selector.is_sticky and type(session) is str:  # a sequence has a place only until it ends
        routed = affinity.routed(selector, session)
        if routed is not None:
            return Exchange(client, request, routed, session)
    if not selector.by_session:
        unit = request.unit(selector.header)
    else:
        unit = session.id if isinstance(session, Sequence) else session
    route_target = selector.route_target(unit)
    if session is None or not route_target.needs_session:
        return (
            Exchange(client, request, route_target, None)
            if selector.passes
            else serve(client, request, route_target, None)
        )
    if selector.passes:  # as `serve` does, without its checks
        known = affinity.lookup_cached(route_target, session, request) if route_target.is_sticky else route_target
        if known is not None:
            if selector.is_sticky and type(session) is str:
                affinity.route(selector, session, known)
            return Exchange(client, request, known, session)
    return serve(client, request, route_target, session)


def _body_may_name_session(request: Request) -> bool:
    """Whether the body may name a session that the head does not."""
    snapshot, operation = request.plan.snapshot, request.plan.call.operation
    return request.session is None and bool(snapshot.session_words) and operation in INFERENCE_OPERATIONS


def _session_in_body(client: Client, request: Request, body: bytes) -> AnySession | None:
    """The session that a whole body names. Most name none, which a search shows without parsing.

    Raises: GatewayError(BODY_TOO_LARGE) where it has too many values.
    """
    plan = request.plan
    end = request.json_bytes
    for word in plan.snapshot.session_words:
        if body.find(word, 0, end) >= 0:
            break
    else:
        return None
    parameters = read_parameters(plan.call.operation, body[:end], client.plane.json_bounds)
    return plan.snapshot.session_lookup.in_parameters(plan.facts.model, parameters, plan.principal)


# By the target


def serve(client: Client, request: Request, route_target: RouteTarget, session: AnySession | None) -> Handler:
    """The handler of a request that the rules send to this target; its session may have it in another."""
    known = (
        client.plane.affinity.lookup_cached(route_target, session, request)
        if session is not None and route_target.is_sticky
        else route_target
    )
    if known is not None:
        return serve_mirrored(client, request, known, session)
    assert session is not None
    request = request.timed()
    return SessionLookup(client, request, route_target, session, partial(_serve_known, client, request, session))


def _serve_known(
    client: Client, request: Request, session: AnySession, route_target: RouteTarget, body: bytes
) -> Chosen:
    return serve_mirrored(client, request, route_target, session), body


def serve_mirrored(client: Client, request: Request, route_target: RouteTarget, session: AnySession | None) -> Handler:
    """The handler of a client's own request for this target, and for its route's hooks and shadow."""
    if route_target.is_plain:
        return serve_target(client, request, route_target, session)
    if route_target.hooks is not None:
        return _serve_hooked(client, request, route_target, session, _serve_unhooked)
    return _serve_unhooked(client, request, route_target, session)


def serve_message(client: Client, request: Request, route_target: RouteTarget, session: AnySession | None) -> Handler:
    """The handler of one message of a stream, whose answers no shadow compares."""
    if route_target.hooks is not None:
        return _serve_hooked(client, request, route_target, session, serve_with_fallbacks)
    return serve_with_fallbacks(client, request, route_target, session)


def _serve_hooked(
    client: Client, request: Request, route_target: RouteTarget, session: AnySession | None, serve: Serve
) -> Handler:
    return _hooked_handler_type()(client, request, route_target, session, partial(_serve_changed, serve))


@cache
def _hooked_handler_type() -> type[HookedHandler]:
    from gateway.dataplane.hooks.hooked_handler import HookedHandler  # rules without hooks load none of it

    return HookedHandler


def _serve_changed(
    serve: Serve, client: Client, request: Request, body: bytes, route_target: RouteTarget, session: AnySession | None
) -> Chosen:
    """The handler of a request that has passed hooks, and the body that it takes."""
    may_fall_back = route_target.fallbacks is not None and not isinstance(session, Sequence)
    if may_fall_back or request.plan.call.api in _V2_APIS:
        return serve(client, request, route_target, session), body
    return serve_settled(client, request, body, route_target, session, serve)


def _serve_unhooked(client: Client, request: Request, route_target: RouteTarget, session: AnySession | None) -> Handler:
    """The handler of a request that has passed its route's hooks."""
    if route_target.shadow is None:
        return serve_with_fallbacks(client, request, route_target, session)
    return mirrored(client, request, route_target, session, serve_with_fallbacks)


def serve_with_fallbacks(
    client: Client, request: Request, route_target: RouteTarget, session: AnySession | None
) -> Handler:
    """The handler of a request for this target or its fallbacks; a sequence stays where it is."""
    if route_target.fallbacks is None or isinstance(session, Sequence):
        return serve_target(client, request, route_target, session)
    return FallbackHandler(client, request, route_target, session, _serve_one)


def _serve_one(
    client: Client, request: Request, body: bytes, route_target: RouteTarget, session: AnySession | None
) -> Chosen:
    """The handler of a request that may go to several engines, for this one, and the body that it takes."""
    if request.plan.call.api in _V2_APIS:
        return serve_target(client, request, route_target, session), body
    return serve_settled(client, request, body, route_target, session, serve_target)


def serve_target(client: Client, request: Request, route_target: RouteTarget, session: AnySession | None) -> Handler:
    """The handler of a request for this target and no other."""
    plan = request.plan
    passes = plan.passes_if_kept if route_target is plan.route_target else plan.leading(route_target).passes
    if passes and plan.call.api in _V2_APIS:
        return Exchange(client, request, route_target, session)
    history = route_target.spec.history
    if session and history is not None and plan.call.api in OF_TEXT and plan.is_inference:
        return _serve_session(client, request, route_target, session, history)
    return _serve_request(client, request, route_target, session)


def _serve_request(client: Client, request: Request, route_target: RouteTarget, session: AnySession | None) -> Handler:
    """The handler of a request by itself, apart from its conversation."""
    engine, call = route_target.engine, request.plan.call
    passes, backend = engine.passes(call), _backend(route_target)
    if engine.speaks_rest:
        reads_reply = call.operation in INFERENCE_OPERATIONS and (route_target.spec.resume or engine.spec.always_stream)
        if request.json_length is not None and not engine.spec.protocol.traits.takes_binary_tensors:
            passes, backend = False, Exchange
        elif passes and (not reads_reply or call.api is LlmApi.EMBEDDINGS):
            is_generation = call.api not in _V2_APIS and request.plan.is_inference
            backend = _generation if is_generation else _hedged if route_target.is_hedged(call) else Exchange
        else:
            passes = False
    if passes and backend is not GrpcBackendCall:
        return backend(client, request, route_target, session)
    if call.operation is Operation.COUNT_TOKENS and not engine.spec.protocol.traits.has_dialects:
        return TokenEstimateHandler(client, request, route_target)
    if call.operation not in INFERENCE_OPERATIONS and call.operation is not Operation.COUNT_TOKENS:
        return ModelDescriptionHandler(client, request, route_target)
    return TranslatingHandler(client, request, route_target, session, translator_for(call, route_target), backend)


def _backend(route_target: RouteTarget) -> Serve:
    """The handler that sends a translated request to the target's engine."""
    if route_target.engine.speaks_rest:
        return _by_rest
    return RestToGrpcHandler if route_target.engine.speaks_grpc else GrpcBackendCall


def _by_rest(client: Client, request: Request, route_target: RouteTarget, session: AnySession | None) -> Handler:
    """A repeated request does no harm where it is for text, or where a client of OpenAI's API wants vectors; it may do
    harm where a client of V2 wants an inference."""
    plan = request.plan
    is_inference = plan.call.api in _TENSOR_APIS and plan.api in _V2_APIS
    is_generation = not is_inference and plan.is_inference
    return Exchange(client, request, route_target, session, is_generation=is_generation)


_generation: Serve = partial(Exchange, is_generation=True)
_hedged: Serve = partial(Exchange, attempts_type=HedgedAttempts)


# Conversations


def _serve_session(
    client: Client, request: Request, route_target: RouteTarget, session: AnySession, history: HistorySpec
) -> Handler:
    """The handler of a request that may be part of a conversation; an infer depends on its body."""
    if not history.engine_holds_state and request.plan.call.api is not LlmApi.INFER:
        return ConversationHandler(client, request, route_target, session, history, _backend(route_target))

    def choose(client: Client, request: Request, body: bytes) -> Chosen:
        plain = document(request, body, client.plane.settings.limits)
        if history.engine_holds_state:
            request, body = held_by_engine(request, plain, route_target, id_of(session), history.session_field)
        elif _is_text(request, plain):
            return ConversationHandler(client, request, route_target, session, history, _backend(route_target)), body
        return _serve_request(client, request, route_target, session), body

    return on_whole_body(client, request, choose)


def _is_text(request: Request, body: bytes) -> bool:
    """Whether an infer is one of text, as a language model behind V2 takes it."""
    facts = read_body_facts(Operation.INFER, body[: declared_json_bytes(request.json_length, len(body))])
    return any(tensor.name == _TEXT_INPUT and tensor.datatype == "BYTES" for tensor in facts.inputs)

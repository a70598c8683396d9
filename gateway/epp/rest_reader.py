"""Reads requests over HTTP: V2's REST, OpenAI's and Anthropic's APIs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.prepared_head import PreparedHead, check_size, undecided
from gateway.dataplane.context.request_body import RequestBody, decoded
from gateway.dataplane.context.route_target import RouteTarget
from gateway.epp.interfaces import Routing, any_server, not_passed
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.ext_proc import HeaderField
from gateway.protocol.llm.cache_salt import SALTED_APIS, salted
from gateway.protocol.llm.model_name import ModelName, find_model, renamed
from gateway.protocol.llm.request_facts import prompt_of_json, read_generation_facts
from gateway.protocol.operations import OF_V2, LlmApi
from gateway.protocol.principal import tenant_of
from gateway.protocol.request_urgency import Urgency, urgency_of
from gateway.protocol.sequence import AnySession
from gateway.protocol.v2_facts import BodyFacts
from gateway.routing.decision import Decision, Undecided

_MAX_NAME_LENGTH = 1024
# Written above, or of a connection alone.
_LEFT_OUT = frozenset(
    {b":method", b":path", b":authority", b":scheme", b":protocol", b"host", b"cookie", b"transfer-encoding", b"expect"}
)
_CODING = b"content-encoding"


class RestReader:
    """One request; see `RequestReader`."""

    over_grpc = False

    def __init__(
        self, plane: DataPlane, fields: Sequence[HeaderField], named: Mapping[bytes, bytes], *, has_body: bool
    ) -> None:
        """`named` has the first of the fields of each name.

        Raises: GatewayError(BAD_REQUEST) where the head is malformed.
        """
        self._plane = plane
        self._request = request = plane.read.of_fields(*_head_of(fields, named, has_body=has_body))
        self._body = RequestBody(request, 0)
        self._body.is_complete = not has_body
        self._rewritten: bytes | None = None
        self._max_bytes: int | None = None  # the route's own bound

    @property
    def api(self) -> LlmApi | None:
        return self._request.plan.api

    @property
    def size(self) -> int:
        return self._body.size

    @property
    def passes_unseen(self) -> bool:
        return self._max_bytes is None

    def add(self, data: bytes, ended: bool) -> None:
        self._body.add(data, ended)

    def route(self) -> Routing | None:
        plan = self._request.plan
        if plan.error is not None:
            raise plan.error.again()
        if plan.call.names_its_model_in_the_body:
            return self._route_by_body() if self._body.is_complete else None
        if plan.is_fleet and plan.route_target is None:
            is_v2 = plan.call.api is None or plan.call.api in OF_V2
            target = any_server(plan.snapshot, plan.call.operation, is_v2=is_v2, over_grpc=False)
            return Routing(target, is_inference=False)
        decision = self._decided(plan, lambda: self._body.facts(plan.call.operation, self._plane.settings.limits))
        if decision is None:
            return None
        route_target, session = decision
        routing = self._routing(plan, route_target, session, plan.call.model or "")
        if routing.is_inference and route_target.engine.prefixes is not None:
            if not self._body.is_complete:
                return None
            routing.prompt = prompt_of_json(self._body.held())
        return routing

    def take(self) -> bytes:
        data = self._body.held() if self._rewritten is None else self._rewritten
        self._body = RequestBody(self._request, 0)  # its memory
        self._body.size = len(data)
        return data

    def pass_on(self, data: bytes, ended: bool) -> bytes:
        self._body.size += len(data)
        if self._max_bytes is not None and self._body.size > self._max_bytes:
            raise self._request.plan.body_too_long(self._plane.settings.limits)
        return data

    def field(self, name: bytes) -> bytes | None:
        return self._request.value(name)

    def urgency(self) -> Urgency:
        api = self._request.plan.call.api
        return urgency_of(self._body.held(), is_v2=api is None or api in OF_V2)

    # Deciding

    def _route_by_body(self) -> Routing:
        request, bounds = self._request, self._plane.json_bounds
        limits = self._plane.settings.limits
        body = decoded(request, self._body.held(), limits)
        name = find_model(body, bounds)
        if name is None:
            what = "the body must be a JSON object that names its 'model' by a string"
            raise GatewayError(ErrorKind.BAD_REQUEST, what)
        if len(name.name) > _MAX_NAME_LENGTH:
            what = f"the model's name is longer than {_MAX_NAME_LENGTH} characters"
            raise GatewayError(ErrorKind.BAD_REQUEST, what)
        plan = request.plan.for_model(name.name)
        decision = self._decided(plan, lambda: read_generation_facts(body, limits.json_bounds))
        assert decision is not None
        route_target, session = decision
        routing = self._routing(plan, route_target, session, name.name)
        routing.prompt = prompt_of_json(body)
        self._rewrite(routing, plan, body, name)
        return routing

    def _rewrite(self, routing: Routing, plan: PreparedHead, body: bytes, name: ModelName) -> None:
        """Write the model's name at the engine into the body, where that is another, or readers may differ about it."""
        target = routing.route_target
        after = body
        if target.spec.model is not None or not name.is_sure:
            after = renamed(body, name, target.spec.model or name.name)
        if target.salts_cache and plan.call.api in SALTED_APIS:
            after = salted(after, tenant_of(plan.principal), self._plane.json_bounds)
        if after is not body:
            self._rewritten = after
            routing.is_rewritten = True
            if plan.encoding is not None:
                routing.removed = (_CODING,)

    def _decided(
        self, plan: PreparedHead, facts: Callable[[], BodyFacts | None]
    ) -> tuple[RouteTarget, AnySession | None] | None:
        """The target and the session; None while more of the body must come. Raises: GatewayError."""
        if plan.error is not None:
            raise plan.error.again()
        if plan.route_target is not None and not plan.route_target.needs_session:
            self._check_size(plan.route_target)
            return plan.route_target, None
        request = self._request
        decision = plan.decide(None, request.session, request.units)
        if decision is Undecided.NEEDS_BODY:
            read = facts()
            if read is None:
                return None
            decision = plan.decide(read, request.session, request.units)
        if not isinstance(decision, Decision):
            raise undecided(decision, plan.facts)
        route_target, session = plan.snapshot.target_of(decision), decision.session
        self._check_size(route_target)
        if session is not None and route_target.is_sticky:
            route_target = (
                self._plane.affinity.lookup_cached(route_target, session, request, sets_pin=False) or route_target
            )
        return route_target, session

    def _check_size(self, route_target: RouteTarget) -> None:
        self._max_bytes = route_target.spec.max_body_bytes
        check_size(route_target, max(self._request.length or 0, self._body.size))

    def _routing(
        self, plan: PreparedHead, route_target: RouteTarget, session: AnySession | None, model: str
    ) -> Routing:
        engine, call, own = route_target.engine, plan.call, plan.head.target
        if not engine.speaks_rest or not engine.passes(call):
            raise not_passed(route_target, f"what {own.partition(b'?')[0].decode('latin-1')} asks in")
        target = engine.target(call, own, route_target.spec.model)
        return Routing(
            route_target,
            session,
            (route_target.spec.model or model, call.version or ""),
            is_inference=plan.is_inference,
            path=target if target != own else None,
        )


def _head_of(
    fields: Sequence[HeaderField], named: Mapping[bytes, bytes], *, has_body: bool
) -> tuple[bytes, bytes, list[HeaderField]]:
    """The request's method, target and fields, as readers of HTTP/1.1's heads have them."""
    if b":method" not in named or b":path" not in named:
        raise GatewayError(ErrorKind.BAD_REQUEST, "the proxy sends no :method and :path")
    rest = [(b"host", named.get(b":authority") or named.get(b"host") or b"")]
    if b"cookie" in named:  # which HTTP/2 may split
        rest.append((b"cookie", b"; ".join([value for name, value in fields if name == b"cookie"])))
    rest += [field for field in fields if field[0] not in _LEFT_OUT]
    if has_body and b"content-length" not in named:
        rest.append((b"transfer-encoding", b"chunked"))
    return named[b":method"], named[b":path"], rest

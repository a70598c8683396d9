"""A REST head with all that can be decided and prepared before its body comes."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from copy import copy
from dataclasses import replace
from typing import NamedTuple

from gateway.auth.forwarded_certificate import FORWARDED_CERTIFICATE
from gateway.auth.identity import unauthenticated
from gateway.config.settings import Limits, Settings
from gateway.dataplane.context.arm_selector import ArmSelector, arm_selector_of
from gateway.dataplane.context.field_checks import find_refusal
from gateway.dataplane.context.local_replies import OF_ROUTE, body_too_long
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.context.server_timing import REQUEST_FIELD
from gateway.dataplane.context.snapshot import Snapshot
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.feedback import rater_of
from gateway.protocol.operations import (
    FLEET_OPERATIONS,
    INFERENCE_OPERATIONS,
    OF_V2,
    ApiCall,
    LlmApi,
    Operation,
    ambiguous_path,
    read_path,
)
from gateway.protocol.principal import KEY_FIELD, Principal, tenant_of
from gateway.protocol.remembered_names import NameHolder
from gateway.protocol.sequence import read_name, read_text, session_reader
from gateway.routing.assignment import Forced
from gateway.routing.decision import BodyFacts, Decision, Facts, Undecided
from gateway.upstream.engine import Engine
from gateway.wire.content_codec import joined_coding
from gateway.wire.http1.head import Field, RequestHead

# Written for each hop.
_REWRITTEN = frozenset({b"content-length", b"expect", b"x-request-id", REQUEST_FIELD})
# Accepted from trusted proxies only: where a request comes from, by whom, and that it is mirrored.
FORWARDED = frozenset(
    {
        *(b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"forwarded", FORWARDED_CERTIFICATE),
        b"x-pointsman-shadow",
    }
)

VIA = b"1.1 pointsman"

_ENCODING = b"content-encoding"
# What a plan of one model takes beside its fields, which it has up to three times.
_PLAN_BYTES = 2048
# Paths whose errors have the shape of OpenAI's or Anthropic's, even where nothing is there.
_OPENAI_PATHS = "/v1/"
_ANTHROPIC_PATHS = "/v1/messages"


_NO_CALL = ApiCall(Operation.SERVER_LIVE, ())  # where the path names nothing


class UpstreamHead(NamedTuple):
    """The head for the engine of a target: the request line, the fields; `passes`: whatever the body."""

    opening: bytes
    lines: bytes
    passes: bool


class PreparedHead:
    """A head and what follows from it; immutable, since all requests with the same head share it.

    Where the head alone decides, `route_target` and `opening` (the request line for the engine) are set; otherwise
    `decide` decides on each request. `error` is set where the head names nothing that exists. `request_line` is the
    client's method and path, also where `head` is the gateway's own; `api` is that of error replies.
    """

    __slots__ = (
        "_leading",
        "_models",
        "_name_holder",
        "_named",
        "_trust_forwarded",
        "api",
        "arm_selector",
        "attended_target",
        "call",
        "calls",
        "direct_target",
        "encoding",
        "error",
        "facts",
        "head",
        "hook_facts",
        "is_fleet",
        "is_inference",
        "json_length",
        "keeps_forwarded_proto",
        "length_line",
        "lines",
        "max_body_bytes",
        "may_name_region",
        "opening",
        "passes",
        "passes_if_kept",
        "principal",
        "rater",
        "read_session",
        "request_id",
        "request_line",
        "route_target",
        "snapshot",
        "translated",
        "wants_timing",
        "without_body",
    )

    def __init__(
        self,
        head: RequestHead,
        snapshot: Snapshot,
        settings: Settings,
        protocol: str = "rest",
        principal: Principal | None = None,
    ) -> None:
        """`protocol` is what the client speaks, as rules name it."""
        self.snapshot = snapshot
        self.head = head
        self.principal = principal  # the verified caller; None where the rules have no `auth:`, or of an anonymous one
        self.read_session: Callable[[bytes], str] = read_name  # the name in a field
        self.rater = b""  # of the replies: see `rater_of`
        if snapshot.identification is not None:
            tenant = tenant_of(principal)
            self.read_session, self.rater = session_reader(tenant), rater_of(tenant)
            if principal is not None:
                head.fields = snapshot.identification.with_tenant(head.fields, principal)
        self._named = named = self._by_name(head.fields)
        self.request_line = (head.method, _without_values(head.target.decode("latin-1")))
        self.encoding: bytes | None = None  # of the body, `identity` left out
        if _ENCODING in named:
            self.encoding = joined_coding([value for name, value in head.fields if name == _ENCODING]) or None
        self.keeps_forwarded_proto = settings.trust_forwarded and b"x-forwarded-proto" in named
        self._trust_forwarded = settings.trust_forwarded
        self.without_body = head.method == "HEAD"
        self.wants_timing = REQUEST_FIELD in named
        self.max_body_bytes = settings.limits.max_body_bytes  # the route's own, where the head decides
        self._read_request_fields()
        self.lines = b""
        # What conversions prepare once for all requests with this head: heads for engines, plans of calls by RPC
        self.translated: dict[object, PreparedHead] = {}
        self.calls: dict[str, object] = {}
        self.hook_facts: dict[object, object] = {}  # what hooks see of all requests with this head, by target
        self.route_target: RouteTarget | None = None
        self.direct_target: RouteTarget | None = None  # the same where all requests go to its engine as they are
        self.attended_target: RouteTarget | None = None  # the same of one with hedging or fallbacks
        self.opening = b""
        self.passes = False  # whether the target's engine takes it as it is, whatever the body
        self.passes_if_kept = False  # the same of requests whose session does not have another target
        self.error: GatewayError | None = None
        self.call = _NO_CALL
        self.is_fleet = False
        self.is_inference = False
        self.may_name_region = False  # of shared memory, and so needs its body renamed
        self.arm_selector: ArmSelector | None = None  # where the route is known, and each request has an arm of its own
        self._models: dict[str, PreparedHead] = {}
        self._name_holder: NameHolder | None = None
        self._leading: dict[object, UpstreamHead] = {}
        path = head.target.partition(b"?")[0].decode("latin-1")
        self.api = None
        if path.startswith(_OPENAI_PATHS):
            self.api = LlmApi.MESSAGES if path.startswith(_ANTHROPIC_PATHS) else LlmApi.CHAT
        call = read_path(path)
        if call is None:
            self.error = GatewayError(ErrorKind.NOT_FOUND, "Not Found")
            return
        self.call = call
        self.api = call.api
        self.is_fleet = call.operation in FLEET_OPERATIONS
        self.is_inference = call.operation in INFERENCE_OPERATIONS
        if snapshot.renames_regions and protocol == "rest":  # of gRPC, the message is renamed before
            self.may_name_region = call.operation is Operation.INFER
        access = settings.operation_access
        self.error = access.error(call.operation, head.method, named, is_grpc=protocol == "grpc")
        if self.error is not None:
            return
        # Engines do not answer HEAD (Triton even sends a body to it), so it is sent as GET, and the reply has no body.
        if head.method not in call.verbs and not (self.without_body and "GET" in call.verbs):
            self.error = GatewayError(ErrorKind.METHOD_NOT_ALLOWED, "Method Not Allowed")
            return
        try:
            forced = forced_by(snapshot, named.get)
        except GatewayError as error:
            self.error = error
            return
        self.facts = Facts(
            model=call.model or "",
            version=call.version,
            protocol="openai" if call.api is not None and call.api not in OF_V2 else protocol,
            operation=call.routed_as or call.operation,
            headers=_headers(head.fields, snapshot.headers_used),
            has_session=False,
            forced=forced,
            principal=principal,
        )
        self.error = find_refusal(head.fields, snapshot.deciding_fields)
        if self.error is None and not settings.encoded_slashes and (call.api is None or call.api in OF_V2):
            self.error = ambiguous_path(path)
        if self.error is None and call.operation.names_a_model and not call.names_its_model_in_the_body:
            self._decide_early()

    def _by_name(self, fields: list[Field]) -> dict[bytes, bytes]:
        """The first field of each name, and the principal's key where limits find it."""
        named = dict(reversed(fields))
        if self.principal is not None:
            named[KEY_FIELD] = self.principal.key.encode()
        return named

    def _read_request_fields(self) -> None:
        """Read the fields that `Request` reads elsewhere where no rule reads them."""
        named = self._named
        self.request_id = named.get(b"x-request-id")
        self.json_length = named.get(b"inference-header-content-length")
        length = named.get(b"content-length")
        self.length_line = b"content-length: %b\r\n" % length if length is not None else b""

    def field(self, name: bytes) -> bytes | None:
        """The first field of this name, in lower case."""
        return self._named.get(name)

    def decide(
        self, body: BodyFacts | None, session: str | None, units: dict[str, str] | None = None
    ) -> Decision | Undecided:
        """The rules' decision for one request with this head; `session` is the head's, `units` are its headers that
        experiments assign by.

        Raises: GatewayError (FORBIDDEN, BAD_REQUEST) where its body forces an arm that it may not have.
        """
        facts = self.facts
        headers = {**facts.headers, **units} if units else facts.headers
        fields = facts.model, facts.version, facts.protocol, facts.operation, headers, body, session
        table, forced = self.snapshot.table, facts.forced
        if forced is None and body is not None and table.forcing.reads_bodies:
            forced = table.forcing.of_body(body)
        return table.decide(Facts(*fields, forced=forced, principal=facts.principal), random.random)

    def for_model(self, model: str) -> PreparedHead:
        """The same for requests whose body names this model."""
        found = self._models.get(model)
        if found is None:
            found = self.uncached_copy()
            found.call = replace(self.call, model=model, names_its_model_in_the_body=False)
            found.facts = replace(self.facts, model=model)
            found._decide_early()
            num_bytes = _PLAN_BYTES + 3 * sum(len(name) + len(value) for name, value in self.head.fields)
            if self._name_holder is None:
                self._name_holder = NameHolder(self._models)
            if self.snapshot.remembered_names.admit(self._name_holder, len(model), num_bytes):
                self._models[model] = found
        return found

    def uncached_copy(self) -> PreparedHead:
        """A copy without what is cached for this head."""
        prepared = copy(self)
        prepared._models, prepared._leading, prepared.translated, prepared.calls = {}, {}, {}, {}
        prepared.hook_facts = {}
        prepared._name_holder = None
        return prepared

    def decoded(self) -> PreparedHead:
        """The same for a body whose Content-Encoding has been undone."""
        prepared = copy(self)
        prepared.head = copy(self.head)
        prepared.head.fields = [field for field in self.head.fields if field[0] != _ENCODING]
        prepared._named = prepared._by_name(prepared.head.fields)
        prepared.encoding = None
        prepared._models, prepared._name_holder = {}, None
        prepared._leading = {}
        return prepared

    def with_fields(self, fields: list[Field]) -> PreparedHead:
        """The same with these fields in place of all that the client sent, names in lower case; what was decided by
        these stays."""
        prepared = self.uncached_copy()
        prepared.head = copy(self.head)
        prepared.head.fields = fields
        prepared._named = prepared._by_name(fields)
        prepared._read_request_fields()
        prepared.length_line = b""
        prepared.route_target = prepared.direct_target = prepared.attended_target = prepared.arm_selector = None
        prepared.passes = prepared.passes_if_kept = False
        return prepared

    def refused(self, error: GatewayError) -> PreparedHead:
        """The same for a caller who gets this error instead of a reply."""
        prepared = self.uncached_copy()
        prepared.error = error
        prepared.route_target = prepared.direct_target = prepared.attended_target = prepared.arm_selector = None
        prepared.passes = prepared.passes_if_kept = False
        return prepared

    def towards(
        self, route_target: RouteTarget, method: str, path: str, fields: list[Field], api: LlmApi | None
    ) -> PreparedHead:
        """The head of the gateway's own request to the target's engine: another path, other fields, another API. Errors
        keep the client's API."""
        prepared = self.uncached_copy()
        target = path.encode("ascii")
        prepared.head = head = copy(self.head)
        head.method, head.target, head.fields = method, target, fields
        head.length, head.is_http_10, head.expects_continue = 0, False, False  # the reader of the reply takes chunks
        prepared._named = prepared._by_name(fields)
        prepared._read_request_fields()
        prepared.encoding = None
        prepared.without_body = False
        call = read_path(path.partition("?")[0]) if route_target.engine.spec.protocol.is_v2 else None
        prepared.call = replace(call or self.call, api=api)
        prepared.is_inference = prepared.call.operation in INFERENCE_OPERATIONS
        prepared.route_target = route_target
        prepared.lines = prepared.lines_for(route_target.engine)
        prepared.opening = b"%b %b HTTP/1.1\r\n" % (method.encode("ascii"), target)
        return prepared

    def leading(self, route_target: RouteTarget) -> UpstreamHead:
        """The head for the target's engine."""
        found = self._leading.get(route_target.key)
        if found is None:
            found = UpstreamHead(
                self.opening_for(route_target), self.lines_for(route_target.engine), route_target.passes(self.call)
            )
            self._leading[route_target.key] = found
        return found

    def opening_for(self, route_target: RouteTarget) -> bytes:
        """The request line as the target's engine gets it."""
        target = route_target.engine.target(self.call, self.head.target, route_target.spec.model)
        method = "GET" if self.without_body else self.head.method
        return b"%b %b HTTP/1.1\r\n" % (method.encode("ascii"), target)

    def lines_for(self, engine: Engine) -> bytes:
        """The fields as the engine gets them; those that it declares itself take the place of the caller's."""
        replaced = self.snapshot.own_fields
        if engine.extra_names:
            replaced = replaced.union(engine.extra_names)
        return _forwarded_lines(self.head, replaced, self._trust_forwarded)

    def body_too_long(self, limits: Limits) -> GatewayError:
        """Why a body of more than `max_body_bytes` is refused."""
        most = self.max_body_bytes
        return body_too_long(most) if most == limits.max_body_bytes else body_too_long(most, OF_ROUTE)

    def _decide_early(self) -> None:
        decision = self.snapshot.table.decide(self.facts, random.random)
        if decision is Undecided.NO_ROUTE or decision is Undecided.FORBIDDEN:
            self.error = undecided(decision, self.facts)
        if not isinstance(decision, Decision):
            return
        if decision.target.max_body_bytes is not None:
            self.max_body_bytes = min(self.max_body_bytes, decision.target.max_body_bytes)
        if not decision.repeatable:
            if not self.is_fleet:  # what concerns all replicas goes to all arms
                route = self.snapshot.table.route_of(self.facts)
                self.arm_selector = arm_selector_of(route, self.snapshot, self.call)
        else:
            self.route_target = self.snapshot.target_of(decision)
            self.opening = self.opening_for(self.route_target)
            self.lines = self.lines_for(self.route_target.engine)
            self.passes_if_kept = self.route_target.passes(self.call)
            is_simple = not (self.route_target.is_sticky or self.route_target.shadow or self.may_name_region)
            self.passes = self.passes_if_kept and is_simple
            if is_simple and not self.is_fleet and not self.route_target.needs_session:
                if self.passes:
                    self.direct_target = self.route_target
                elif self.route_target.passes_at_first(self.call) and self.call.api in (None, *OF_V2):
                    self.attended_target = self.route_target


def check_size(route_target: RouteTarget, size: int) -> None:
    """Check the size of a body by its route. Raises: GatewayError(BODY_TOO_LARGE)."""
    most = route_target.spec.max_body_bytes
    if most is not None and size > most:
        raise body_too_long(most, OF_ROUTE)


def forced_by(snapshot: Snapshot, value: Callable[[bytes], bytes | None]) -> Forced | None:
    """The arm that a head forces; `value` finds a field.

    Raises: GatewayError (FORBIDDEN, BAD_REQUEST).
    """
    arm = value(snapshot.forcing_field)
    if arm is None:
        return None
    return snapshot.table.forcing.read(read_text(arm), read_text(value(snapshot.forcing_key_field) or b""))


def check_path(path: str, route_target: RouteTarget, settings: Settings) -> None:
    """Check a path that has a client's name of a model, unless the rules give the name at the engine.

    Raises: GatewayError(BAD_REQUEST) where the engine could read another name, or another path.
    """
    if route_target.spec.model is None and not settings.encoded_slashes:
        refused = ambiguous_path(path)
        if refused is not None:
            raise refused


def undecided(decision: Undecided, facts: Facts) -> GatewayError:
    """No route takes this request of this caller."""
    if decision is not Undecided.FORBIDDEN:
        return no_route(facts)
    if facts.principal is None:
        return unauthenticated(f"model '{facts.model}' needs an API key")
    return GatewayError(ErrorKind.FORBIDDEN, f"this caller may not use model '{facts.model}'")


def no_route(facts: Facts) -> GatewayError:
    """No rule takes this request: the text is Triton's for an unknown model."""
    version = f" version {facts.version}" if facts.version else ""
    return GatewayError(ErrorKind.NO_ROUTE, f"Request for unknown model: '{facts.model}'{version} is not found")


def _headers(fields: list[Field], names: frozenset[str]) -> dict[str, str]:
    """The fields that rules read, the first of each name."""
    headers: dict[str, str] = {}
    for name, value in fields:
        text = name.decode("latin-1")
        if text in names:
            headers.setdefault(text, read_text(value))
    return headers


def _forwarded_lines(head: RequestHead, replaced: Collection[bytes], trust_forwarded: bool) -> bytes:
    """The fields for the engine that are the same for every request of this head."""
    lines: list[bytes] = []
    vias = [VIA]
    for field in head.fields:
        name, value = field
        if name == b"via":
            vias.insert(-1, value)
        elif name == b"host":
            if b"x-forwarded-host" not in replaced and not (trust_forwarded and head.value(b"x-forwarded-host")):
                lines.append(b"x-forwarded-host: %b\r\n" % value)
        elif name in _REWRITTEN or name in replaced or (name in FORWARDED and not trust_forwarded):
            continue
        else:
            lines.append(b"%b: %b\r\n" % field)
    if b"via" not in replaced:
        lines.append(b"via: %b\r\n" % b", ".join(vias))
    return b"".join(lines)


def _without_values(target: str) -> str:
    """The target as logs and the admin API show it: values of its query may be keys."""
    path, mark, query = target.partition("?")
    return path + mark + "&".join(f"{part.partition('=')[0]}=***" for part in query.split("&")) if mark else target

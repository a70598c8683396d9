"""The heads of gRPC calls: what follows from their fields before a message is read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, compress
from types import EllipsisType

from gateway.config.settings import Settings
from gateway.dataplane.context.arm_selector import ArmSelector, arm_selector_of
from gateway.dataplane.context.call_target import CallTarget
from gateway.dataplane.context.field_checks import contradiction, find_refusal
from gateway.dataplane.context.head_reader import (
    DROPPED,
    IDENTITY,
    MALFORMED,
    OWN,
    PASSED,
    SHARED,
    FieldKinds,
    fields_of,
    session_of,
    units_of,
)
from gateway.dataplane.context.identification import Peer
from gateway.dataplane.context.prepared_head import FORWARDED, VIA, forced_by
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.context.server_timing import REQUEST_FIELD
from gateway.dataplane.context.snapshot import Snapshot
from gateway.protocol.credentials import is_credential
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.feedback import rater_of
from gateway.protocol.grpc_methods import RPCS_BY_PATH
from gateway.protocol.grpc_services import OPERATIONS as SERVICE_OPERATIONS
from gateway.protocol.grpc_status import read_timeout
from gateway.protocol.infer_message_head import Names
from gateway.protocol.operations import Operation
from gateway.protocol.principal import KEY_FIELD, Principal, tenant_of
from gateway.protocol.remembered_names import NameHolder
from gateway.protocol.sequence import AnySession, read_name, read_text, session_reader
from gateway.protocol.v2_facts import BodyFacts
from gateway.routing.assignment import Forced
from gateway.routing.decision import Decision, Facts, Undecided
from gateway.sessions.client_pin import ClientPin, pins_in
from gateway.upstream.engine import Engine
from gateway.wire.http2.field_decoder import OwnNames
from gateway.wire.http2.fields import Block, Field
from gateway.wire.http2.hpack import literal_name, literals, with_value
from gateway.wire.memo import Memo, NameCache

_REQUEST_ID = b"x-request-id"
_TIMEOUT = b"grpc-timeout"
# Written for each hop, or by HTTP/2 itself.
_REWRITTEN = frozenset({b"te", b"host", b"content-length", b"via", _REQUEST_ID, _TIMEOUT, REQUEST_FIELD})
# Fields that REST requests have in a form of their own, or not at all.
_OF_GRPC = frozenset(
    {b"content-type", b"via", b"expect", b"inference-header-content-length", b"triton_grpc_error", _REQUEST_ID}
)
# Fields that a `CallPlan` holds beside those that rules read: few clients differ in them.
_FEW_DIFFER_IN = _REWRITTEN | {
    b"accept-encoding",
    b"content-encoding",
    b"content-type",
    b"expect",
    b"grpc-accept-encoding",
    b"grpc-encoding",
    b"inference-header-content-length",
    b"triton_grpc_error",
    b"user-agent",
}
_INFERENCES = ("ModelInfer", "ModelStreamInfer")
# Orders of names that are remembered, and their templates
_MAX_LAYOUTS = 1024
_MAX_LAYOUT_BYTES = 1024  # of their names
_MAX_TEMPLATES = 4096
# What a decision takes that is remembered by the names of a message.
_DECISION_BYTES = 1024


class CallPlan:
    """The fields that calls have in common, and what follows from them; immutable, since such calls share it."""

    def __init__(
        self, fields: list[Field], snapshot: Snapshot, settings: Settings, principal: Principal | None = None
    ) -> None:
        self.principal = principal  # as of `PreparedHead`
        self.read_session: Callable[[bytes], str] = read_name  # this and `rater` as of `PreparedHead`
        self.rater = b""
        if snapshot.identification is not None:
            tenant = tenant_of(principal)
            self.read_session, self.rater = session_reader(tenant), rater_of(tenant)
            if principal is not None:
                fields = snapshot.identification.with_tenant(fields, principal)
        named = dict(reversed(fields))  # the first of each name
        self.snapshot = snapshot
        self.shared = fields
        self.path = named[b":path"]
        self.request_line = ("POST", self.path.decode("latin-1"))
        self.authority = named.get(b":authority") or named.get(b"host") or b""
        self.rpc = RPCS_BY_PATH.get(self.path)
        self.encoding = named.get(b"grpc-encoding", b"identity")
        self.wants_grpc_errors = named.get(b"triton_grpc_error", b"").lower() == b"true"
        self._facts_headers = {
            text: read_text(named[name]) for name in named if (text := name.decode("latin-1")) in snapshot.headers_used
        }
        self.may_name_region = snapshot.renames_regions and self.rpc is not None and self.rpc.name in _INFERENCES
        self.error: GatewayError | None = None
        self.request_id = named.get(_REQUEST_ID)  # where rules read it
        self.timeout = named.get(_TIMEOUT)
        self._forced: Forced | None = None
        self.rest_facts: Facts | None = None  # what the rules decided on, for a client without gRPC
        operation = self.rpc.operation if self.rpc is not None else SERVICE_OPERATIONS.get(self.path)
        if operation is not None:
            self.error = settings.operation_access.restriction(operation, named)
        self.error = self.error or find_refusal(fields, snapshot.deciding_fields)
        try:
            self._forced = forced_by(snapshot, named.get)
        except GatewayError as error:
            self.error = self.error or error
        dropped = snapshot.own_fields | (_REWRITTEN if settings.trust_forwarded else _REWRITTEN | FORWARDED)
        self.fields = [field for field in fields if field[0] not in dropped and not field[0].startswith(b":")]
        self.fields.append((b"via", b", ".join([value for name, value in fields if name == b"via"] + [VIA])))
        self.passing = self.fields  # as they go on: the same, but for blanks around values
        self._targets: dict[int, CallTarget] = {}
        self._decided: dict[tuple[bytes, bytes], tuple[CallTarget, AnySession | None]] = {}
        self._arm_selectors: dict[tuple[bytes, bytes], ArmSelector] = {}
        self._name_holder: NameHolder | None = None

    def facts(
        self,
        names: Names,
        body: BodyFacts | None = None,
        session: str | None = None,
        units: dict[str, str] | None = None,
    ) -> Facts:
        """A call as the rules see it; `session` is the one in its fields, `units` are those by which experiments
        assign."""
        operation = self.rpc.operation if self.rpc is not None else Operation.INFER
        version = names.version.decode("utf-8", "replace") or None
        model = names.model.decode("utf-8", "replace")
        headers = {**self._facts_headers, **units} if units else self._facts_headers
        principal = self.principal
        return Facts(
            model, version, "grpc", operation, headers, body, session, forced=self._forced, principal=principal
        )

    def decide(
        self, names: Names, body: BodyFacts | None, head: CallHead
    ) -> tuple[CallTarget, AnySession | None] | Undecided:
        """The rules' decision for a message with these names: its target and its session; `head` is its call's.

        Raises: GatewayError (FORBIDDEN, BAD_REQUEST) where it requests an arm that it may not have.
        """
        key = (names.model, names.version)
        cached = self._decided.get(key)
        if cached is not None:
            return cached
        selector = self._arm_selectors.get(key)
        if selector is not None and (head.session is not None or not selector.needs_session):
            route_target = selector.route_target(
                head.session if selector.by_session else self._unit(head, selector.header)
            )
            return self.target(route_target), head.session if selector.needs_session else None
        facts = self.facts(names, body, head.session, head.units)
        table = self.snapshot.table
        if facts.forced is None and body is not None and table.forcing.reads_bodies:
            facts.forced = table.forcing.of_body(body)
        decision = table.decide(facts, random.random)
        if not isinstance(decision, Decision):
            return decision
        route_target = self.snapshot.target_of(decision)
        answer = (self.target(route_target), decision.session)
        if selector is None and route_target.spec.experiment is not None and not route_target.spec.is_forced:
            # From now on, the units in the fields assign messages of these names to arms.
            selector = arm_selector_of(table.route_of(facts), self.snapshot)
            if selector is not None and self._may_remember(names):
                self._arm_selectors[key] = selector
        is_of_all = decision.repeatable and decision.unit is None and not route_target.spec.needs_session
        if is_of_all and self._may_remember(names):
            self._decided[key] = answer
        return answer

    def _may_remember(self, names: Names) -> bool:
        length = len(names.model) + len(names.version)
        if self._name_holder is None:
            self._name_holder = NameHolder(self._decided, self._arm_selectors)
        return self.snapshot.remembered_names.admit(self._name_holder, length, _DECISION_BYTES)

    def _unit(self, head: CallHead, header: str | None) -> str | None:
        """The unit of an experiment that a header names; None where it is missing."""
        if header is None:
            return None
        return (head.units.get(header) if head.units is not None else None) or self._facts_headers.get(header)

    def target(self, route_target: RouteTarget) -> CallTarget:
        if route_target.pin_fields:  # of one call
            pinned = CallTarget(self.path, self.passing, route_target)
            pinned.heads = self.target(route_target.origin).heads
            return pinned
        target = self._targets.get(id(route_target))
        if target is None:
            target = self._targets[id(route_target)] = CallTarget(self.path, self.passing, route_target)
            if route_target.parent is not None:
                target.heads = self.target(route_target.parent).heads  # which are the same
        return target


class _Prefixes(NameCache[bytes | None]):
    """What stands before a field's value where it goes on to an engine, by the field's name; None of fields that are
    written for each hop."""

    __slots__ = ()

    def read(self, name: bytes) -> bytes | None:
        return None if name in _REWRITTEN else literal_name(name, secret=is_credential(name.decode("latin-1")))


_prefixes = _Prefixes()


def _passed_on(own: list[Field]) -> bytes:
    """The fields of one call as they go on, encoded."""
    pieces: list[bytes] = []
    for name, value in own:
        before = _prefixes[name]
        if before is not None:
            size = len(value)
            pieces.append(b"%b%c%b" % (before, size, value) if size < 0x7F else with_value(before, value))
    return b"".join(pieces)


class CallHead:
    """One call's fields, read: its plan, and its `own`, which the plan does not have; `sent` are these with the blanks
    that stood around values, and `passing` the same as they go on, encoded. `id` is None where the client sent none;
    `timeout` is in seconds, None where the client sets none."""

    __slots__ = ("_block", "_own", "_sent", "_session", "_units", "error", "id", "passing", "plan", "timeout")

    def __init__(self, plan: CallPlan, own: list[Field]) -> None:
        self.plan = plan
        self._own: list[Field] = own
        self._block: Block | None = None  # has more of them
        self._sent: list[Field] | None = None  # where they differ from `own`
        self.id = plan.request_id
        self.timeout: float | None = None
        self._session: str | EllipsisType | None = ...
        self._units: dict[str, str] | EllipsisType | None = ...
        snapshot = plan.snapshot
        self.error = plan.error
        timeout, known = plan.timeout, None
        for name, value in own:
            if name == _REQUEST_ID:
                self.id = value
            elif name == _TIMEOUT:
                timeout = value
            elif name in snapshot.deciding_fields:
                if known is None:
                    known = {name: value}
                elif known.setdefault(name, value) != value:
                    self.error = contradiction(name)
        if timeout is not None:
            self.timeout = read_timeout(timeout)
            if self.timeout is None:
                self.error = GatewayError(ErrorKind.BAD_REQUEST, f"grpc-timeout {timeout!r} is not a number and unit")
        self.passing = _passed_on(own)

    @property
    def own(self) -> list[Field]:
        if self._block is not None:  # few calls have all of their fields read
            self._own = self._own + self._block.own
            self._block = None
        return self._own

    @property
    def sent(self) -> list[Field]:
        return self.own if self._sent is None else self._sent

    @property
    def session(self) -> str | None:
        """The session that the fields name; only read where rules need it."""
        session = self._session
        if session is ...:
            plan = self.plan
            snapshot = plan.snapshot
            session = session_of(snapshot, self.own, plan.shared, plan.read_session) if snapshot.session_field else None
            self._session = session
        return session

    @property
    def units(self) -> dict[str, str] | None:
        """The units of experiments that the fields name, as `session`."""
        units = self._units
        if units is ...:
            plan = self.plan
            units = self._units = units_of(plan.snapshot, self.own, plan.shared) if plan.snapshot.unit_fields else None
        return units

    @property
    def pins(self) -> list[bytes]:
        """What its client has been told of the arms of its session."""
        return pins_in(chain(self.own, self.plan.shared))

    def pin_fields(self, pin: ClientPin) -> list[Field]:
        """The fields of the reply that tell its client."""
        return [pin.field]

    def use_sent(self, sent: list[Field]) -> None:
        """Pass the call's own fields on as these: `own` with the blanks that stood around values."""
        self._sent = sent
        self.passing = _passed_on(sent)

    def passing_to(self, engine: Engine) -> bytes:
        """`passing` without the fields that the engine declares, which take the place of the caller's."""
        if not engine.extra_names:
            return self.passing
        return _passed_on([field for field in self.sent if field[0] not in engine.extra_names])

    def passing_beside(self, engine: Engine, own: list[Field]) -> bytes:
        """The same, with the gateway's own fields that the engine does not declare."""
        return literals(field for field in own if field[0] not in engine.extra_names) + self.passing_to(engine)

    def value(self, name: bytes) -> bytes | None:
        """The first of the caller's fields of this name, in lower case."""
        for field in self.own:
            if field[0] == name:
                return field[1]
        for field in self.plan.fields:
            if field[0] == name:
                return field[1]
        principal = self.plan.principal
        return principal.key.encode() if name == KEY_FIELD and principal is not None else None

    def rest_fields(self) -> list[Field]:
        """The caller's metadata as a REST request has it, without gRPC's own fields."""
        fields = self.plan.fields + self.own
        return [field for field in fields if field[0] not in _OF_GRPC and not field[0].startswith(b"grpc-")]


# How calls' own fields go on, encoded, by their layout and the lengths of their values, which have a place each.
Templates = dict[tuple["OwnLayout", tuple[int, ...]], bytes]


class OwnLayout:
    """What follows from the names alone of a call's own fields, in their order, under one snapshot of the rules."""

    __slots__ = ("_deciding", "_id_at", "_is_known", "_is_plain", "_kept", "_prefixes", "_timeout_at")

    def __init__(self, names: Sequence[bytes], kinds: FieldKinds, snapshot: Snapshot) -> None:
        found = [kinds[name] for name in names]
        self._is_known = not any(kind is SHARED or kind is MALFORMED or kind is IDENTITY for kind in found)
        self._kept = [kind is not DROPPED for kind in found]
        self._id_at = _last(names, _REQUEST_ID)
        self._timeout_at = _last(names, _TIMEOUT)
        # Only of these may several contradict each other.
        deciding = [name for name in names if name in snapshot.deciding_fields]
        self._deciding = frozenset(deciding)
        self._is_plain = all(self._kept) and len(deciding) == len(self._deciding)
        self._prefixes = [_prefixes[name] for name in names]

    def head(self, before: CallHead, block: Block, templates: Templates) -> CallHead | None:
        """The head of a call that has the block's own fields beside those of an earlier one. `templates` are those of
        all layouts."""
        if not self._is_known:
            return None
        plan, own = before.plan, before.own
        if not self._is_plain or (own and any(name in self._deciding for name, _ in own)):
            return CallHead(plan, own + list(compress(block.own, self._kept)))
        values = block.own_values
        timeout = before.timeout
        if self._timeout_at is not None:
            timeout = read_timeout(values[self._timeout_at])
            if timeout is None:
                return CallHead(plan, own + block.own)
        head = CallHead.__new__(CallHead)
        head.plan = plan
        head._own = own
        head._block = block
        head._sent = None
        head.id = values[self._id_at] if self._id_at is not None else before.id
        head.timeout = timeout
        head._session = head._units = ...
        head.error = before.error
        sizes = tuple(map(len, values))  # ids, traces and keys have one length each: few combinations come again
        template = templates.get((self, sizes)) or self._template(sizes, templates)
        head.passing = before.passing + template % values
        return head

    def _template(self, sizes: tuple[int, ...], templates: Templates) -> bytes:
        pieces: list[bytes] = []
        for prefix, size in zip(self._prefixes, sizes, strict=True):
            if prefix is None:
                pieces.append(b"%.0b")  # nothing of a value that is written for each hop
            else:
                name_and_size = with_value(prefix, bytes(size))[: -size or None]
                pieces.append(name_and_size.replace(b"%", b"%%") + b"%b")
        if len(templates) >= _MAX_TEMPLATES:
            templates.clear()
        template = templates[self, sizes] = b"".join(pieces)
        return template


def _last(names: Sequence[bytes], name: bytes) -> int | None:
    return max((at for at, each in enumerate(names) if each == name), default=None)


class CallReader:
    """Reads calls' fields by one snapshot of the rules, and caches what follows from them. `own_names` are those of
    the fields that are not in plans."""

    def __init__(self, snapshot: Snapshot, settings: Settings) -> None:
        few = _FEW_DIFFER_IN | settings.operation_access.grpc.headers
        self._kinds = kinds = FieldKinds(snapshot, settings, (_REQUEST_ID, _TIMEOUT), few)
        self.own_names = OwnNames(lambda name: kinds[name] in (OWN, PASSED, DROPPED))
        self._snapshot = snapshot
        self._layouts: dict[tuple[bytes, ...], OwnLayout] = {}
        self._templates: Templates = {}
        new_plan = self._new_plan = partial(CallPlan, snapshot=snapshot, settings=settings)
        self._plans = Memo(lambda key: new_plan(fields_of(key.split(b"\0"))))

    def __call__(self, block: Block, peer: Peer | None = None) -> CallHead:
        """Read a block; `peer` is the connection that it came on."""
        if block.has_blanks:
            plan, own, sent = self._split_blanks(block.fields)
            head = CallHead(plan, own)
            head.use_sent(sent)
            return head
        shared, own = self._split(block.fields)
        return CallHead(self._plans(b"\0".join(shared)), own)

    def _split(self, fields: Iterable[Field]) -> tuple[list[bytes], list[Field]]:
        """The fields of the plan, each name followed by its value; and those of the call alone."""
        shared: list[bytes] = []
        own: list[Field] = []
        for field in fields:
            kind = self._kinds[field[0]]
            if kind is SHARED or kind is MALFORMED:  # pseudo-fields
                shared += field
            elif kind is not DROPPED:
                own.append(field)
        return shared, own

    def _split_blanks(
        self, fields: list[Field], principal: Principal | None = None
    ) -> tuple[CallPlan, list[Field], list[Field]]:
        """The plan of a call whose values have blanks around them, the fields of the call alone, and these with their
        blanks: so they reach the engine, as Triton's models see them; the gateway reads values without."""
        stripped = [(name, value.strip(b" \t")) for name, value in fields]
        shared, own = self._split(stripped)
        plan = self._new_plan(fields_of(shared), principal=principal)
        sent = dict(zip(stripped, fields, strict=True))
        plan.passing = [sent.get(field, field) for field in plan.fields]
        return plan, own, self._split(fields)[1]

    def again(self, head: CallHead, block: Block) -> CallHead | None:
        """The head of a call whose block has a few fields of its own beside those of an earlier block; None where the
        block must be read whole: values have blanks, or the connection is older than the rules, which read some of
        these fields."""
        if block.has_blanks:
            return None
        names = block.own_names
        layout = self._layouts.get(names)
        if layout is None:
            layout = OwnLayout(names, self._kinds, self._snapshot)
            if sum(map(len, names)) <= _MAX_LAYOUT_BYTES:
                if len(self._layouts) >= _MAX_LAYOUTS:
                    self._layouts.clear()
                    self._templates.clear()
                self._layouts[names] = layout
        return layout.head(head, block, self._templates)

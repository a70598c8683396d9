"""Reads request heads, of which most are new.

A head's fields are sorted by what the gateway does with them (`FieldKind`), by name. Few of them decide what happens to
a request: they stand in a `PreparedHead`, which all requests with the same ones share. All others go on to the engine
as the lines that came.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from copy import copy
from enum import Enum
from functools import partial
from itertools import chain
from time import monotonic
from types import EllipsisType

from gateway.config.settings import Settings
from gateway.dataplane.context.field_checks import contradiction
from gateway.dataplane.context.identification import Peer
from gateway.dataplane.context.prepared_head import FORWARDED, PreparedHead
from gateway.dataplane.context.server_timing import REQUEST_FIELD, Timing
from gateway.dataplane.context.snapshot import Snapshot
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.restricted_apis import FETCH_SITE, ORIGIN
from gateway.protocol.sequence import read_text
from gateway.protocol.trace_context import TRACEPARENT
from gateway.sessions.client_pin import PIN_FIELD, ClientPin, pins_in
from gateway.wire.http1.head import HOP_BY_HOP, Field, RequestHead, head_of_lines, read_length, read_request_head
from gateway.wire.memo import Memo, NameCache

_REQUEST_ID = b"x-request-id"
_LENGTH = b"content-length"
_JSON_LENGTH = b"inference-header-content-length"
_BLANKS = b" \t"

# The longest Inference-Header-Content-Length that is read as one, in digits.
_MAX_DIGITS = 10

# Fields that the gateway itself reads in a `PreparedHead`: few clients differ in them.
_FEW_DIFFER_IN = HOP_BY_HOP | {
    b"content-encoding",
    b"content-type",
    b"expect",
    b"host",
    ORIGIN,
    FETCH_SITE,
    b"via",
    b"x-forwarded-host",
    b"x-forwarded-proto",
    REQUEST_FIELD,
}
# Fields that decide where a request ends.
_FRAMING = frozenset({_LENGTH, b"transfer-encoding"})
# All bytes that may stand in a head; CR and LF only where a line ends (RFC 9112 section 2.2, RFC 9110 section 5.5).
_LEGAL = bytes([*b"\t\r\n", *range(0x20, 0x7F), *range(0x80, 0x100)])
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# Plans of one generation of the cache, of about 2 KB each: models, tenants and client libraries multiply.
MAX_PLANS = 4096


class FieldKind(Enum):
    """What the gateway does with a field."""

    SHARED = "it may decide what happens to the request, and stands in the PreparedHead"
    OWN = "it is read for each request"
    PASSED = "it goes on as it came"
    IDENTITY = "it says who the caller is: authentication reads it, and says so in its place"
    DROPPED = "only a trusted proxy may send it, or an engine may read it as a field that decides"
    MALFORMED = "its name has characters that no name has"


# An attribute of an Enum costs a call in Python 3.11, which adds up over the fields of a head.
SHARED, OWN, PASSED, IDENTITY, DROPPED, MALFORMED = FieldKind


class FieldKinds(NameCache[FieldKind]):
    """The kinds of fields under one snapshot of the rules, by their names as clients write them."""

    def __init__(
        self, snapshot: Snapshot, settings: Settings, own: Collection[bytes], few_differ_in: Collection[bytes]
    ) -> None:
        """`own` are read for each request; `few_differ_in` are read for all requests of a plan."""
        super().__init__()
        self._few_differ_in = few_differ_in
        self._own = own
        self._of_clients = frozenset({snapshot.session_field, *snapshot.unit_fields, *snapshot.limit_fields})
        if snapshot.session_cookie or snapshot.pins_sessions:
            self._of_clients |= {b"cookie"}
        if snapshot.pins_sessions:
            self._of_clients |= {PIN_FIELD}
        self._of_rules = {name.encode() for name in snapshot.headers_used} | snapshot.own_fields
        self._identity_fields = snapshot.identification.fields if snapshot.identification is not None else ()
        self._trusts_forwarded = settings.trust_forwarded
        # Servers of WSGI and CGI take `x_tenant` for `x-tenant`, so that an engine would read what rules have not
        deciding = self._of_clients.union(self._of_rules, self._identity_fields, FORWARDED, _FRAMING)
        deciding = deciding.union(*(engine.extra_names for engine in snapshot.engines.values()))
        self._deciding_in_wsgi = {_in_wsgi(name) for name in deciding}

    def read(self, name: bytes) -> FieldKind:
        if _NAME.fullmatch(name) is None:
            return MALFORMED
        name = name.lower()
        if name in self._identity_fields:
            return IDENTITY
        if name in self._of_rules:
            return SHARED
        if name in self._own:
            return OWN
        if name in FORWARDED and not self._trusts_forwarded:
            return DROPPED
        if name in self._few_differ_in:
            return SHARED
        if name in self._of_clients:
            return OWN
        return DROPPED if b"_" in name and _in_wsgi(name) in self._deciding_in_wsgi else PASSED


def _in_wsgi(name: bytes) -> bytes:
    """What stands for a field's name in the environment of WSGI and CGI, in lower case."""
    return name.replace(b"-", b"_")


def fields_of(parts: list[bytes]) -> list[Field]:
    """The fields in a key that is split at its NULs: no field holds one."""
    return list(zip(parts[::2], parts[1::2], strict=True))


class Request:
    """A request's parsed head: its plan, and what differs between requests of one plan.

    `length` is the body's, None where it is chunked; `json_length` that of the JSON before the binary tensors of a V2
    body. `id` is None where the client sent none. `lines` are the fields that are not in the plan, as they go to an
    engine.
    """

    __slots__ = ("_fields", "_own", "_session", "_units", "id", "json_length", "length", "lines", "plan", "timing")

    def __init__(self, plan: PreparedHead, own: list[Field], lines: bytes) -> None:
        """`own` are the fields that are read for each request, names in lower case.

        Raises: ValueError that says what is malformed.
        """
        self.plan = plan
        self.timing: Timing | None = None
        self._own = own
        self._fields: list[Field] | None = None
        self.id = plan.request_id
        self.json_length = plan.json_length
        self.length = plan.head.length
        length = known = None
        for name, value in own:
            if name == _LENGTH:
                if length is not None or self.length != 0:
                    raise ValueError("more than one field tells the body's length")
                length = value
                self.length = read_length(value)
            elif name == _REQUEST_ID:
                self.id = value  # written by the handler that sends the request on
            elif name == _JSON_LENGTH:
                if self.json_length is not None:
                    raise ValueError("the field inference-header-content-length stands more than once")
                self.json_length = value
            elif name in plan.snapshot.deciding_fields:
                if known is None:
                    known = {name: value}
                elif known.setdefault(name, value) != value:
                    self.plan = plan.refused(contradiction(name))
        self._session: str | EllipsisType | None = ...
        self._units: dict[str, str] | EllipsisType | None = ...
        self.lines = lines + plan.length_line

    @property
    def session(self) -> str | None:
        """The session that the head names; only read where rules need it."""
        session = self._session
        if session is ...:
            plan = self.plan
            snapshot = plan.snapshot
            session = self._session = (
                session_of(snapshot, self._own, plan.head.fields, plan.read_session) if snapshot.session_field else None
            )
        return session

    @property
    def traceparent(self) -> bytes | None:
        """The client's trace context; only read where requests are traced."""
        for field in self._own:
            if field[0] == TRACEPARENT:
                return field[1]
        return self.plan.field(TRACEPARENT)

    @property
    def units(self) -> dict[str, str] | None:
        """The headers that experiments assign by, as `session`."""
        units = self._units
        if units is ...:
            plan = self.plan
            snapshot = plan.snapshot
            units = self._units = units_of(snapshot, self._own, plan.head.fields) if snapshot.unit_fields else None
        return units

    @property
    def pins(self) -> list[bytes]:
        """What its client has been told of the arms of its session."""
        return pins_in(chain(self._own, self.plan.head.fields))

    def pin_fields(self, pin: ClientPin) -> list[Field]:
        """The fields of the reply that tell its client: for those with a jar of cookies, and for those without."""
        return [pin.cookie, pin.field]

    @classmethod
    def of_fields(cls, plan: PreparedHead, fields: list[Field]) -> Request:
        """A request with these fields beside the plan's, names in lower case.

        Raises: ValueError.
        """
        return cls(plan, fields, b"".join([b"%b: %b\r\n" % field for field in fields if field[0] != _REQUEST_ID]))

    @property
    def json_bytes(self) -> int | None:
        """`json_length` as a number; None where there is none, or what stands there is no length of a body."""
        length = self.json_length
        return int(length) if length and length.isdigit() and len(length) < _MAX_DIGITS else None

    def of(self, plan: PreparedHead, content_length: int | None = None) -> Request:
        """The same request with another plan, and where its body is rewritten, that length."""
        made = type(self).__new__(type(self))
        made.plan = plan
        made.id = self.id
        made.json_length = self.json_length
        made._session = self._session
        made._units = self._units
        made.timing = self.timing
        made.length, made.lines, made._fields, made._own = self.length, self.lines, self._fields, self._own
        if content_length is not None:
            made.length = content_length
            made.replace_lines(self.lines_without((_LENGTH,)) + b"content-length: %d\r\n" % content_length)
        return made

    def replace_lines(self, lines: bytes) -> None:
        self.lines = lines
        self._fields = None

    def timed(self, since: float = 0.0) -> Request:
        """The same with a timing where the client requests one; from now on, or `since`."""
        if not self.plan.wants_timing or self.timing is not None:
            return self
        made = self.of(self.plan)
        made.timing = Timing(since or monotonic())
        return made

    @property
    def fields(self) -> list[Field]:
        """The fields in `lines`, names in lower case."""
        fields = self._fields
        if fields is None:
            parts = [line.partition(b":") for line in self.lines.split(b"\r\n")[:-1]]
            fields = self._fields = [(name.lower(), value.strip(_BLANKS)) for name, _, value in parts]
        return fields

    def value(self, name: bytes) -> bytes | None:
        """The first of the client's fields of this name, in lower case."""
        if name == _REQUEST_ID:
            return self.id
        # The fields that limits read are at hand, or missing.
        for field in self._own if name in self.plan.snapshot.limit_fields else self.fields:
            if field[0] == name:
                return field[1]
        return self.plan.field(name)

    def unit(self, header: str | None) -> str | None:
        """The unit of an experiment that a header names; None where it is missing."""
        if header is None:
            return None
        units = self.units
        return (units.get(header) if units is not None else None) or self.plan.facts.headers.get(header)

    def lines_without(self, names: Collection[bytes]) -> bytes:
        """`lines` without the fields of these names."""
        return b"".join([b"%b: %b\r\n" % field for field in self.fields if field[0] not in names])


def session_of(
    snapshot: Snapshot, own: list[Field], shared: list[Field], read_name: Callable[[bytes], str]
) -> str | None:
    """The session that a head names by its field, or else by its cookie; `own` are the fields of this request alone,
    `read_name` is that of the plan."""
    cookie = b""
    for name, value in own if snapshot.session_is_own else own + shared:
        if name == snapshot.session_field and value:
            return read_name(value)
        if name == b"cookie" and snapshot.session_cookie:
            cookie = cookie or cookie_named(snapshot.session_cookie, value)
    return read_name(cookie) or None


def units_of(snapshot: Snapshot, own: list[Field], shared: list[Field]) -> dict[str, str] | None:
    """The units of experiments that a head names, the first field of each name; None where it names none."""
    named: dict[str, str] = {}
    for name, value in own if snapshot.units_are_own else own + shared:
        if name in snapshot.unit_fields:
            named.setdefault(name.decode("latin-1"), read_text(value))
    return named or None


def cookie_named(name: bytes, field: bytes) -> bytes:
    """A cookie's value; empty where the field has none of this name. Source: RFC 6265, section 4.2.1."""
    for pair in field.split(b";"):
        key, _, value = pair.strip().partition(b"=")
        if key == name:
            return value.strip(b'"')
    return b""


class HeadReader:
    """Reads heads by one snapshot of the rules."""

    _authenticates = False

    def __init__(self, snapshot: Snapshot, settings: Settings) -> None:
        self._snapshot = snapshot
        self._settings = settings
        few = _FEW_DIFFER_IN | settings.operation_access.http.headers
        own = (_LENGTH, _JSON_LENGTH, _REQUEST_ID, *((TRACEPARENT,) if settings.tracing is not None else ()))
        self._kinds = FieldKinds(snapshot, settings, own, few)
        self._plans = Memo(partial(_plan_of, snapshot=snapshot, settings=settings), MAX_PLANS)
        self._plans_of_fields = Memo(lambda key: PreparedHead(_head_of(key), snapshot, settings), MAX_PLANS)
        # A copy's method: one of its own would be a circle, which keeps the snapshot when it is replaced.
        self._requests = Memo(copy(self)._read, on_second_sight=True)

    def __call__(self, head: bytes, peer: Peer | None = None) -> Request:
        """Read a whole head, from the request line to the empty line; `peer` is the connection that it came on.

        Raises: GatewayError (BAD_REQUEST) where it is malformed: the start of the next request is unknown.
        """
        return self._requests(head)

    def of_fields(self, method: bytes, target: bytes, fields: list[Field], peer: Peer | None = None) -> Request:
        """Read a head that came as fields, names in lower case, as HTTP/2 brings it.

        Raises: GatewayError(BAD_REQUEST).
        """
        shared: list[bytes] = [method, target]
        others: list[Field] = []
        for field in fields:
            kind = self._kinds[field[0]]
            if kind is SHARED:
                shared += field
            elif kind is not DROPPED:
                others.append(field)
        plan = self._plans_of_fields(b"\0".join(shared))
        try:
            return Request.of_fields(plan, others)
        except ValueError as error:
            raise bad_request(error) from error

    def _read(self, head: bytes) -> Request:
        lines = head.split(b"\r\n")
        num_ends = len(lines) - 1
        if head.count(b"\r") != num_ends or head.count(b"\n") != num_ends or head.translate(None, _LEGAL):
            return self._read_strictly(head)
        kinds = self._kinds
        shared = lines[:1]
        passed: list[bytes] = []
        own: list[Field] = []
        for line in lines[1:-2]:
            name, colon, value = line.partition(b":")
            kind = kinds[name]
            if kind is PASSED:
                passed.append(line)
            elif kind is SHARED:
                shared.append(line)
            elif kind is OWN:
                name = name.lower()
                own.append((name, value.strip(_BLANKS)))
                if name != _REQUEST_ID:
                    passed.append(line)
            elif kind is IDENTITY:
                own.append((name.lower(), value.strip(_BLANKS)))
            elif kind is MALFORMED:
                return self._read_strictly(head)
            if not colon:
                return self._read_strictly(head)
        if self._authenticates:
            return self._read_identified(head, shared, own, passed)
        plan = self._plans(b"\r\n".join(shared))
        if plan.head.names_fields_of_this_hop:  # which may be any
            return self._read_strictly(head)
        passed.append(b"")
        try:
            return Request(plan, own, b"\r\n".join(passed))
        except ValueError as error:
            raise bad_request(error) from error

    def _read_identified(self, head: bytes, shared: list[bytes], own: list[Field], passed: list[bytes]) -> Request:
        """The same for a head whose fields are sorted; of readers that authenticate."""
        raise NotImplementedError

    def _read_strictly(self, head: bytes) -> Request:
        """Read a head with all of its fields in the plan; llhttp says what is malformed."""
        return self._strict(Request, PreparedHead(self._parsed(head), self._snapshot, self._settings))

    def _parsed(self, head: bytes) -> RequestHead:
        parsed = read_request_head(head)
        parsed.fields = [field for field in parsed.fields if self._kinds[field[0]] is not DROPPED]
        return parsed

    def _strict(self, kind: type[Request], plan: PreparedHead) -> Request:
        request = kind(plan, [], b"")
        request._session = session_of(self._snapshot, plan.head.fields, [], plan.read_session)
        request._units = units_of(self._snapshot, plan.head.fields, [])
        return request


def _plan_of(shared: bytes, snapshot: Snapshot, settings: Settings) -> PreparedHead:
    """The plan of heads with these lines of the kind SHARED. Raises: GatewayError(BAD_REQUEST)."""
    request_line, *lines = shared.split(b"\r\n")
    try:
        return PreparedHead(head_of_lines(request_line, lines), snapshot, settings)
    except ValueError as error:
        raise bad_request(error) from error


def bad_request(error: ValueError) -> GatewayError:
    return GatewayError(ErrorKind.BAD_REQUEST, f"malformed request: {error}")


def _head_of(key: bytes) -> RequestHead:
    method, target, *rest = key.split(b"\0")
    return RequestHead(method, target, fields_of(rest), False)

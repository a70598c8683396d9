"""Reads request heads through a cache.

Requests of one client have the same head but for a few volatile fields: the body's length, ids, traces, credentials.
These are cut out before the rest is looked up, so that one `PreparedHead` serves all requests with the same rest. A
field that a rule reads is never cut out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from time import monotonic

from gateway.config.settings import Settings
from gateway.dataplane.context.prepared_head import PreparedHead
from gateway.dataplane.context.server_timing import Timing
from gateway.dataplane.context.snapshot import Snapshot
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.sequence import read_name, read_text
from gateway.wire.http1.head import Field, RequestHead, read_length, read_request_head
from gateway.wire.memo import Memo

_REQUEST_ID = b"x-request-id"
_LENGTH = b"content-length"
_JSON_LENGTH = b"inference-header-content-length"

# Fields that differ from request to request of the same client.
VOLATILE_FIELDS = frozenset(
    {
        _LENGTH,
        _JSON_LENGTH,
        _REQUEST_ID,
        b"authorization",
        b"b3",
        b"cookie",
        b"traceparent",
        b"tracestate",
        b"x-amzn-trace-id",
        b"x-api-key",
        b"x-b3-parentspanid",
        b"x-b3-sampled",
        b"x-b3-spanid",
        b"x-b3-traceid",
        b"x-cloud-trace-context",
        b"x-correlation-id",
    }
)


def volatile_names(snapshot: Snapshot) -> frozenset[bytes]:
    """The fields that are cut out of heads under these rules: those that no rule reads."""
    identity = {snapshot.table.identity.session_header.encode(), snapshot.table.identity.tenant_header.encode()}
    required = {name.encode() for name in snapshot.headers_used} | snapshot.own_fields
    return (VOLATILE_FIELDS | identity | snapshot.unit_fields) - required


def split_fields(fields: Iterable[Field], volatile: Collection[bytes]) -> tuple[list[bytes], list[Field]]:
    """The steady fields, each name followed by its value, to be joined by NULs as a key; and the volatile ones."""
    steady: list[bytes] = []
    cut: list[Field] = []
    for field in fields:
        if field[0] in volatile:
            cut.append(field)
        else:
            steady += field
    return steady, cut


def fields_of(parts: list[bytes]) -> list[Field]:
    """The fields in a key that is split at its NULs: no field holds one."""
    return list(zip(parts[::2], parts[1::2], strict=True))


class Request:
    """A request's parsed head: its plan, and what differs between requests of one plan.

    `length` is the body's, None where it is chunked; `json_length` that of the JSON before the binary tensors of a V2
    body. `id` is None where the client sent none, and so is `session`, which is only read where rules use it; `units`
    are the headers that experiments assign by. `lines` are the volatile fields as they go to an engine.
    """

    __slots__ = ("id", "json_length", "length", "lines", "plan", "session", "timing", "units", "volatile")

    def __init__(self, plan: PreparedHead, volatile: list[Field]) -> None:
        """`volatile` are the fields that were cut out, names in lower case.

        Raises: ValueError that says what is malformed.
        """
        self.plan = plan
        self.timing: Timing | None = None
        # A field that a rule reads was not cut out: it stands in the plan's head.
        self.length = plan.head.length
        self.id: bytes | None = plan.head.value(_REQUEST_ID)
        self.json_length: bytes | None = plan.head.value(_JSON_LENGTH)
        session_field = plan.snapshot.session_field
        self.session = session_of(plan.snapshot, volatile, plan.head.fields) if session_field else None
        self.units = units_of(plan.snapshot, volatile) if plan.snapshot.unit_fields else None
        length = plan.head.value(_LENGTH)
        if length is not None:  # a rule reads it; a rewritten body has another length
            self.length = 0
            volatile = [*volatile, (_LENGTH, length)]
        self.volatile = volatile
        length = None
        lines: list[bytes] = []
        for field in volatile:
            name, value = field
            if name == _REQUEST_ID:
                self.id = value  # written by the handler that sends the request on
                continue
            if name == _LENGTH:
                if length is not None or self.length != 0:
                    raise ValueError("more than one field tells the body's length")
                length = value
                self.length = read_length(value)
            elif name == _JSON_LENGTH:
                if self.json_length is not None:
                    raise ValueError("the field inference-header-content-length stands more than once")
                self.json_length = value
            lines.append(b"%b: %b\r\n" % field)
        self.lines = b"".join(lines)

    def of(self, plan: PreparedHead, content_length: int | None = None) -> Request:
        """The same request with another plan, and where its body is rewritten, that length."""
        request = Request.__new__(Request)
        request.plan = plan
        request.id = self.id
        request.json_length = self.json_length
        request.session = self.session
        request.units = self.units
        request.timing = self.timing
        if content_length is None:
            request.length, request.volatile, request.lines = self.length, self.volatile, self.lines
            return request
        request.length = content_length
        request.volatile = [field for field in self.volatile if field[0] != _LENGTH]
        request.volatile.append((_LENGTH, b"%d" % content_length))
        request.lines = request.lines_without(())
        return request

    def timed(self, since: float = 0.0) -> Request:
        """The same with a timing where the client requests one; from now on, or `since`."""
        if not self.plan.wants_timing or self.timing is not None:
            return self
        request = self.of(self.plan)
        request.timing = Timing(since or monotonic())
        return request

    def value(self, name: bytes) -> bytes | None:
        for field in self.volatile:
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
        """`lines` but for the fields that the engine's own take the place of."""
        remaining = [field for field in self.volatile if field[0] not in names and field[0] != _REQUEST_ID]
        return b"".join([b"%b: %b\r\n" % field for field in remaining])


def session_of(snapshot: Snapshot, own: list[Field], shared: list[Field]) -> str | None:
    """The session that a head names by its field, or else by its cookie; `own` are the volatile fields."""
    cookie = b""
    for name, value in own if snapshot.session_is_own else own + shared:
        if name == snapshot.session_field and value:
            return read_name(value)
        if name == b"cookie" and snapshot.session_cookie:
            cookie = cookie or cookie_named(snapshot.session_cookie, value)
    return read_name(cookie) or None


def units_of(snapshot: Snapshot, fields: list[Field]) -> dict[str, str] | None:
    """The units of experiments that a head names, the first field of each name; None where it names none."""
    named: dict[str, str] = {}
    for name, value in fields:
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

    def __init__(self, snapshot: Snapshot, settings: Settings) -> None:
        self._names = volatile_names(snapshot)
        self._volatile = re.compile(
            rb"\r\n((?i:%b)):[ \t]*([\t\x20-\x7e\x80-\xff]*)(?=\r\n)" % b"|".join(map(re.escape, sorted(self._names)))
        )
        self._plans = Memo(lambda head: PreparedHead(read_request_head(head), snapshot, settings))
        self._plans_of_fields = Memo(lambda key: PreparedHead(_head_of(key), snapshot, settings))
        self._requests = Memo(self._read)

    def __call__(self, head: bytes) -> Request:
        """Read a whole head, from the request line to the empty line.

        Raises: GatewayError (BAD_REQUEST) where it is malformed: the start of the next request is unknown.
        """
        return self._requests(head)

    def of_fields(self, method: bytes, target: bytes, fields: list[Field]) -> Request:
        """Read a head that came as fields, names in lower case, as HTTP/2 brings it.

        Raises: GatewayError(BAD_REQUEST).
        """
        steady, volatile = split_fields(fields, self._names)
        return _request(self._plans_of_fields(b"\0".join((method, target, *steady))), volatile)

    def _read(self, head: bytes) -> Request:
        # What stands between the volatile fields, then each one's name and value, in turn.
        parts = self._volatile.split(head)
        plan = self._plans(b"".join(parts[::3]))
        volatile = [(name.lower(), value.rstrip()) for name, value in zip(parts[1::3], parts[2::3], strict=True)]
        return _request(plan, volatile)


def _request(plan: PreparedHead, volatile: list[Field]) -> Request:
    try:
        return Request(plan, volatile)
    except ValueError as error:
        raise GatewayError(ErrorKind.BAD_REQUEST, f"malformed request: {error}") from error


def _head_of(key: bytes) -> RequestHead:
    method, target, *rest = key.split(b"\0")
    return RequestHead(method, target, fields_of(rest), False)

"""Reading heads at the price of a lookup.

Requests of one client have the same head but for a few fields: the body's length, ids, traces, credentials. These are
cut out before the rest is looked up, so that what was planned for one request serves all that are like it. A field that
a rule asks for is never cut out.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from gateway.config.settings import Settings
from gateway.dataplane.plan import Plan
from gateway.dataplane.snapshot import Snapshot
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.wire.http1.head import Field, read_length, read_request_head
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
        b"x-b3-parentspanid",
        b"x-b3-sampled",
        b"x-b3-spanid",
        b"x-b3-traceid",
        b"x-cloud-trace-context",
        b"x-correlation-id",
    }
)


class Request:
    """A request's head, read: its plan, and what is its own.

    `body` is the body's length or CHUNKED; `json_length` is where the JSON of a V2 body ends and binary tensors start;
    `id` is None where the client gave none. `lines` are the volatile fields as they go on to an engine.
    """

    __slots__ = ("_fields", "body", "id", "json_length", "lines", "plan")

    def __init__(self, plan: Plan, volatile: list[Field]) -> None:
        self.plan = plan
        self.body = plan.head.body
        self.id: bytes | None = None
        self.json_length: bytes | None = None
        self._fields = volatile
        lines = []
        for name, value in volatile:
            if name == _LENGTH:
                if self.body:
                    raise ValueError("both Content-Length and Transfer-Encoding are given")
                self.body = read_length(value)
            elif name == _REQUEST_ID:
                self.id = value
                continue  # told anew by whoever sends the request on
            elif name == _JSON_LENGTH:
                self.json_length = value
            lines.append(b"%b: %b\r\n" % (name, value))
        self.lines = b"".join(lines)

    def __repr__(self) -> str:
        return f"<Request {self.plan!r} body={self.body}>"

    def lines_without(self, names: Collection[bytes]) -> bytes:
        """`lines` but for the fields that the engine's own take the place of."""
        kept = [field for field in self._fields if field[0] not in names and field[0] != _REQUEST_ID]
        return b"".join([b"%b: %b\r\n" % field for field in kept])


class Reader:
    """Reads heads by one snapshot of the rules."""

    def __init__(self, snapshot: Snapshot, settings: Settings) -> None:
        names = sorted(VOLATILE_FIELDS - {name.encode() for name in snapshot.headers_asked})
        self._volatile = re.compile(
            rb"\r\n((?i:%b)):[ \t]*([\t\x20-\x7e\x80-\xff]*)(?=\r\n)" % b"|".join(map(re.escape, names))
        )
        self._plans = Memo(lambda head: Plan(read_request_head(head), snapshot, settings))
        self._requests = Memo(self._read)

    def __call__(self, head: bytes) -> Request:
        """Read a whole head, from the request line to the empty line.

        Raises: GatewayError (BAD_REQUEST) where it is malformed, so that nobody can tell where the next request starts.
        """
        return self._requests(head)

    def _read(self, head: bytes) -> Request:
        parts = self._volatile.split(head)
        plan = self._plans(b"".join(parts[::3]))
        names = [name.lower() for name in parts[1::3]]
        if len(set(names)) < len(names):
            _refuse_repeated(names)
        try:
            return Request(plan, [(name, value.rstrip(b" \t")) for name, value in zip(names, parts[2::3], strict=True)])
        except ValueError as error:
            raise GatewayError(ErrorKind.BAD_REQUEST, f"malformed request: {error}") from error


def _refuse_repeated(names: list[bytes]) -> None:
    for name in (_LENGTH, _JSON_LENGTH):
        if names.count(name) > 1:
            raise GatewayError(ErrorKind.BAD_REQUEST, f"malformed request: the field {name.decode()} stands twice")

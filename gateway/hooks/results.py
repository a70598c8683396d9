"""What hooks return, and what they receive of replies and failures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.protocol.errors import ErrorKind

JSON_TYPE = "application/json"

# Headers that say how a message is framed, who sends it and to whom: the gateway writes them.
_OWN = frozenset(
    {
        *("connection", "content-encoding", "content-length", "expect", "host", "keep-alive", "te", "trailer"),
        *("transfer-encoding", "upgrade", "via", "x-request-id", "inference-header-content-length"),
        *("proxy-connection", "proxy-authenticate", "proxy-authorization"),
    }
)
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")

# The status of a refusal, and its kind, which has a status of gRPC too.
REJECT_KINDS: Mapping[int, ErrorKind] = {
    400: ErrorKind.BAD_REQUEST,
    401: ErrorKind.UNAUTHENTICATED,
    403: ErrorKind.FORBIDDEN,
    404: ErrorKind.NOT_FOUND,
    413: ErrorKind.BODY_TOO_LARGE,
    429: ErrorKind.RATE_LIMITED,
    501: ErrorKind.UNSUPPORTED,
    503: ErrorKind.OVERLOADED,
}


@dataclass(frozen=True, slots=True)
class Change:
    """The request goes on changed: to another `engine` or `model` of the rules, with these `headers` (None removes
    one), these top-level `fields` of its JSON body (without those in `remove`), or this whole JSON `body`.

    Raises: ValueError where a header may not be changed, or is malformed.
    """

    headers: Mapping[str, str | None] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    remove: Sequence[str] = ()
    body: Any = None
    engine: str | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        check_headers(self.headers)
        if self.body is not None and (self.fields or self.remove):
            raise ValueError("a change has a whole body, or fields of it")

    @property
    def changes_body(self) -> bool:
        return self.body is not None or bool(self.fields or self.remove)


@dataclass(frozen=True, slots=True)
class Reject:
    """The client gets this error, in the words of its API; the statuses are those of `REJECT_KINDS`.

    Raises: ValueError for another status.
    """

    status: int
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_headers(self.headers)
        if self.status not in REJECT_KINDS:
            raise ValueError(f"a request is rejected with {', '.join(map(str, REJECT_KINDS))}, not with {self.status}")

    @property
    def kind(self) -> ErrorKind:
        return REJECT_KINDS[self.status]


@dataclass(frozen=True, slots=True)
class Respond:
    """The client gets this reply; no engine is asked. `body` that is no bytes is written as JSON."""

    body: Any
    status: int = 200
    content_type: str = JSON_TYPE
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_headers({**self.headers, "content-type": self.content_type})
        if not 200 <= self.status <= 599:
            raise ValueError(f"a reply has a status from 200 to 599, not {self.status}")

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else orjson.dumps(self.body)


@dataclass(frozen=True, slots=True)
class HookReply:
    """A reply as hooks see it. `body` is None unless a hook `reads_reply`; `is_stream`: of events, which went to the
    client as they came. Header names are in lower case; `num_bytes` counts the body's, `seconds` run from the request's
    head."""

    status: int
    headers: Mapping[str, str]
    body: bytes | None
    is_stream: bool
    num_bytes: int
    seconds: float

    @property
    def json(self) -> Any:
        """The body's JSON; None where there is none."""
        try:
            return orjson.loads(self.body) if self.body else None
        except orjson.JSONDecodeError:
            return None


@dataclass(frozen=True, slots=True)
class ReplyChange:
    """The reply goes to the client changed; what is None stays as it is. `body` that is no bytes is written as JSON."""

    status: int | None = None
    headers: Mapping[str, str | None] = field(default_factory=dict)
    body: Any = None

    def __post_init__(self) -> None:
        check_headers(self.headers)
        if self.status is not None and not 200 <= self.status <= 599:
            raise ValueError(f"a reply has a status from 200 to 599, not {self.status}")

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else orjson.dumps(self.body)


@dataclass(frozen=True, slots=True)
class HookFailure:
    """Why a request has no reply, or no whole one: `reason` as `x-pointsman-reason` names it."""

    reason: str
    message: str
    status: int


def check_headers(headers: Mapping[str, str | None]) -> None:
    """Raises: ValueError where one may not be set, or would end its line."""
    for name, value in headers.items():
        if name.lower() in _OWN:
            raise ValueError(f"the header {name} is the gateway's own: a hook may not change it")
        if not _HEADER_NAME.fullmatch(name) or (value is not None and not _HEADER_VALUE.fullmatch(value)):
            raise ValueError(f"{name!r} is no header: its name or its value has characters that none has")

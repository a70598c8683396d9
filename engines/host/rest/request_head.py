"""Heads of requests, read once for all that are the same, and heads of replies.

Source: RFC 9110, RFC 9112.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from http.client import responses
from typing import Protocol
from urllib.parse import unquote

from engines.host.asgi_exchange import Application, Fields
from gateway.wire.http1.head import read_request_head

# Sends the reply of a request: status, pieces of the body, and fields without those of the connection.
SendReply = Callable[[int, Sequence[bytes | memoryview], Fields], None]

KEEP_ALIVE_END, KEEP_ALIVE_END_10, CLOSE_END = b"\r\n", b"connection: keep-alive\r\n\r\n", b"connection: close\r\n\r\n"

# Triton also serves requests without a Host field.
_HOST, _NO_HOST = re.compile(rb"\r\nhost:", re.IGNORECASE), b"host: -\r\n\r\n"

_STATUS_LINES = {status: f"HTTP/1.1 {status} {reason}\r\n".encode() for status, reason in responses.items()}


class Answering(Protocol):
    """A request that is being answered."""

    def cancel(self) -> None:
        """Its client has gone."""
        ...


# Answers a request that is whole, without a task: its fields by name, its body, and the way for its reply, which may be
# taken before this returns.
Direct = Callable[[Mapping[bytes, bytes], bytes, SendReply], Answering]


class PreparedRequest:
    """What requests with the same head have in common. `length` is the body's, None where it is chunked."""

    __slots__ = (
        "direct",
        "expects_continue",
        "fields",
        "headers",
        "is_http_10",
        "keep_alive",
        "length",
        "method",
        "target",
    )

    def __init__(self, head: bytes, application: Application) -> None:
        """Raises: GatewayError(BAD_REQUEST)."""
        read = read_request_head(head if _HOST.search(head) else head[:-2] + _NO_HOST)
        self.method = read.method
        self.target = read.target
        self.fields = read.fields
        self.headers = dict(read.fields)
        self.length = read.length
        self.keep_alive = read.keep_alive
        self.expects_continue = read.expects_continue
        self.is_http_10 = read.is_http_10
        direct = getattr(application, "direct", None)
        path = self.target.partition(b"?")[0].decode("latin-1")
        self.direct: Direct | None = None if direct is None else direct(self.method, path, self.headers)

    def __repr__(self) -> str:
        return f"<PreparedRequest {self.method} {self.target!r}>"

    def scope(self) -> dict[str, object]:
        """As ASGI has it."""
        path, _, query = self.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.0" if self.is_http_10 else "1.1",
            "method": self.method,
            "path": unquote(path.decode("latin-1")),
            "raw_path": path,
            "query_string": query,
            "headers": self.fields,
        }


def reply_head(status: int, fields: Fields, ending: bytes) -> bytes:
    """`ending` says how the connection goes on."""
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status
    return b"".join([line, *[b"%b: %b\r\n" % field for field in fields], ending])

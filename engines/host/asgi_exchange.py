"""One ASGI request and its reply; errors as replies.

Source: ASGI 3.0, "HTTP & WebSocket ASGI Message Format".
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

import orjson

from engines.core.errors import EngineError, ErrorCode, invalid

_log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
Fields = Sequence[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
_PLAIN = (b"content-type", b"text/plain")
_ACCEPTED = (b"accept-encoding", b"gzip, deflate")


class ClientGoneError(Exception):
    """The client left before its request was complete."""


class UnknownEncodingError(EngineError):
    """A content-encoding that the host does not decode; the reply names those that it does."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.UNSUPPORTED, "Unsupported compression type")


class Exchange:
    """`path` is as the client wrote it, without its query; `headers` has the last of each name, in lower case."""

    __slots__ = ("headers", "method", "path", "receive", "scope", "send")

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.method: str = scope["method"]
        raw = scope.get("raw_path")
        self.path: str = raw.decode("latin-1") if raw is not None else scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])

    def __repr__(self) -> str:
        return f"<Exchange {self.method} {self.path}>"

    async def body(self, limit: int) -> bytes:
        """Read the request's body.

        Raises: EngineError(INVALID_ARG) where it is longer than `limit` bytes, ClientGoneError.
        """
        length = self.headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > limit:
            raise _too_long(int(length), limit)
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            piece: bytes = message.get("body", b"")
            if not message.get("more_body"):
                if not pieces:
                    return piece
                pieces.append(piece)
                if size + len(piece) > limit:
                    raise _too_long(size + len(piece), limit)
                return b"".join(pieces)
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise _too_long(size, limit)

    async def reply(self, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
        """Send a complete reply; without headers its type is JSON, or plain where it is empty."""
        fields = headers or ((JSON,) if body else (_PLAIN,))
        await self.start(status, (*fields, (b"content-length", b"%d" % len(body))))
        await self.send({"type": "http.response.body", "body": body})

    async def start(self, status: int, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def more(self, body: bytes, *, is_last: bool = False) -> None:
        await self.send({"type": "http.response.body", "body": body, "more_body": not is_last})

    async def fail(self, error: EngineError, *headers: tuple[bytes, bytes]) -> None:
        await self.reply(error.status.http, error_json(error.message), JSON, *headers)


def error_json(text: str) -> bytes:
    return orjson.dumps({"error": text.encode("utf-8", "replace").decode()})


def error_reply(error: Exception, request: object) -> tuple[int, bytes, Fields]:
    """Status, body and fields of the reply to a request that failed; an unexpected error is logged."""
    if isinstance(error, EngineError):
        fields = (JSON, _ACCEPTED) if isinstance(error, UnknownEncodingError) else (JSON,)
        return error.status.http, error_json(error.message), fields
    _log.error("%r failed", request, exc_info=error)
    return 500, error_json(f"the host failed: {type(error).__name__}"), (JSON,)


def _too_long(size: int, limit: int) -> EngineError:
    return invalid(
        f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. Use "
        "--http-max-input-size to increase the limit."
    )

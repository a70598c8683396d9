"""One request and its reply as ASGI tells them.

Source: ASGI 3.0, "HTTP & WebSocket ASGI Message Format".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from engines.core.errors import EngineError, invalid

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

JSON = (b"content-type", b"application/json")
_EMPTY = (b"content-type", b"text/plain")


class ClientGoneError(Exception):
    """The client has left before its request was whole."""


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
        """The whole body.

        Raises: EngineError(INVALID_ARG) where it is longer than `limit` bytes, ClientGoneError.
        """
        told = self.headers.get(b"content-length", b"")
        if told.isdigit() and int(told) > limit:
            raise _too_long(int(told), limit)
        message = await self.receive()
        body: bytes = message.get("body", b"")
        if message.get("more_body"):
            body = await self._rest_of(body, limit)
        elif message["type"] == "http.disconnect":
            raise ClientGoneError
        return body

    async def _rest_of(self, begin: bytes, limit: int) -> bytes:
        pieces, size = [begin], len(begin)
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            piece: bytes = message.get("body", b"")
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise _too_long(size, limit)
            if not message.get("more_body"):
                return b"".join(pieces)

    async def reply(self, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
        """Send a whole reply; without headers it is JSON, or empty."""
        told = headers or ((JSON,) if body else (_EMPTY,))
        await self.start(status, (*told, (b"content-length", b"%d" % len(body))))
        await self.send({"type": "http.response.body", "body": body})

    async def start(self, status: int, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def more(self, body: bytes, *, is_last: bool = False) -> None:
        await self.send({"type": "http.response.body", "body": body, "more_body": not is_last})

    async def fail(self, error: EngineError, *headers: tuple[bytes, bytes]) -> None:
        await self.reply(error.status.http, error_json(error.message), JSON, *headers)


def error_json(text: str) -> bytes:
    return orjson.dumps({"error": text.encode("utf-8", "replace").decode()})


def _too_long(size: int, limit: int) -> EngineError:
    return invalid(
        f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. Use "
        "--http-max-input-size to increase the limit."
    )

"""One HTTP request and its reply; errors as replies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import orjson

from engines.core.errors import EngineError, ErrorCode

_log = logging.getLogger(__name__)

Fields = Sequence[tuple[bytes, bytes]]

# Sends the reply of a request: status, pieces of the body, and fields without those of the connection.
SendReply = Callable[[int, Sequence[bytes | memoryview], Fields], None]

JSON = (b"content-type", b"application/json")
_PLAIN = (b"content-type", b"text/plain")
_ACCEPTED = (b"accept-encoding", b"gzip, deflate")


class ClientGoneError(Exception):
    """The client left before its request was complete."""


class UnknownEncodingError(EngineError):
    """A content-encoding that the host does not decode; the reply names those that it does."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.UNSUPPORTED, "Unsupported compression type")


class BodyTooLongError(EngineError):
    """A body of more bytes than the host reads."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            ErrorCode.INVALID_ARG,
            f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. Use "
            "--http-max-input-size to increase the limit.",
        )


class Connection(Protocol):
    """The connection of a request, as its exchange uses it."""

    def expect_body(self) -> None: ...
    def begin_reply(self, status: int, fields: Fields) -> None: ...
    def write_body(self, data: bytes, *, is_last: bool) -> None: ...
    def break_off(self) -> None: ...
    async def drained(self) -> None: ...


class Exchange:
    """A request that an application answers in a task, while the body still comes.

    `path` is as the client wrote it, without its query; `headers` has the last of each name, in lower case.
    """

    def __init__(self, connection: Connection, method: str, path: str, headers: Mapping[bytes, bytes]) -> None:
        self._connection = connection
        self.method = method
        self.path = path
        self.headers = headers
        self._pieces: list[bytes] = []
        self._num_bytes = 0
        self._is_complete = False  # the body
        self._waiter: asyncio.Future[None] | None = None
        self._on_gone: list[Callable[[], None]] = []
        self.has_begun = False  # the reply
        self.is_over = False  # the reply has ended, or the client has left

    async def run(self, application: Application) -> None:
        """Answer by the application; its errors become replies."""
        try:
            await application(self)
        except ClientGoneError:
            pass
        except Exception as error:
            status, body, fields = error_reply(error, f"{self.method} {self.path}")
            if not self.has_begun:
                await self.reply(status, body, *fields)
            elif not self.is_over:
                self._connection.break_off()

    # Called by the connection

    def body_received(self, data: bytes, ended: bool) -> None:
        self._is_complete = ended
        if not self.is_over:
            self._pieces.append(data)
            self._num_bytes += len(data)
        self._wake()

    def cancel(self) -> None:
        """The client has gone."""
        self.is_over = True
        self._wake()
        for callback in self._on_gone:
            callback()

    # Called by the application

    async def body(self, limit: int) -> bytes:
        """Read the request's body.

        Raises: BodyTooLongError where it is longer than `limit` bytes, ClientGoneError.
        """
        length = self.headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > limit:
            raise BodyTooLongError(int(length), limit)
        while True:
            if self._num_bytes > limit:
                raise BodyTooLongError(self._num_bytes, limit)
            if self.is_over:
                raise ClientGoneError
            if self._is_complete:
                return b"".join(self._pieces)
            self._connection.expect_body()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def when_gone(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the client leaves before its reply has ended."""
        if self.is_over:
            callback()
        else:
            self._on_gone.append(callback)

    async def reply(self, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
        """Send a complete reply; without headers its type is JSON, or plain where it is empty."""
        fields = headers or ((JSON,) if body else (_PLAIN,))
        await self.start(status, (*fields, (b"content-length", b"%d" % len(body))))
        await self.more(body, is_last=True)

    async def start(self, status: int, fields: Fields) -> None:
        """Begin a reply, whose body is sent by `more`."""
        if not self.is_over:
            self.has_begun = True
            self._connection.begin_reply(status, fields)

    async def more(self, body: bytes, *, is_last: bool = False) -> None:
        """Send a piece of the reply; returns when the client reads."""
        if not self.is_over:
            self.is_over = is_last
            self._connection.write_body(body, is_last=is_last)
            await self._connection.drained()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


Application = Callable[[Exchange], Awaitable[None]]


class InFlight(Protocol):
    """A request that is being answered."""

    def cancel(self) -> None:
        """Its client has gone."""
        ...


# Answers a request that is whole, without a task: its fields by name, its body, and the way for its reply, which may be
# taken before this returns.
Direct = Callable[[Mapping[bytes, bytes], bytes, SendReply], InFlight]


def error_json(text: str) -> bytes:
    return orjson.dumps({"error": text.encode("utf-8", "replace").decode()})


def error_reply(error: Exception, request: str) -> tuple[int, bytes, Fields]:
    """Status, body and fields of the reply to a request that failed; an unexpected error is logged."""
    if isinstance(error, EngineError):
        fields = (JSON, _ACCEPTED) if isinstance(error, UnknownEncodingError) else (JSON,)
        return error.status.http, error_json(error.message), fields
    _log.error("%s failed", request, exc_info=error)
    return 500, error_json(f"the host failed: {type(error).__name__}"), (JSON,)

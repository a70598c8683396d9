"""A request that an ASGI application answers.

Source: ASGI 3.0, "HTTP & WebSocket ASGI Message Format".
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from engines.host.asgi_exchange import JSON, Application, Fields, Message, error_json
from engines.host.rest.request_head import PreparedRequest
from gateway.wire.http1.body import LAST_CHUNK, encode_chunk

_log = logging.getLogger(__name__)

# How much of a body is buffered for an application that does not read it.
_MAX_WAITING_BYTES = 256 * 1024


class AsgiConnection(Protocol):
    """The connection of a request, as the request uses it."""

    loop: asyncio.AbstractEventLoop
    tasks: set[asyncio.Task[None]]

    def expect_body(self) -> None: ...
    def pause_body(self) -> None: ...
    def resume_body(self) -> None: ...
    def begin_reply(self, status: int, fields: Fields, *, ends_by_closing: bool) -> None: ...
    def write(self, data: bytes) -> None: ...
    def end_reply(self) -> None: ...
    def break_off(self) -> None: ...
    async def drained(self) -> None: ...


class AsgiRequest:
    """Its task runs from the head on, while the body still comes."""

    __slots__ = (
        "_connection",
        "_fields",
        "_is_chunked",
        "_is_complete",
        "_is_delivered",
        "_is_gone",
        "_num_waiting",
        "_pieces",
        "_prepared",
        "_status",
        "_waiter",
        "has_begun",
    )

    def __init__(self, connection: AsgiConnection, prepared: PreparedRequest, application: Application) -> None:
        self._connection = connection
        self._prepared = prepared
        self._pieces: list[bytes] = []
        self._num_waiting = 0
        self._is_complete = False  # the body
        self._is_delivered = False  # the end of the body, to the application
        self._is_gone = False  # the client has left, or the reply has ended
        self._waiter: asyncio.Future[None] | None = None
        self._status = 0
        self._fields: Fields = ()
        self.has_begun = self._is_chunked = False  # has_begun: the reply
        task = connection.loop.create_task(self._run(application))
        connection.tasks.add(task)
        task.add_done_callback(connection.tasks.discard)

    def __repr__(self) -> str:
        return f"<AsgiRequest {self._prepared!r}{' gone' if self._is_gone else ''}>"

    # Called by the connection

    def body_received(self, data: bytes, ended: bool) -> None:
        self._is_complete = ended
        if data and not self._is_gone:
            self._pieces.append(data)
            self._num_waiting += len(data)
            if self._num_waiting > _MAX_WAITING_BYTES and not ended:
                self._connection.pause_body()
        self._wake()

    def cancel(self) -> None:
        """The client has gone."""
        self._is_gone = True
        self._wake()

    # The application

    async def _run(self, application: Application) -> None:
        try:
            await application(self._prepared.scope(), self._receive, self._send)
        except Exception:
            _log.exception("%r failed", self)
        if self._is_gone:
            return
        if self.has_begun:
            self._connection.break_off()
        else:
            await self._send({"type": "http.response.start", "status": 500, "headers": (JSON,)})
            await self._send({"type": "http.response.body", "body": error_json("the host has no answer")})

    async def _receive(self) -> Message:
        while True:
            if self._pieces:
                data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
                self._pieces = []
                self._num_waiting = 0
                self._connection.resume_body()
                self._is_delivered = self._is_complete
                return {"type": "http.request", "body": data, "more_body": not self._is_complete}
            if self._is_gone:
                return {"type": "http.disconnect"}
            if self._is_complete and not self._is_delivered:
                self._is_delivered = True
                return {"type": "http.request", "body": b"", "more_body": False}
            self._connection.expect_body()
            self._waiter = self._connection.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def _send(self, message: Message) -> None:
        if self._is_gone:
            return
        if message["type"] == "http.response.start":
            self._status, self._fields = message["status"], tuple(message["headers"])
            return
        body, has_more = message.get("body", b""), message.get("more_body", False)
        connection = self._connection
        if not self.has_begun:
            self._begin()
        if self._prepared.method != "HEAD":
            if self._is_chunked:
                body = encode_chunk(body) + (b"" if has_more else LAST_CHUNK)
            if body:
                connection.write(body)
        if not has_more:
            self._is_gone = True
            connection.end_reply()
        await connection.drained()

    def _begin(self) -> None:
        self.has_begun = True
        has_length = any(name.lower() == b"content-length" for name, _ in self._fields)
        self._is_chunked = not has_length and not self._prepared.is_http_10
        if self._is_chunked:
            self._fields = (*self._fields, (b"transfer-encoding", b"chunked"))
        self._connection.begin_reply(
            self._status, self._fields, ends_by_closing=not has_length and not self._is_chunked
        )

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

"""The reply to a request of a route with hooks: passed on as it comes, held until it is whole, or piece by piece."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from enum import Enum
from time import monotonic
from typing import Any, Protocol

from gateway.dataplane.context.active_requests import Progress
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.interposed_handler import InterposedHandler
from gateway.dataplane.context.local_replies import JSON, error_event
from gateway.dataplane.context.reply_fields import VIA
from gateway.dataplane.context.route_target import RouteTarget
from gateway.hooks.method import CallMode, HookFailed, HookMethod
from gateway.hooks.request import HookRequest
from gateway.hooks.results import HookReply, ReplyChange
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.wire.http1.head import Field, ResponseHead

_log = logging.getLogger(__name__)

_EVENTS = "text/event-stream"
# Of a reply that is held for its hooks; of a stream, what they get of it at its end.
MAX_HELD_BYTES = 16 * 1024 * 1024
MAX_STREAM_BYTES = 1024 * 1024
# Pieces that wait for their hooks, in bytes, before the engine's reply is paused.
_MAX_QUEUED_BYTES = 256 * 1024
# Written anew with the reply.
_OF_BODY = frozenset(
    {b"x-request-id", b"connection", b"content-length", b"content-type", b"keep-alive", b"transfer-encoding"}
)


class ReplyMode(Enum):
    """How a reply reaches the client."""

    PASSED = "as it comes"
    HELD = "whole, after its hooks"
    STREAM = "piece by piece"


class HookedRequest(Protocol):
    """The request, as its reply needs it."""

    @property
    def request(self) -> Request: ...

    @property
    def reads_reply(self) -> bool: ...

    def reply_methods(self, name: str) -> list[HookMethod]: ...

    def run(self, steps: Coroutine[Any, Any, None]) -> None: ...

    def finish(self) -> None: ...

    def refused(self, error: GatewayError) -> None: ...

    def abandon(self, error: GatewayError, event: bytes) -> None: ...

    def observe(self, methods: list[HookMethod], event: object) -> None: ...

    def count_failed(self) -> None: ...

    def client_paused(self) -> None: ...

    def client_resumed(self) -> None: ...


class HookedReply(InterposedHandler):
    """One reply: the client of the engine's handler. `is_held`: its hooks need it without the framing of HTTP/1.1."""

    def __init__(self, client: Client, hooked: HookedRequest, seen: HookRequest, started_at: float) -> None:
        super().__init__(client)
        self._handler = None
        self._hooked = hooked
        self._seen = seen
        self._started_at = started_at
        self._on_reply = hooked.reply_methods("on_reply")
        self._on_chunk = hooked.reply_methods("on_chunk")
        self._reads = hooked.reads_reply
        self.is_held = self._reads or bool(self._on_chunk)
        self.takes_payload = self.takes_payload or self.is_held
        self.has_begun = False  # something of it is written
        self.is_received = False  # the engine's handler has ended
        self._mode = ReplyMode.PASSED
        self._status = 0
        self._fields: list[Field] = []
        self._head: tuple[ResponseHead, list[Field]] | None = None  # of a passed reply: its fields, once they are read
        self._type = ""
        self._pieces: list[bytes] = []
        self._size = 0
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._is_working = False  # on the queue

    @property
    def is_paused(self) -> bool:
        return self._client.is_paused or self._is_full

    @property
    def _is_full(self) -> bool:
        return self._queued_bytes > _MAX_QUEUED_BYTES

    # As a handler: it is none of the client's

    def body_received(self, data: bytes, ended: bool) -> None:
        raise NotImplementedError

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        raise NotImplementedError

    def progress(self) -> Progress:
        raise NotImplementedError

    # What the engine's handler writes

    def relay(
        self, head: ResponseHead, route_target: RouteTarget, added: Sequence[Field], request_id: bytes, data: bytes
    ) -> None:
        self._status = head.status
        self._head = head, [*route_target.reply_fields, *added, VIA, (b"x-request-id", request_id)]
        if not self.is_held:
            self._size += len(data)
            self._client.relay(head, route_target, added, request_id, data)
            return
        self._read_head()
        self._begin(data)

    def _read_head(self) -> None:
        if self._head is not None:
            head, named = self._head
            dropped = _OF_BODY if self.is_held else (b"x-request-id",)
            self._fields = [field for field in head.fields if field[0] not in dropped] + named
            self._type = (head.value(b"content-type") or b"").decode("latin-1")

    def start_stream(self, content_type: str, fields: Sequence[Field], data: bytes) -> None:
        self._status, self._type, self._fields = 200, content_type, [*fields, VIA]
        if self.is_held:
            self._begin(data)
        else:
            self._size += len(data)
            self._client.start_stream(content_type, fields, data)

    def _begin(self, data: bytes) -> None:
        if self._status == 200 and self._type.startswith(_EVENTS):
            self._mode = ReplyMode.STREAM
            self._client.start_stream(self._type, [field for field in self._fields if field != VIA], b"")
            self.has_begun = True
        else:
            self._mode = ReplyMode.HELD
        if data:
            self._take(data)

    def write(self, data: bytes) -> None:
        if self._mode is ReplyMode.PASSED:
            self._size += len(data)
            self._client.write(data)
        elif data:
            self._take(data)

    def write_piece(self, data: bytes, ended: bool = False) -> None:
        if self._mode is ReplyMode.PASSED:
            self._size += len(data)
            self._client.write_piece(data, ended)
        elif data:
            self._take(data)

    def respond(self, status: int, body: bytes, fields: Sequence[Field] = (), content_type: str = JSON) -> None:
        self.is_received = True
        self._status, self._type, self._fields, self._size = status, content_type, list(fields), len(body)
        if not self._reads:
            self._client.respond(status, body, fields, content_type)
            self._is_written(body if self._reads else None)
            return
        self._mode, self._pieces = ReplyMode.HELD, [body]
        self._hooked.run(self._answer())

    def refuse(self, error: GatewayError, fields: Sequence[Field] = ()) -> None:
        self.is_received = True
        self._client.refuse(error, fields)
        self._hooked.refused(error)

    def reply_ended(self) -> None:
        self.is_received = True
        if self._mode is ReplyMode.PASSED:
            self._client.reply_ended()
            self._is_written(None)
        elif self._mode is ReplyMode.HELD:
            self._hooked.run(self._answer())
        elif not self._is_working:
            self._end_stream()

    def break_off(self, event: bytes = b"") -> None:
        self.is_received = True
        error = GatewayError(ErrorKind.UPSTREAM_RESET, "the engine broke its reply off")
        self._queue.clear()
        if self._mode is ReplyMode.HELD:  # nothing of it is written
            self._client.refuse(error, [(b"x-request-id", self._hooked.request.id or b"")])
            self._hooked.refused(error)
        else:
            self._hooked.abandon(error, event)

    # Held, or piece by piece

    def _take(self, data: bytes) -> None:
        self._size += len(data)
        most = MAX_STREAM_BYTES if self._mode is ReplyMode.STREAM else MAX_HELD_BYTES
        if self._mode is ReplyMode.HELD:
            self._pieces.append(data)
            if self._size > most:
                self._pieces.clear()
            return
        if self._reads and self._size <= most:
            self._pieces.append(data)
        if not self._on_chunk:
            self._client.write_piece(data)
        elif not self._is_working and all(method.mode is CallMode.INLINE for method in self._on_chunk):
            self._write_inline(data)
        else:
            self._queue.append(data)
            was_full = self._is_full
            self._queued_bytes += len(data)
            if not self._is_working:
                self._is_working = True
                self._hooked.run(self._work())
            elif self._is_full and not was_full:
                self._hooked.client_paused()

    def _write_inline(self, data: bytes) -> None:
        for method in self._on_chunk:
            try:
                data = _piece(method, method.call_inline(self._seen, data), data)
            except HookFailed as error:
                if not self._goes_on(method, error):
                    return
        if data:
            self._client.write_piece(data)

    async def _work(self) -> None:
        while self._queue:
            data = self._queue.popleft()
            was_full, size = self._is_full, len(data)
            for method in self._on_chunk:
                try:
                    data = _piece(method, await method.call(self._seen, data), data)
                except HookFailed as error:
                    if not self._goes_on(method, error):
                        return
            if data:
                self._client.write_piece(data)
            self._queued_bytes -= size
            if was_full and not self._is_full and not self._client.is_paused and not self.is_received:
                self._hooked.client_resumed()
        self._is_working = False
        if self.is_received:
            self._end_stream()

    def _goes_on(self, method: HookMethod, failure: HookFailed) -> bool:
        """Whether the reply goes on without a hook that has failed; else it is ended."""
        self._hooked.count_failed()
        if method.fails_open:
            return True
        error = GatewayError(ErrorKind.HOOK_FAILED, str(failure))
        self._queue.clear()
        self._hooked.abandon(error, error_event(error, self._hooked.request.plan.api))
        return False

    def _end_stream(self) -> None:
        self._client.write_piece(b"", ended=True)
        self._client.reply_ended()
        is_whole = self._size <= MAX_STREAM_BYTES
        self._is_written(b"".join(self._pieces) if self._reads and is_whole else None)

    async def _answer(self) -> None:
        """Answer with a held reply, once its hooks have seen it."""
        try:
            if self._size > MAX_HELD_BYTES:
                what = f"a reply of more than {MAX_HELD_BYTES} bytes cannot be read by the hooks of its route"
                raise GatewayError(ErrorKind.HOOK_FAILED, what)
            status, fields, body, content_type = await self._through_hooks(b"".join(self._pieces))
        except GatewayError as error:
            self._hooked.finish()
            self._client.refuse(error, [(b"x-request-id", self._hooked.request.id or b"")])
            return
        except Exception:
            _log.exception("cannot answer after the hooks of a route")
            self._hooked.finish()
            failure = GatewayError(ErrorKind.INTERNAL, "the gateway failed to answer; its log says why")
            self._client.refuse(failure, [(b"x-request-id", self._hooked.request.id or b"")])
            return
        self._hooked.finish()
        self._client.respond(status, body, fields, content_type)

    async def _through_hooks(self, body: bytes) -> tuple[int, list[Field], bytes, str]:
        """The status, fields, body and type of a held reply. Raises: GatewayError(HOOK_FAILED)."""
        status, fields, content_type = self._status, self._fields, self._type
        for method in self._on_reply if self._reads else ():
            reply = self._seen_reply(status, fields, body, content_type)
            try:
                change = await method.call(self._seen, reply)
                changed = _changed_body(method, change, body)
            except HookFailed as error:
                self._hooked.count_failed()
                if not method.fails_open:
                    raise GatewayError(ErrorKind.HOOK_FAILED, str(error)) from error
                continue
            if change is not None:
                status = change.status or status
                body = changed
                names = {name.lower().encode("ascii") for name in change.headers}
                fields = [field for field in fields if field[0] not in names]
                for name, value in change.headers.items():
                    if name.lower() == "content-type":
                        content_type = value or content_type
                    elif value is not None:
                        fields.append((name.lower().encode("ascii"), value.encode("latin-1")))
        if not self._reads and self._on_reply:
            self._hooked.observe(self._on_reply, self._seen_reply(status, fields, None, content_type))
        return status, fields, body, content_type

    def _is_written(self, body: bytes | None) -> None:
        """The client has the reply: tell the hooks."""
        self._hooked.finish()
        if self._on_reply:
            self._read_head()
            self._hooked.observe(self._on_reply, self._seen_reply(self._status, self._fields, body, self._type))

    def _seen_reply(self, status: int, fields: Sequence[Field], body: bytes | None, content_type: str) -> HookReply:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(fields)}
        if content_type:
            headers["content-type"] = content_type
        is_stream = status == 200 and content_type.startswith(_EVENTS)
        size = self._size if body is None else len(body)
        return HookReply(status, headers, body, is_stream, size, monotonic() - self._started_at)


def _changed_body(method: HookMethod, change: object, body: bytes) -> bytes:
    """The body of a reply after a hook. Raises: HookFailed where it may not be changed so."""
    if change is None:
        return body
    if not isinstance(change, ReplyChange):
        raise method.failed(TypeError(f"it returned {type(change).__name__}: None or ReplyChange"))
    try:
        return body if change.body is None else change.content
    except TypeError as error:
        raise method.failed(error) from error


def _piece(method: HookMethod, result: object, data: bytes) -> bytes:
    """What goes on in place of a piece. Raises: HookFailed."""
    if result is None:
        return data
    if not isinstance(result, bytes):
        raise method.failed(TypeError(f"it returned {type(result).__name__}: None or bytes"))
    return result

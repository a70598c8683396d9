"""A REST request on an HTTP/2 stream, answered by the handlers of HTTP/1.1 (RFC 9113 section 8)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from time import monotonic

from gateway.dataplane.context.active_requests import Progress
from gateway.dataplane.context.ended_request import UNREAD, EndedRequest
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.in_process_client import InProcessClient, ReplySink
from gateway.dataplane.context.interfaces import Client, Handler
from gateway.dataplane.context.local_replies import NOT_MODIFIED, error_event, error_reply
from gateway.dataplane.context.prepared_head import PreparedHead
from gateway.dataplane.context.reply_fields import EVERY_REPLY
from gateway.dataplane.grpc.interfaces import CallClient, CallHandler
from gateway.net.transfer_rate import TransferRate
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.operations import LlmApi
from gateway.wire.http1.head import Field
from gateway.wire.http2.fields import Block
from gateway.wire.http2.frames import ErrorCode
from gateway.wire.http2.hpack import CachedHeaders, literals
from gateway.wire.http2.peer_state import ENDED
from gateway.wire.http2.stream import Stream

_CONTINUE = CachedHeaders([(b":status", b"100")])
_EVENTS = b"text/event-stream"
_REWRITTEN = (b"host", b"cookie", b"te", b"expect")


class RestOverHttp2(CallHandler, ReplySink):
    """Passes one request from the stream to a handler, and the reply back. `handler_for` makes the handler."""

    __slots__ = (
        "_active_at",
        "_api",
        "_client",
        "_handler",
        "_has_ended",
        "_id",
        "_is_body_paused",
        "_owed",
        "_plan",
        "_rate",
        "_rest",
        "_size",
        "_stream",
        "_streams_events",
        "_without_body",
    )

    _plan: PreparedHead  # where there is a handler

    def __init__(
        self, client: CallClient, stream: Stream, block: Block, handler_for: Callable[[Client, Request], Handler]
    ) -> None:
        self._client = client
        self._stream = stream
        self._rest = InProcessClient(client.plane, self, client.peer, client, is_tls=client.is_tls)
        self._rest.trace = stream.note
        self._handler: Handler | None = None
        self._api: LlmApi | None = None
        self._id: bytes | None = None
        self._size = 0
        self._owed = 0
        self._rate: TransferRate | None = None
        self._streams_events = False
        self._is_body_paused = False
        self._has_ended = stream.peer_state is ENDED
        self._without_body = block.value(b":method") == b"HEAD"
        self._active_at = monotonic()
        try:
            request = client.plane.read.of_fields(*_head_of(block, has_body=not self._has_ended), client)
        except GatewayError as error:
            client.plane.metrics.unrouted.count_error(error.kind.value)
            client.plane.metrics.unrouted.count_failure(error.status.http, 0.0)
            client.plane.request_log.add(EndedRequest(client.peer, UNREAD, error.status.http, error.kind.value, 0.0))
            self.refused(error, [])
            return
        self._plan, self._api, self._id = request.plan, request.plan.api, request.id
        if block.value(b"expect") is not None:
            stream.send_headers(_CONTINUE)
        self._handler = handler_for(self._rest, request)
        if (request.length or 0) > self._plan.max_body_bytes:
            self._give_up(self._plan.body_too_long(client.plane.settings.limits))
        elif not self._has_ended:
            self._handler.body_received(b"", False)

    # Events of the stream

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        handler = self._handler
        if handler is None:
            return
        self._has_ended = ended
        if ended:
            self._client.plane.held.release(self)
        self._active_at = monotonic()
        self._size += len(data)
        if self._size > self._plan.max_body_bytes:
            self._give_up(self._plan.body_too_long(self._client.plane.settings.limits))
            return
        handler.body_received(data, ended)
        if self._is_body_paused:
            self._owed += len(data)
        elif not ended:
            stream.credit(len(data))

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        handler, self._handler = self._handler, None
        self._client.plane.held.release(self)
        self._client.plane.read_ahead.release(self)
        if handler is not None:
            handler.client_gone()

    def read_ahead(self, size: int) -> bool:
        return self._client.plane.read_ahead.take(self, size)

    def drained(self, stream: Stream) -> None:
        self._client.plane.read_ahead.release(self)
        self._rest.is_paused = False
        if self._handler is not None:
            self._handler.client_resumed()
        else:
            self._end()

    def sweep(self, now: float) -> None:
        """Fail where the client has fallen silent in the middle of its request."""
        handler = self._handler
        is_late = now - self._active_at > self._client.plane.settings.limits.body_timeout
        if handler is None:
            if is_late:
                self._client.call_ended(self._stream)
            return
        handler.sweep(now)
        if self._has_ended or self._is_body_paused:
            self._rate = None
            return
        limits, what = self._client.plane.settings.limits, ""
        if is_late:
            what = f"no more of the request's body came for {limits.body_timeout:g} s"
        elif self._rate is None:
            self._rate = TransferRate(self, -self._size, now)
        elif self._rate.is_below(limits.min_rate, -self._size, now):
            what = f"the request's body comes slower than {limits.min_rate} bytes a second (--min-rate)"
        if what:
            self._give_up(GatewayError(ErrorKind.REQUEST_TIMEOUT, what))

    def progress(self) -> Progress | None:
        return self._handler.progress() if self._handler is not None else None

    def cancel(self, error: GatewayError) -> None:
        if self._handler is not None:
            event = error_event(error, self._api) if self._streams_events else b""
            self._give_up(error, event)

    def _give_up(self, error: GatewayError, event: bytes = b"") -> None:
        """End the request with an error; a reply that has begun breaks off, a stream of events with this event."""
        handler, self._handler = self._handler, None
        self._client.plane.held.release(self)
        assert handler is not None
        has_begun = handler.begun
        handler.client_gone(error.kind.value, error.status.http)
        if has_begun:
            self.reply_broken(event)
        else:
            self.refused(error, [(b"x-request-id", self._id or self._client.plane.new_request_id())])

    # The reply: see `ReplySink`

    def reply_started(self, status: int, fields: list[Field]) -> None:
        self._streams_events = (b"content-type", _EVENTS) in fields
        self._without_body = self._without_body or status == NOT_MODIFIED
        self._stream.send_headers(_status(status), literals(fields))

    def reply_continued(self, data: bytes) -> None:
        stream = self._stream
        if self._without_body:
            return
        stream.send_data(data)
        if stream.is_waiting and not self._rest.is_paused:
            self._rest.is_paused = True
            if self._handler is not None:
                self._handler.client_paused()

    def reply_ended(self) -> None:
        self._handler = None
        self._stream.send_data(b"", True)
        self._end()

    def _end(self) -> None:
        """The reply is sent or buffered. The client's body may not have ended: its last frame can be empty, and a reply
        may come early. Clients (httpx) fail where the stream is reset under what they still send, so the rest is
        dropped where the window has room for it; the sweep bounds the wait."""
        stream = self._stream
        missing = stream.expected_bytes
        if missing is None or missing > stream.receive_window:
            self._client.call_ended(stream)

    def refused(self, error: GatewayError, fields: Sequence[Field]) -> None:
        self._rest.respond(*error_reply(error, self._api, fields))

    def reply_broken(self, event: bytes) -> None:
        if event:
            self.reply_continued(event)
        self._handler = None
        self._client.plane.read_ahead.release(self)
        self._stream.reset(ErrorCode.INTERNAL_ERROR)

    def hold_body(self) -> None:
        self._client.plane.held.hold(self, self._size, self._client)

    def pause_body(self) -> None:
        self._is_body_paused = True

    def resume_body(self) -> None:
        self._is_body_paused = False
        self._active_at = monotonic()  # the gateway held the client back
        if self._owed:
            owed, self._owed = self._owed, 0
            self._stream.credit(owed)


def _head_of(block: Block, *, has_body: bool) -> tuple[bytes, bytes, list[Field]]:
    """The request's method, target and fields, as a handler of REST has them."""
    named = dict(reversed(block.fields))
    fields = [(b"host", named.get(b":authority") or named.get(b"host") or b"")]
    cookies = [value for name, value in block.fields if name == b"cookie"]  # may be split (section 8.2.3)
    if cookies:
        fields.append((b"cookie", b"; ".join(cookies)))
    fields += [field for field in block.fields if not field[0].startswith(b":") and field[0] not in _REWRITTEN]
    if has_body and b"content-length" not in named:
        fields.append((b"transfer-encoding", b"chunked"))
    return named[b":method"], named[b":path"], fields


@cache
def _status(status: int) -> CachedHeaders:
    return CachedHeaders([(b":status", b"%d" % status), *EVERY_REPLY])

"""A request whose engine speaks otherwise: read whole, translated, asked as any other request, the reply translated.

It stands between the client and the handler that asks the engine, and is that handler's client: tries, limits and
counters are those of every request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Protocol, runtime_checkable

from gateway.dataplane.body import decoded
from gateway.dataplane.bridging.rest_client import RestClient
from gateway.dataplane.replies import error_told, event_told, reason_line, status_told
from gateway.dataplane.request import Request
from gateway.dataplane.seams import Client, Handler
from gateway.dataplane.snapshot import Lane
from gateway.dataplane.translating.asking import request_towards
from gateway.dataplane.tries import Tries
from gateway.protocol.condition import Condition
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.translating import EngineRequest, Reply, Translator
from gateway.upstream.endpoint import Endpoint
from gateway.wire.http1.chunked import LAST_CHUNK, encode_chunk
from gateway.wire.http1.head import Field

_log = logging.getLogger(__name__)

_EVENTS = b"text/event-stream"
_HEAD_BYTES = b"inference-header-content-length"
# Of an engine's reply, what goes on beside what the gateway says of its decision.
_KEPT = frozenset({b"x-request-id", b"retry-after", b"endpoint-load-metrics"})
_KEPT_FAMILIES = (b"x-pointsman-", b"x-ratelimit-", b"anthropic-ratelimit-")

# How often one generation goes on elsewhere.
_MAX_RESUMED = 3

# Makes the translator of a request from its body; a coroutine where the engine must be asked about the model first.
Make = Callable[[Request, bytes, Lane], Translator | Awaitable[Translator]]
# Lets a translator ask another lane's engine from now on; told too is the model's version.
Turn = Callable[[Translator, Lane, str], Awaitable[None]]
# Makes the handler that asks the engine.
Ask = Callable[[Client, Request, tuple[Lane, str | None]], Handler]


@runtime_checkable
class Resumable(Protocol):
    """A translator whose generation can go on elsewhere."""

    @property
    def can_resume(self) -> bool: ...

    def resume(self) -> EngineRequest:
        """The request for the rest of the generation."""
        ...

    def seam(self) -> bytes:
        """The event that marks where another engine has taken over."""
        ...


class Translation:
    """One request, translated both ways."""

    __slots__ = (
        "_answer",
        "_ask",
        "_client",
        "_dropped",
        "_fields",
        "_handler",
        "_is_over",
        "_is_streaming",
        "_lane",
        "_left",
        "_make",
        "_num_resumed",
        "_pieces",
        "_request",
        "_rest",
        "_session",
        "_started_at",
        "_status",
        "_streams_any_type",
        "_task",
        "_translator",
        "_turn",
        "begun",
    )

    def __init__(
        self, client: Client, request: Request, lane: Lane, session: str | None, make: Make, ask: Ask, turn: Turn
    ) -> None:
        self._client = client
        if request.id is None:
            request = request.of(request.plan)
            request.id = client.plane.new_request_id()
        self._request = request
        self._lane = lane
        self._session = session
        self._make = make
        self._ask = ask
        self._turn = turn
        self._left: tuple[Endpoint, ...] = ()  # endpoints that broke the generation off
        self._rest = _rest_client(client, self)
        self._started_at = monotonic()
        self._pieces: list[bytes] = []
        self._translator: Translator | None = None
        self._handler: Handler | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self.begun = False
        # The engine's reply
        self._status = 0
        self._fields: list[Field] = []
        self._answer: list[bytes] = []
        self._is_streaming = False
        self._num_resumed = 0
        self._streams_any_type = False
        self._dropped = b""  # tells what the engine was not told

    def __repr__(self) -> str:
        return f"<Translation {self._request.plan!r} by {self._handler!r}>"

    # What the client's connection tells it

    def body_received(self, data: bytes, ended: bool) -> None:
        self._pieces.append(data)
        if not ended:
            self._client.expect_body()
            return
        body = b"".join(self._pieces)
        self._pieces.clear()
        try:
            body = decoded(self._request, body, self._client.plane.settings.limits.max_body_bytes)
            made = self._make(self._request, body, self._lane)
            if isinstance(made, Awaitable):
                self._task = asyncio.get_running_loop().create_task(self._begin_later(made))
            else:
                self._begin(made)
        except GatewayError as error:
            self._refuse(error)

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
        if self._handler is not None:
            self._handler.client_gone(reason, status)
        else:
            self._count(reason, status)

    def client_paused(self) -> None:
        self._rest.is_paused = True
        if self._handler is not None:
            self._handler.client_paused()

    def client_resumed(self) -> None:
        self._rest.is_paused = False
        if self._handler is not None:
            self._handler.client_resumed()

    def sweep(self, now: float) -> None:
        if self._handler is not None:
            self._handler.sweep(now)

    # Asking

    async def _begin_later(self, making: Awaitable[Translator]) -> None:
        try:
            translator = await making
            self._task = None
            self._begin(translator)
        except GatewayError as error:
            self._refuse(error)
        except Exception:
            _log.exception("cannot translate %s", self._request.plan)
            what = "the gateway failed to translate the request; its log says why"
            self._refuse(GatewayError(ErrorKind.INTERNAL, what))

    def _begin(self, translator: Translator) -> None:
        self._translator = translator
        self._ask_for(translator.request())

    def _ask_for(self, asked: EngineRequest) -> None:
        request = request_towards(self._request, self._lane, asked)
        self._streams_any_type = asked.streams_any_type
        if asked.dropped:
            self._dropped = b"x-pointsman-dropped: %b\r\n" % ", ".join(asked.dropped).encode("ascii", "replace")
        self._status, self._fields, self._answer, self._is_streaming = 0, [], [], False
        self._rest = _rest_client(self._client, self)
        handler = self._handler = self._ask(self._rest, request, (self._lane, self._session))
        if isinstance(handler, Tries) and self._left:
            handler.avoid(self._left)
        handler.body_received(asked.body, True)

    # What the handler tells it

    def reply_started(self, status: int, fields: list[Field]) -> None:
        self._status = status
        self._fields = fields
        assert self._translator is not None
        if status == 200 and self._translator.streams:
            content_type = next((value for name, value in fields if name == b"content-type"), b"")
            self._is_streaming = self._streams_any_type or content_type.startswith(_EVENTS)

    def reply_continued(self, data: bytes) -> None:
        if not self._is_streaming:
            self._answer.append(data)
            return
        assert self._translator is not None
        try:
            told = self._translator.feed(data)
        except GatewayError as error:
            self._stop_engine(error)
            return
        if told:
            self._write(told)

    def reply_ended(self) -> None:
        self._handler = None
        translator = self._translator
        assert translator is not None
        try:
            if self._is_streaming:
                told = translator.end()
            else:
                reply = translator.whole(self._whole())
        except GatewayError as error:
            self._fail(error)
            return
        if not self._is_streaming:
            self._respond(reply)
            return
        self._write(told, is_last=True)
        self._is_over = True
        self._client.reply_ended()

    def refused(self, error: GatewayError, fields: list[Field]) -> None:
        self._handler = None
        if self.begun:  # a generation that could not go on elsewhere
            self._fail(error)
            return
        self._is_over = True
        lines = b"".join([b"%b: %b\r\n" % field for field in fields if field[0] != b"x-pointsman-reason"])
        self._client.refuse(error, lines)

    def reply_broken_off(self, event: bytes) -> None:
        """The reply ends in its middle; `event` tells the client why."""
        if not self._is_over and not self._resumes(event):
            self._break_off(event)

    def _break_off(self, event: bytes) -> None:
        self._handler = None
        if not self.begun:
            self._fail(GatewayError(ErrorKind.UPSTREAM_RESET, "the engine's reply broke off"))
            return
        self._is_over = True
        if not event and self._translator is not None:
            event = self._translator.failed("the engine's reply broke off", ErrorKind.UPSTREAM_RESET.value)
        self._client.break_off(event)

    def reply_broken(self) -> None:
        """Told by `reply_broken_off`."""

    # Going on elsewhere

    def _resumes(self, event: bytes) -> bool:
        """Whether the generation goes on elsewhere; `event` tells why it does not, should that turn out later."""
        translator = self._translator
        if not self._lane.target.resume or not self.begun or self._num_resumed == _MAX_RESUMED:
            return False
        if not isinstance(translator, Resumable) or not translator.can_resume:
            return False
        lane = self._next_lane()
        if lane is None:
            return False
        self._num_resumed += 1
        lane.series(None).count_tokens().resumed += 1
        if lane is self._lane:
            self._resume(translator)
        else:
            self._lane = lane
            self._task = asyncio.get_running_loop().create_task(self._resume_at(translator, lane, event))
        return True

    def _next_lane(self) -> Lane | None:
        """Where another endpoint may be: the same engine's, else that of another arm; the only one there is, where
        it may serve again."""
        handler, lane = self._handler, self._lane
        if isinstance(handler, Tries) and handler.endpoint is not None:
            self._left = (*self._left, handler.endpoint)
        lanes = [lane, *self._request.plan.snapshot.lanes_beside(lane)]
        for other in lanes:
            left = [endpoint for endpoint in other.engine.endpoints if endpoint not in self._left]
            if any(endpoint.condition is not Condition.DOWN for endpoint in left):
                return other
        self._left = ()
        return lane if lane.engine.endpoints[0].condition is not Condition.DOWN else None

    async def _resume_at(self, translator: Resumable, lane: Lane, event: bytes) -> None:
        try:
            assert self._translator is not None
            await self._turn(self._translator, lane, self._request.plan.call.version or "")
            self._task = None
            self._resume(translator)
        except GatewayError:
            self._break_off(event)
        except Exception:
            _log.exception("cannot go on with %s", self._request.plan)
            self._break_off(event)

    def _resume(self, translator: Resumable) -> None:
        asked = translator.resume()
        self._write(translator.seam())
        self._ask_for(asked)

    def pause_body(self) -> None:
        """The request is whole."""

    def resume_body(self) -> None:
        """The request is whole."""

    # Telling

    def _whole(self) -> Reply:
        told = dict(self._fields)
        head_bytes = told.get(_HEAD_BYTES, b"")
        content_type = told.get(b"content-type", b"").decode("latin-1")
        return Reply(
            self._status, b"".join(self._answer), content_type, int(head_bytes) if head_bytes.isdigit() else None
        )

    def _respond(self, reply: Reply) -> None:
        lines = self._lines()
        if reply.head_bytes is not None:
            lines += b"%b: %d\r\n" % (_HEAD_BYTES, reply.head_bytes)
        self._is_over = True
        self._client.respond(reply.status, reply.body, lines, reply.content_type)

    def _write(self, events: bytes, *, is_last: bool = False) -> None:
        is_http_10 = self._request.plan.head.is_http_10
        opening = b""
        if not self.begun:
            self.begun = True
            self._client.write_at_once()
            if is_http_10:  # it knows no chunks: the reply ends with the connection
                self._client.close_after_reply()
            opening = b"".join(
                (
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n",
                    self._lines(),
                    b"via: 1.1 pointsman",
                    b"" if is_http_10 else b"\r\ntransfer-encoding: chunked",
                    self._client.reply_head_end,
                )
            )
        if not is_http_10:
            events = encode_chunk(events) if events else b""
            if is_last:
                events += LAST_CHUNK
        self._client.write(opening + events)

    def _lines(self) -> bytes:
        """The fields of the engine's reply that go on."""
        kept = [field for field in self._fields if field[0] in _KEPT or field[0].startswith(_KEPT_FAMILIES)]
        return b"".join([b"%b: %b\r\n" % field for field in kept]) + self._dropped

    # Ends

    def _stop_engine(self, error: GatewayError) -> None:
        """The engine sends what nobody understands."""
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.client_gone(error.kind.value)
        self._fail(error)

    def _fail(self, error: GatewayError) -> None:
        """The engine's reply cannot be told, or not to its end."""
        if self._is_over:
            return
        self._is_over = True
        if not self.begun:
            self._client.refuse(error, self._lines())
            return
        self._client.break_off(event_told(error, self._request.plan.dialect))

    def _refuse(self, error: GatewayError) -> None:
        """The engine is not asked."""
        if self._is_over:
            return
        self._is_over = True
        dialect = self._request.plan.dialect
        status = status_told(error, dialect)
        self._count(error.kind.value, status)
        self._client.respond(status, error_told(error, dialect), self._lane.reply_lines + reason_line(error))

    def _count(self, reason: str, status: int) -> None:
        series = self._lane.series(None)
        seconds = monotonic() - self._started_at
        series.count_error(reason)
        if status:
            series.count_failure(status, seconds)
        plan = self._request.plan
        self._client.plane.log(
            self._client.peer, plan.asked, status, reason, seconds, self._request.id or b"", self._lane.target
        )


class _Inner(RestClient):
    """The client of the handler that asks the engine."""

    def __init__(self, client: Client, translation: Translation) -> None:
        super().__init__(client.plane, translation, client.peer)
        self._translation = translation

    def break_off(self, event: bytes = b"") -> None:
        self._translation.reply_broken_off(event)


def _rest_client(client: Client, sink: Translation) -> RestClient:
    made = _Inner(client, sink)
    made.forwarded_for_line = client.forwarded_for_line
    made.forwarded_proto_line = client.forwarded_proto_line
    made.is_paused = client.is_paused
    return made

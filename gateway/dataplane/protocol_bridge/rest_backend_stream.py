"""The messages of a ModelStreamInfer call that are asked as REST: each is a request, one after another.

So they are where an engine has REST alone, where conversations are kept, since only JSON is completed with them, and
where sequences are replayed, since each of their inputs must be answered before it is kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from gateway.dataplane.attempts.tries import Tries
from gateway.dataplane.context.call_head import CallHead, Way
from gateway.dataplane.context.interfaces import Handler
from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.conversation.body_session import session_of
from gateway.dataplane.dispatch.model_in_body import Serve
from gateway.dataplane.grpc.client import CallClient
from gateway.dataplane.grpc.interfaces import LegOwner
from gateway.dataplane.protocol_bridge.grpc_to_rest import rest_of_call, rest_of_infer, told_head_bytes
from gateway.dataplane.protocol_bridge.in_process_client import InProcessClient
from gateway.dataplane.protocol_bridge.model_metadata import ask_metadata, is_decoupled
from gateway.protocol.conversion import RestRequest
from gateway.protocol.conversion.control import RpcError
from gateway.protocol.conversion.control_errors import rpc_error
from gateway.protocol.conversion.generate import (
    generate_error,
    generate_of_infer_request,
    infer_response_of_generate,
)
from gateway.protocol.conversion.infer import infer_response_of_rest
from gateway.protocol.conversion.sse import SseReader
from gateway.protocol.conversion.stream import stream_error, stream_response
from gateway.protocol.errors import GatewayError
from gateway.protocol.grpc_status import INTERNAL, INVALID_ARGUMENT, UNAVAILABLE
from gateway.protocol.infer_message_head import Names
from gateway.protocol.operations import model_path
from gateway.wire.grpc import PREFIX, PREFIX_BYTES, Boundaries, MessageReader, decompress, framed
from gateway.wire.http1.head import Field
from gateway.wire.http2.stream import Stream

_log = logging.getLogger(__name__)

_FINAL = b"triton_enable_empty_final_response"


class RestBackendStream:
    """Asks one message after another: by `infer`, or by `generate_stream` where the model is decoupled. What a `Leg` is
    to a stream, this is to the same call: see there for what its owner asks of it."""

    __slots__ = (
        "_answer",
        "_call",
        "_client",
        "_events",
        "_fields",
        "_handler",
        "_has_ended",
        "_head",
        "_is_busy",
        "_is_over",
        "_metadata",
        "_names",
        "_queue",
        "_queued_bytes",
        "_request_id",
        "_rest",
        "_serve",
        "_session",
        "_status",
        "_task",
        "_wants_final",
        "boundaries",
        "encoding",
        "reader",
        "way",
    )

    def __init__(
        self,
        call: LegOwner,
        way: Way,
        session: str | None,
        client: CallClient,
        head: CallHead,
        request_id: bytes,
        serve: Serve,
    ) -> None:
        """`serve` answers what is asked as REST."""
        self._call = call
        self._serve = serve
        self.way = way
        # Of a sequence, the ends of its first request say nothing of those that follow.
        self._session = str(session) if session is not None else None
        self._client = client
        self._head = head
        self._request_id = request_id
        self._queue: deque[tuple[bytes, Names]] = deque()
        self._queued_bytes = 0
        self._has_ended = False  # the client sends no more
        self._is_over = False
        self.encoding = b"identity"
        self.boundaries = Boundaries()
        self.reader: MessageReader | None = None
        # The message under way
        self._is_busy = False
        self._task: asyncio.Task[None] | None = None
        self._rest = InProcessClient(client.plane, self, client.peer, is_tls=client.is_tls)
        self._handler: Handler | None = None
        self._names = Names(b"", b"", b"", ())
        self._metadata = b""  # of a decoupled model
        self._wants_final = False
        self._events: SseReader | None = None
        self._status = 0
        self._fields: list[Field] = []
        self._answer: list[bytes] = []

    def __repr__(self) -> str:
        return f"<RestBackendStream {self.way.lane!r}: {len(self._queue)} wait>"

    # What the client's call asks of it

    def start(self) -> None:
        """The first message has started it."""

    @property
    def url(self) -> str:
        return self._handler.progress().endpoint if self._handler is not None else ""

    def charge(self) -> None:
        """Each message is a request, which meets the limits by itself."""

    def send(self, framed: bytes, names: Names) -> None:
        self._queue.append((framed, names))
        self._queued_bytes += len(framed)
        self._go_on()

    def end(self) -> None:
        self._has_ended = True
        self._go_on()

    @property
    def is_backed_up(self) -> bool:
        return self._queued_bytes > self._call.plane.settings.limits.high_water_bytes

    @property
    def num_unanswered(self) -> int:
        return len(self._queue) + self._is_busy

    def pass_to(self, client: Stream | None) -> None:
        """The call is told of each response: it is a whole one."""

    def credit(self, size: int) -> None:
        """The client reads as fast as the engine answers."""

    def owe(self, size: int) -> None:
        if not self._rest.is_paused:
            self._rest.is_paused = True
            if self._handler is not None:
                self._handler.client_paused()

    def pay(self) -> None:
        if self._rest.is_paused:
            self._rest.is_paused = False
            if self._handler is not None:
                self._handler.client_resumed()

    def cancel(self, reason: str, status: int) -> None:
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
        if self._handler is not None:
            self._handler.client_gone(reason or "stream_failed", status if reason else 0)

    def sweep(self, now: float) -> None:
        """Called about once a second."""
        if self._handler is not None:
            self._handler.sweep(now)

    # One message after another

    def _go_on(self) -> None:
        if self._is_busy or self._is_over:
            return
        if self._queue:
            framed, self._names = self._queue.popleft()
            self._queued_bytes -= len(framed)
            self._is_busy = True
            self._task = asyncio.get_running_loop().create_task(self._ask(framed))
            self._call.leg_drained(self)
        elif self._has_ended:
            self._is_over = True
            self._call.leg_ended(self, None)

    async def _ask(self, data: bytes) -> None:
        lane, names = self.way.lane, self._names
        limit = self._call.plane.settings.limits.max_body_bytes
        self._status, self._fields, self._answer, self._events = 0, [], [], None
        try:
            is_compressed, _ = PREFIX.unpack_from(data)
            message = data[PREFIX_BYTES:]
            if is_compressed:
                message = decompress(message, self._head.plan.encoding, limit)
            model, version = names.model.decode("utf-8", "replace"), names.version.decode("utf-8", "replace")
            if await is_decoupled(lane, model, version):
                self._metadata = await ask_metadata(lane, model, version)
                self._wants_final = _FINAL in message
                self._events = SseReader()
                body = generate_of_infer_request(message, self._metadata)
                asked = RestRequest("POST", f"{model_path(model, version)}/generate_stream", body)
            else:
                asked = rest_of_infer(message)
            request = rest_of_call(self._client, self._head, asked, self._request_id)
            session = self._session
            if lane.target.history is not None or lane.replay is not None:  # each message may be of another session
                session = session_of(request, asked.body)
                if session is not None and lane.replay is not None:
                    lane = await self._recalled(lane, session)
        except RpcError as error:
            self._task = None
            self._tell_error(error.message, error.code)
            return
        except GatewayError as error:
            self._task = None
            self._call.plane.metrics.unrouted.count_error(error.kind.value)
            self._tell_error(error.message, error.status.grpc)
            return
        except Exception:
            self._task = None
            _log.exception("cannot convert a message for %s", lane)
            self._tell_error("the gateway failed to ask the engine; its log says why", INTERNAL)
            return
        self._task = None
        self._rest = InProcessClient(self._client.plane, self, self._client.peer, is_tls=self._client.is_tls)
        self._handler = self._serve(self._rest, request, lane, session)
        if self.way.endpoint is not None and isinstance(self._handler, Tries):
            self._handler.start_at(self.way.endpoint)
        self._handler.body_received(asked.body.data, True)

    async def _recalled(self, lane: Lane, session: str) -> Lane:
        """The lane of a session's message, once it is known where the session is."""
        keeper = self._call.plane.keeper
        kept = keeper.recall(lane, session)
        if kept is not None:
            return kept
        found: asyncio.Future[Lane] = asyncio.get_running_loop().create_future()
        keeper.find(lane, session, lambda lane: None if found.done() else found.set_result(lane))
        return await found

    # What the handler tells it

    def reply_started(self, status: int, fields: list[Field]) -> None:
        self._status = status
        self._fields = fields

    def reply_continued(self, data: bytes) -> None:
        if self._events is None or self._status != 200:
            self._answer.append(data)
            return
        try:
            for event in self._events.feed(data):
                self._tell_event(event)
        except GatewayError as error:
            handler, self._handler = self._handler, None
            if handler is not None:
                handler.client_gone(error.kind.value)
            self._tell_error(error.message, error.status.grpc)

    def reply_ended(self) -> None:
        self._handler = None
        body = b"".join(self._answer)
        if self._status != 200:
            for event in SseReader().feed(body):  # Triton tells the failure of a first response in an event
                body = event
            error = rpc_error(self._status, body)
            self._tell_error(error.message, error.code)
        elif self._events is not None:
            if self._wants_final:
                self._tell(stream_response(self._response(b"{}"), is_final=True))
            self._done()
        else:
            try:
                answer = infer_response_of_rest(body, told_head_bytes(self._fields))
            except GatewayError as error_:
                self._tell_error(error_.message, error_.status.grpc)
                return
            self._tell(stream_response(answer, is_final=True))
            self._done()

    def refused(self, error: GatewayError, fields: Sequence[Field]) -> None:
        self._handler = None
        self._tell_error(error.message, error.status.grpc)

    def reply_broken(self, event: bytes) -> None:
        if event:
            self.reply_continued(event)
        self._handler = None
        if self._events is not None and self._status == 200:
            self._done()  # its last event has told why
        else:
            self._tell_error("the engine broke its reply off", UNAVAILABLE)

    def pause_body(self) -> None:
        """The request is whole."""

    def resume_body(self) -> None:
        """The request is whole."""

    # Telling

    def _tell_event(self, event: bytes) -> None:
        text = generate_error(event)
        if text is not None:
            self._tell(stream_error(text, self._names.id.decode("utf-8", "replace")))
        else:
            self._tell(stream_response(self._response(event), is_final=False))

    def _response(self, event: bytes) -> bytes:
        request_id, model = (name.decode("utf-8", "replace") for name in (self._names.id, self._names.model))
        return infer_response_of_generate(event, self._metadata, id=request_id, model=model)

    def _tell_error(self, text: str, code: int = INVALID_ARGUMENT) -> None:
        if self._is_over:
            return
        self._call.leg_failed(self, text, code, self._names)
        self._done()

    def _tell(self, message: bytes) -> None:
        if not self._is_over:
            self._call.leg_answered(self, framed(message))

    def _done(self) -> None:
        self._is_busy = False
        self._go_on()

"""The messages of a ModelStreamInfer call that go to an engine as REST requests, one after another.

So they do where an engine has REST alone, where conversations are kept, since only JSON is completed with them, and
where sequences are replayed, since each of their inputs must have its answer before it is stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from gateway.dataplane.attempts.upstream_handler import UpstreamHandler
from gateway.dataplane.context.call_head import CallHead
from gateway.dataplane.context.call_target import CallTarget
from gateway.dataplane.context.in_process_client import InProcessClient, ReplySink
from gateway.dataplane.context.interfaces import Handler, Serve
from gateway.dataplane.context.prepared_head import check_path
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.conversation.session_forwarding import session_of
from gateway.dataplane.grpc.interfaces import CallClient
from gateway.dataplane.grpc.stream_call import StreamCall
from gateway.dataplane.protocol_bridge.grpc_to_rest import json_bytes_of, rest_of_call, rest_of_infer
from gateway.dataplane.translation.model_description import is_decoupled, query_metadata
from gateway.protocol.conversion.control_errors import RpcError, rpc_error
from gateway.protocol.conversion.generate import (
    generate_error,
    generate_of_infer_request,
    infer_response_of_generate,
)
from gateway.protocol.conversion.infer import infer_response_of_rest
from gateway.protocol.conversion.sse import SseReader
from gateway.protocol.conversion.stream import stream_error, stream_response
from gateway.protocol.errors import GatewayError
from gateway.protocol.grpc_status import INTERNAL, UNAVAILABLE
from gateway.protocol.infer_message_head import Names
from gateway.protocol.operations import model_path
from gateway.protocol.sequence import AnySession, id_of
from gateway.protocol.translator import RestRequest
from gateway.wire.grpc import PREFIX, PREFIX_BYTES, Boundaries, MessageReader, decompress, framed
from gateway.wire.http1.head import Field
from gateway.wire.http2.stream import Stream

_log = logging.getLogger(__name__)

_FINAL = b"triton_enable_empty_final_response"


class RestBackendStream:
    """Queues messages, and has each answered by an `_Exchange` of its own; see `BackendStream`."""

    __slots__ = (
        "_client_ended",
        "_exchange",
        "_is_over",
        "_is_paused",
        "_queue",
        "_queued_bytes",
        "_session",
        "boundaries",
        "call",
        "client",
        "encoding",
        "head",
        "reader",
        "serve",
        "target",
    )

    def __init__(
        self,
        call: StreamCall,
        target: CallTarget,
        session: AnySession | None,
        client: CallClient,
        head: CallHead,
        serve: Serve,
    ) -> None:
        """`serve` answers a REST request."""
        self.call = call
        self.target = target
        self.client = client
        self.head = head
        self.serve = serve
        # The id only: the start and end of a sequence's first request do not hold for the later ones.
        self._session = id_of(session) if session is not None else None
        self._queue: deque[tuple[bytes, Names]] = deque()
        self._queued_bytes = 0
        self._client_ended = False
        self._is_over = False
        self._is_paused = False
        self._exchange: _Exchange | None = None  # the message under way
        self.encoding = b"identity"
        self.boundaries = Boundaries()
        self.reader: MessageReader | None = None

    # What the client's call requires: see `BackendStream`

    def start(self) -> None:
        """The first message starts it."""

    @property
    def url(self) -> str:
        return self._exchange.url if self._exchange is not None else ""

    def charge(self) -> None:
        """The limits count each message's request."""

    def send(self, framed: bytes, names: Names) -> None:
        self._queue.append((framed, names))
        self._queued_bytes += len(framed)
        self._next()

    def end(self) -> None:
        self._client_ended = True
        self._next()

    @property
    def is_backed_up(self) -> bool:
        return self._queued_bytes > self.call.plane.settings.limits.high_water_bytes

    @property
    def num_unanswered(self) -> int:
        return len(self._queue) + (self._exchange is not None)

    def pass_to(self, client: Stream | None) -> None:
        """Each response is a whole one, which the call writes."""

    def credit(self, size: int) -> None:
        """The client reads as fast as the engine answers."""

    def owe(self, size: int) -> None:
        self._pause(True)

    def pay(self) -> None:
        self._pause(False)

    def cancel(self, reason: str, status: int) -> None:
        self._is_over = True
        if self._exchange is not None:
            self._exchange.cancel(reason or "stream_failed", status if reason else 0)

    def error_received(self, response: bytes) -> None:
        pass  # what it says of a model is learned by the request that it answers

    def sweep(self, now: float) -> None:
        if self._exchange is not None:
            self._exchange.sweep(now)

    # One message after another

    def _next(self) -> None:
        if self._exchange is not None or self._is_over:
            return
        if self._queue:
            framed, names = self._queue.popleft()
            self._queued_bytes -= len(framed)
            self._exchange = _Exchange(self, framed, names, self._session)
            self._exchange.pause(self._is_paused)
            self.call.backend_drained(self)
        elif self._client_ended:
            self._is_over = True
            self.call.backend_ended(self, None)

    def _pause(self, is_paused: bool) -> None:
        if is_paused is not self._is_paused:
            self._is_paused = is_paused
            if self._exchange is not None:
                self._exchange.pause(is_paused)

    def respond(self, message: bytes) -> None:
        """A response to the message under way."""
        if not self._is_over:
            self.call.backend_answered(self, framed(message))

    def done(self) -> None:
        """The message under way has all its responses."""
        self._exchange = None
        self._next()

    def fail(self, text: str, code: int, names: Names) -> None:
        """The message under way has failed."""
        if not self._is_over:
            self.call.message_failed(self, text, code, names)
            self.done()


class _Exchange(ReplySink):
    """One message: converted, sent by `infer`, or by `generate_stream` where the model is decoupled, and the reply
    converted back. It is the sink of that reply."""

    __slots__ = (
        "_body",
        "_client",
        "_events",
        "_fields",
        "_handler",
        "_metadata",
        "_names",
        "_owner",
        "_status",
        "_task",
        "_wants_final",
    )

    def __init__(self, owner: RestBackendStream, framed: bytes, names: Names, session: AnySession | None) -> None:
        client = owner.client
        self._owner = owner
        self._names = names
        self._client = InProcessClient(client.plane, self, client.peer, client, is_tls=client.is_tls)
        self._client.trace = owner.call.trace
        self._handler: Handler | None = None
        self._metadata = b""  # of a decoupled model
        self._wants_final = False
        self._events: SseReader | None = None  # of a decoupled model
        self._status = 0
        self._fields: list[Field] = []
        self._body: list[bytes] = []
        self._task = asyncio.get_running_loop().create_task(self._begin(framed, session))

    @property
    def url(self) -> str:
        return self._handler.progress().endpoint if self._handler is not None else ""

    def pause(self, is_paused: bool) -> None:
        self._client.is_paused = is_paused
        if self._handler is not None:
            (self._handler.client_paused if is_paused else self._handler.client_resumed)()

    def cancel(self, reason: str, status: int) -> None:
        self._task.cancel()
        if self._handler is not None:
            self._handler.client_gone(reason, status)

    def sweep(self, now: float) -> None:
        if self._handler is not None:
            self._handler.sweep(now)

    # The request

    async def _begin(self, framed: bytes, session: AnySession | None) -> None:
        owner = self._owner
        plane, route_target, head = owner.call.plane, owner.target.route_target, owner.head
        try:
            converted = await self._converted(framed)
            request = rest_of_call(owner.client, head, converted, owner.call.request_id, route_target)
            # each message may be of another session
            if route_target.spec.history is not None or route_target.replay is not None:
                session = session_of(request, converted.body)
                if session is not None and route_target.replay is not None:
                    route_target = await self._looked_up(route_target, session)
        except RpcError as error:
            owner.fail(error.message, error.code, self._names)
        except GatewayError as error:
            plane.metrics.unrouted.count_error(error.kind.value)
            owner.fail(route_target.nameless(error).message, error.status.grpc, self._names)
        except Exception:
            _log.exception("cannot convert a message for %s", route_target)
            owner.fail("the gateway failed to ask the engine; its log says why", INTERNAL, self._names)
        else:
            handler = self._handler = owner.serve(self._client, request, route_target, session)
            if owner.target.endpoint is not None and isinstance(handler, UpstreamHandler):
                handler.attempts.first_endpoint = owner.target.endpoint
            handler.body_received(converted.body.data, True)

    async def _converted(self, framed: bytes) -> RestRequest:
        """Raises: RpcError, GatewayError."""
        owner, names = self._owner, self._names
        is_compressed, _ = PREFIX.unpack_from(framed)
        message = framed[PREFIX_BYTES:]
        if is_compressed:
            limits = owner.call.plane.settings.limits
            message = decompress(message, owner.head.plan.encoding, limits.most_inflated(len(message)))
        model, version = names.model.decode("utf-8", "replace"), names.version.decode("utf-8", "replace")
        check_path(model_path(model, version), owner.target.route_target, owner.call.plane.settings)
        if not await is_decoupled(owner.target.route_target, model, version):
            return rest_of_infer(message)
        self._metadata = await query_metadata(owner.target.route_target, model, version)
        self._wants_final = _FINAL in message
        self._events = SseReader()
        body = generate_of_infer_request(message, self._metadata)
        return RestRequest("POST", f"{model_path(model, version)}/generate_stream", body)

    async def _looked_up(self, route_target: RouteTarget, session: AnySession) -> RouteTarget:
        """The target of a session's message."""
        affinity = self._owner.call.plane.affinity
        cached = affinity.lookup_cached(route_target, session, self._owner.head, sets_pin=False)
        if cached is not None:
            return cached
        lookup: asyncio.Future[RouteTarget] = asyncio.get_running_loop().create_future()
        affinity.find(
            route_target,
            session,
            lambda route_target: None if lookup.done() else lookup.set_result(route_target),
            self._owner.head,
            sets_pin=False,
        )
        return await lookup

    # The reply: see `ReplySink`

    def reply_started(self, status: int, fields: list[Field]) -> None:
        self._status = status
        self._fields = fields

    def reply_continued(self, data: bytes) -> None:
        if self._events is None or self._status != 200:
            self._body.append(data)
            return
        try:
            for event in self._events.feed(data):
                self._respond(event)
        except GatewayError as error:
            handler, self._handler = self._handler, None
            if handler is not None:
                handler.client_gone(error.kind.value)
            self._owner.fail(error.message, error.status.grpc, self._names)

    def reply_ended(self) -> None:
        self._handler = None
        owner, body = self._owner, b"".join(self._body)
        if self._status != 200:
            error = rpc_error(self._status, body)  # Triton reports the failure of a first response in an event
            owner.fail(error.message, error.code, self._names)
            return
        if self._events is not None:
            if self._wants_final:
                owner.respond(stream_response(self._response(b"{}"), is_final=True))
            owner.done()
            return
        try:
            response = infer_response_of_rest(body, json_bytes_of(self._fields))
        except GatewayError as error:
            owner.fail(error.message, error.status.grpc, self._names)
            return
        owner.respond(stream_response(response, is_final=True))
        owner.done()

    def refused(self, error: GatewayError, fields: Sequence[Field]) -> None:
        self._handler = None
        self._owner.fail(error.message, error.status.grpc, self._names)

    def reply_broken(self, event: bytes) -> None:
        if event:
            self.reply_continued(event)
        self._handler = None
        if self._events is not None and self._status == 200:
            self._owner.done()  # its last event has the reason
        else:
            self._owner.fail("the engine broke its reply off", UNAVAILABLE, self._names)

    def _respond(self, event: bytes) -> None:
        text = generate_error(event)
        if text is not None:
            self._owner.respond(stream_error(text, self._names.id.decode("utf-8", "replace")))
        else:
            self._owner.respond(stream_response(self._response(event), is_final=False))

    def _response(self, event: bytes) -> bytes:
        request_id, model = (name.decode("utf-8", "replace") for name in (self._names.id, self._names.model))
        return infer_response_of_generate(event, self._metadata, id=request_id, model=model)

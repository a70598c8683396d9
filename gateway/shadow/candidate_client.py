"""A captured request, repeated at the candidate through this process' data plane."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic

from gateway.dataplane.context.call_head import CallHead, CallPlan
from gateway.dataplane.context.capture import Capture
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.in_process_client import InProcessClient, ReplySink
from gateway.dataplane.context.interfaces import Handler
from gateway.dataplane.context.local_replies import error_content, error_status
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.dispatch.http2 import convert
from gateway.dataplane.dispatch.model_in_body import serve_model
from gateway.dataplane.dispatch.rest import serve_target
from gateway.dataplane.grpc.in_process_stream import InProcessStream
from gateway.dataplane.grpc.message_body import CompleteMessage
from gateway.dataplane.grpc.unary_relay import UnaryRelay
from gateway.protocol.errors import GatewayError
from gateway.protocol.infer_message_head import read_names
from gateway.protocol.operations import LlmApi
from gateway.protocol.trace_context import TRACEPARENT
from gateway.shadow.comparison.reply import ComparedReply, plain
from gateway.wire.grpc import framed
from gateway.wire.http1.head import Field
from gateway.wire.http2.frames import ErrorCode
from gateway.wire.http2.stream import Stream

_PEER = "shadow"
# Fields of the first call only, or of its message's encoding on the wire.
_NOT_REPEATED = (b"grpc-timeout", b"grpc-encoding", b"x-request-id", b"x-pointsman-shadow")
_INFER = b"/inference.GRPCInferenceService/ModelInfer"


async def query_candidate(
    plane: DataPlane, route_target: RouteTarget, capture: Capture, timeout: float
) -> ComparedReply:
    """The candidate's reply, also where it is a failure. `timeout` is in seconds."""
    call = (_GrpcCall if capture.facts.is_call else _RestCall)(plane, route_target, capture)
    try:
        call.begin()
        return await asyncio.wait_for(asyncio.shield(call.reply), timeout)
    except TimeoutError:
        call.cancel()
        return call.failed(f"the candidate did not answer within {timeout:g} s")
    except GatewayError as error:
        return call.failed(error.message)


class _CandidateCall:
    """One request under way; `reply` is done when it has ended."""

    is_call = False

    def __init__(self, plane: DataPlane, route_target: RouteTarget, capture: Capture) -> None:
        self.plane = plane
        self.reply: asyncio.Future[ComparedReply] = plane.loop.create_future()
        self._route_target = route_target
        self._capture = capture
        self._started_at = monotonic()
        self._first_at = 0.0
        self._status = 0
        self._fields: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []

    def begin(self) -> None:
        raise NotImplementedError

    def cancel(self) -> None:
        """The timeout has expired."""
        raise NotImplementedError

    def failed(self, reason: str) -> ComparedReply:
        return ComparedReply(self.is_call, self._status, b"", {}, monotonic() - self._started_at, failure=reason)

    def _received(self, data: bytes) -> None:
        self._first_at = self._first_at or monotonic()
        self._pieces.append(data)

    def _end(self, status: int, body: bytes) -> None:
        if self.reply.done():
            return
        now = monotonic()
        first = (self._first_at or now) - self._started_at
        self.reply.set_result(ComparedReply(self.is_call, status, body, self._fields, now - self._started_at, first))

    def _fail(self, reason: str) -> None:
        if not self.reply.done():
            self.reply.set_result(self.failed(reason))


class _RestCall(_CandidateCall, ReplySink):
    """By REST; it is the sink of the reply."""

    def __init__(self, plane: DataPlane, route_target: RouteTarget, capture: Capture) -> None:
        super().__init__(plane, route_target, capture)
        self._handler: Handler | None = None
        self._api: LlmApi | None = None

    def begin(self) -> None:
        client = InProcessClient(self.plane, self, _PEER, None)
        request, body = self.plane.read(self._capture.facts.head.encode("latin-1")), self._capture.request
        if self.plane.spans is not None:
            client.trace = self.plane.spans.link(self._capture.facts.traceparent, request.traceparent)
        self._api = request.plan.api
        if request.plan.call.names_its_model_in_the_body:
            handler, body = serve_model(client, request, body, self._route_target, serve_target)
        else:
            handler = serve_target(client, request, self._route_target, None)
        self._handler = handler
        handler.body_received(body, True)

    def cancel(self) -> None:
        if self._handler is not None:
            self._handler.client_gone()

    def reply_started(self, status: int, fields: list[Field]) -> None:
        self._first_at = monotonic()
        self._status = status
        self._fields = dict(reversed(fields))

    def reply_continued(self, data: bytes) -> None:
        self._received(data)

    def reply_ended(self) -> None:
        try:
            self._end(self._status, plain(b"".join(self._pieces), self._fields))
        except GatewayError as error:
            self._fail(error.message)

    def refused(self, error: GatewayError, fields: Sequence[Field]) -> None:
        self._end(error_status(error, self._api), error_content(error, self._api))

    def reply_broken(self, event: bytes) -> None:
        self._fail("the candidate broke its reply off")


class _GrpcCall(_CandidateCall):
    """By gRPC; it is both the receiver of the reply and the client of the call."""

    is_call = True
    peer = _PEER
    certificate = None
    is_tls = False
    forwarded: Sequence[Field] = ()
    passing = b""

    def __init__(self, plane: DataPlane, route_target: RouteTarget, capture: Capture) -> None:
        super().__init__(plane, route_target, capture)
        self._stream = InProcessStream(self)

    def begin(self) -> None:
        facts, plane = self._capture.facts, self.plane
        lines = [line.partition(b": ") for line in facts.head.encode("latin-1").split(b"\r\n") if line]
        fields = [(b":method", b"POST"), (b":path", _INFER), (b":authority", b"pointsman")]
        stream, spans = self._stream, plane.spans
        stream.note = spans.link(facts.traceparent, None) if spans is not None else None
        left_out = _NOT_REPEATED if stream.note is None else (*_NOT_REPEATED, TRACEPARENT)
        fields += [(name, value) for name, _, value in lines if name not in left_out]
        fields.append((b"x-pointsman-shadow", facts.route.encode("latin-1")))
        plan = CallPlan(fields, plane.snapshot, plane.settings)
        head = CallHead(plan, [(b"x-request-id", facts.request_id.encode("latin-1"))])
        message = self._capture.request
        whole = CompleteMessage(framed(message), read_names(message, 0, len(message)))
        target = plan.target(self._route_target)
        if self._route_target.engine.speaks_grpc:
            stream.receiver = relay = UnaryRelay(self, stream, head, whole, target, None, self._started_at)
            relay.attempts.start(self._started_at)
        else:
            convert(self, stream, head, whole, target, None, serve_target)

    def cancel(self) -> None:
        self._stream.receiver.stream_reset(self._stream, ErrorCode.CANCEL, "nobody waits for it")

    def call_failed(
        self,
        stream: Stream,
        error: GatewayError,
        request_id: bytes,
        route_target: RouteTarget | None,
        *,
        begun: bool,
        code: int | None,
    ) -> None:
        self._end(error.status.grpc if code is None else code, b"".join(self._pieces))

    def call_ended(self, stream: Stream) -> None:
        """The status has ended it."""

    def message_came(self, message: bytes) -> None:
        self._received(message)

    def reply_ended(self, code: int, text: str, fields: dict[bytes, bytes]) -> None:
        self._end(code, b"".join(self._pieces))

    def reply_broken(self, error: GatewayError, fields: dict[bytes, bytes]) -> None:
        self._fail(error.message)

"""A unary call that an engine with gRPC answers: its message is sent, and the reply relayed as it comes.

Bytes pass through: neither side's messages are decoded. All of it happens in callbacks. A call ends once: by its reply
(`_finish`), by an error (`attempts_failed`), or because its client is gone (`stream_reset`).
"""

from __future__ import annotations

from time import monotonic

from gateway.dataplane.attempts.front import Attempt, Hedge, HedgedRequest
from gateway.dataplane.attempts.model_refusal import is_turned_away
from gateway.dataplane.attempts.trace_fields import literals_with_trace
from gateway.dataplane.attempts.upstream_attempts import UpstreamAttempts
from gateway.dataplane.context.active_requests import Progress
from gateway.dataplane.context.call_head import CallHead
from gateway.dataplane.context.call_target import CallTarget
from gateway.dataplane.context.local_replies import lines_of
from gateway.dataplane.context.snapshot import Snapshot
from gateway.dataplane.grpc.call_hedge import CallHedge
from gateway.dataplane.grpc.interfaces import CallClient, log_call
from gateway.dataplane.grpc.message_body import MessageBody, facts_of_call
from gateway.dataplane.grpc.reply_headers import relayed, request_id_literal, timeout_literal
from gateway.dataplane.grpc.upstream_call import GrpcFront
from gateway.dataplane.mirroring.reply_capture import UNMIRRORED, ReplyCapture, start_capture
from gateway.net.http2_client import Http2ClientConnection
from gateway.observability.arms import Meter
from gateway.observability.request_trace import RequestTrace
from gateway.protocol.advertised_models import ModelName
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_status import CANCELLED, DEADLINE_EXCEEDED, OK, UNKNOWN, http_status
from gateway.protocol.operations import Operation
from gateway.protocol.region_names import names_region
from gateway.protocol.request_urgency import NO_URGENCY, Urgency, urgency_of_message
from gateway.protocol.sequence import AnySession
from gateway.routing.decision import Facts
from gateway.sessions.sequence_log import Input, InputProtocol
from gateway.wire.http2.fields import Block
from gateway.wire.http2.stream import Stream, StreamReceiver


class UnaryRelay(GrpcFront):
    """Receives from both the client's stream and the engine's."""

    takes_whole_replies = True
    __slots__ = (
        "_active_at",
        "_capture",
        "_client",
        "_has_begun",
        "_head",
        "_id_literal",
        "_is_over",
        "_message",
        "_owed_to_client",
        "_owed_to_engine",
        "_request_id",
        "_response_bytes",
        "_stream",
        "_swept_bytes",
        "_target",
    )

    def __init__(
        self,
        client: CallClient,
        stream: Stream,
        head: CallHead,
        message: MessageBody,
        target: CallTarget,
        session: AnySession | None,
        started_at: float,
        attempts_type: type[UpstreamAttempts[Stream]] = UpstreamAttempts,
    ) -> None:
        self._client = client
        self._stream = stream
        self._head = head
        self._message = message
        self._target = target
        self._request_id = head.id or client.plane.new_request_id()
        self._id_literal = request_id_literal(self._request_id)
        # What `GrpcFront.__init__` would do, at the price of a call
        self.attempts = attempts = attempts_type(client.plane, self, target.route_target, session, started_at)
        self._up = None
        if head.timeout is not None:
            attempts.expires_at = started_at + head.timeout
        self._owed_to_client = 0  # bytes that wait for the engine to take them
        self._owed_to_engine = 0  # bytes that wait for the client to take them
        self._has_begun = False  # the reply's first fields are sent
        self._is_over = False  # answered, though the client may have to read it yet
        self._active_at = started_at
        self._response_bytes = 0
        self._swept_bytes = 0
        self._capture: ReplyCapture | None = None  # of a call that is mirrored

    def mirror(self) -> None:
        """Capture the call for its route's shadow, where it is of the sample."""
        if self.is_inference:
            tap, route_target = self._client.plane.tap, self._target.route_target
            self._capture = start_capture(tap, route_target, self._request_id, self.attempts.started_at)
            if self._capture is not None:
                self._capture.trace = self._stream.note

    def go_on_with(self, capture: ReplyCapture) -> None:
        """Capture the call in place of another engine's, which has left it."""
        self._capture = capture

    # Events of the streams

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        if stream is self._up:
            self._relay_data(stream, data, ended)
        elif stream is self._stream and not self._is_over:
            self._pass_on(data, ended)

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None:
        """The engine's reply begins; `ended`: it is trailers only."""
        if stream is not self._up:
            return
        attempts, now = self.attempts, monotonic()
        reply = relayed(block, attempts.route_target)
        if reply.joules is not None and attempts.meter is not None:
            attempts.meter.used_energy(reply.joules)
        if ended:
            self._release()
            if reply.status != OK and self._is_turned_away(reply.status, reply.message.encode()):
                return
        self._active_at = now
        if self._capture is not None:
            self._capture.encoding = block.value(b"grpc-encoding") or b"identity"
        attempts.reply_began(self._attempt, reply.http_status, now)
        self._has_begun = True
        self._stream.send_headers(reply.steady, self._id_literal, ended=ended)
        if ended:
            self._finish(now, reply.http_status if reply.status is None else http_status(reply.status), reply.status)

    def _is_turned_away(self, status: int | None, text: bytes) -> bool:
        """Whether another endpoint gets the call."""
        attempts = self.attempts
        if attempts.sequence_forgotten(text):
            return True
        if status is None:
            return False
        return attempts.gives_way(http_status(status)) or is_turned_away(attempts, http_status(status), text)

    def trailers_received(self, stream: Stream, block: Block) -> None:
        if stream is self._stream:
            self.data_received(stream, b"", True)
            return
        if stream is not self._up:
            return
        attempts = self.attempts
        self._attempt.sent_on = self._up = None
        reply = relayed(block, attempts.route_target)
        if reply.joules is not None and attempts.meter is not None:
            attempts.meter.used_energy(reply.joules)
        self._stream.send_trailers(reply.steady)
        self._finish(monotonic(), attempts.status if reply.status is None else http_status(reply.status), reply.status)

    def reply_received(self, stream: Stream, block: Block, data: bytes, trailers: Block) -> None:
        """The engine's reply, all of it: as the three above do."""
        attempts = self.attempts
        opening, end = relayed(block, attempts.route_target), relayed(trailers, attempts.route_target)
        if stream is not self._up or self._capture is not None or opening.joules is not None or end.joules is not None:
            self.headers_received(stream, block, False)
            self.data_received(stream, data, False)
            self.trailers_received(stream, trailers)
            return
        now, attempt, status = monotonic(), self._attempt, end.status
        attempts.reply_began(attempt, opening.http_status, now)
        self._has_begun = True
        attempt.sent_on = self._up = None
        self._response_bytes = len(data)
        self._stream.send_reply(opening.steady, self._id_literal, data, end.steady)
        self._finish(now, opening.http_status if status is None else http_status(status), status)

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        if stream is self._stream:
            if not self._is_over:
                self._is_over = True
                self.attempts.abandon("client_gone")
                if self._capture is not None:
                    self._capture.drop("client_gone")
                self._log(self.attempts.status, "client_gone", CANCELLED)
        elif stream is self._up:
            self._upstream_reset("call", code, why)

    def drained(self, stream: Stream) -> None:
        if stream is not self._stream:
            if self._owed_to_client:
                owed, self._owed_to_client = self._owed_to_client, 0
                self._stream.credit(owed)
        elif self._is_over:
            self._client.call_ended(stream)
        elif self._owed_to_engine and self._up is not None:
            owed, self._owed_to_engine = self._owed_to_engine, 0
            self._up.credit(owed)

    def sweep(self, now: float) -> None:
        """Fail where the engine has fallen silent in the middle of its reply."""
        if self._is_over:
            return
        if self._response_bytes != self._swept_bytes:
            self._swept_bytes, self._active_at = self._response_bytes, now
        elif self.attempts.status and not self._stream.is_waiting:
            self.attempts.check_silence(self._active_at, now)

    def progress(self) -> Progress | None:
        if self._is_over:
            return None
        attempts, names = self.attempts, self._message.names
        model = names.model.decode("utf-8", "replace") if names is not None else ""
        request_line = self._head.plan.request_line
        return Progress(
            attempts.stage(),
            attempts.started_at,
            self._request_id,
            attempts.route_target,
            attempts.url,
            model,
            request_line,
            principal=self._head.plan.principal,
        )

    def cancel(self, error: GatewayError) -> None:
        if not self._is_over:
            self.attempts.fail(error)

    # The request

    def _pass_on(self, data: bytes, ended: bool) -> None:
        """More of a message whose names came first."""
        up, message = self._up, self._message
        try:
            if up is None:
                message.add(data, ended)
                self._owed_to_client += len(data)
                return
            message.pass_on(data, ended)
        except GatewayError as error:
            self.attempts.fail(error)
            return
        up.send_data(data, ended)
        if up.is_waiting:
            self._owed_to_client += len(data)
        elif not ended:
            self._stream.credit(len(data))

    def _send(self, connection: Http2ClientConnection, now: float) -> None:
        attempts, message, target = self.attempts, self._message, self._target
        attempt = self._attempt
        attempt.sent_on = self._up = up = connection.open_stream(self)
        up.takes_whole_reply = self.takes_whole_replies
        attempt.sent_at = now
        engine, head = attempts.route_target.engine, self._head
        if engine.overrides_gateway_fields:
            own = [*self._client.forwarded, (b"x-request-id", self._request_id)]
            passing = head.passing_beside(engine, own)
        else:
            passing = head.passing if not engine.extra_names else head.passing_to(engine)
            passing = self._client.passing + passing + self._id_literal
        trace: RequestTrace | None = self._stream.note
        if trace is not None and trace.is_sampled:
            passing = literals_with_trace(trace, attempt, engine, passing)
        if attempts.expires_at:
            passing += timeout_literal(attempts.expires_at - now)
        keeps = engine.keeps_bodies or self._client.plane.request_log.keeps_bodies
        if attempts.replay is not None or self._capture is not None:
            keeps = True
            for copier in (attempts.replay, self._capture):
                message.keep_up_to(copier.max_bytes if copier is not None else 0)
        data = message.take(target.model, keeps=keeps)
        if message.is_complete:
            up.send_whole(target.head(attempt.endpoint), passing, data)
        else:
            up.send_headers(target.head(attempt.endpoint), passing)
            up.send_data(data)
        if self._owed_to_client and not up.waiting:
            owed, self._owed_to_client = self._owed_to_client, 0
            self._stream.credit(owed)

    # The reply

    def _relay_data(self, up: Stream, data: bytes, ended: bool) -> None:
        size = len(data)
        self._response_bytes += size
        stream = self._stream
        if size:
            stream.send_data(data)
            if self._capture is not None:
                self._capture.add(data)
        if ended:  # without trailers, and so without a status
            self._release()
            what = "the engine's reply ended without a status"
            self.attempts.failed(GatewayError(ErrorKind.UPSTREAM_PROTOCOL, what), was_sent=True)
        elif stream.waiting:
            self._owed_to_engine += size
        else:
            up.credit(size)

    # What attempts require

    def field(self, name: bytes) -> bytes | None:
        return self._head.value(name)

    @property
    def is_inference(self) -> bool:
        rpc = self._head.plan.rpc
        return rpc is not None and rpc.operation is Operation.INFER

    def waits_for_client(self) -> bool:
        up = self._up
        return up is not None and not self._message.is_complete and not up.is_waiting

    def prompt(self) -> bytes | None:
        return self._message.prompt

    def model(self) -> ModelName | None:
        names = self._message.names
        return names.of_model if names is not None and names.model else None

    def facts(self) -> tuple[Snapshot, Facts] | None:
        plan, names = self._head.plan, self._message.names
        return (plan.snapshot, plan.facts(names)) if names is not None else None

    def urgency(self) -> Urgency:
        message = self._message
        if not (message.is_complete and message.can_be_sent_again):
            return NO_URGENCY
        return urgency_of_message(message.message(None))

    def is_replayable(self) -> bool:
        return self._message.can_be_sent_again

    def is_idempotent(self, declared: str) -> bool:
        return not self.is_inference or (declared == "infer" and not self._message.may_name_a_sequence)

    def may_hedge(self) -> bool:
        message = self._message
        if not (message.is_complete and message.can_be_sent_again and self.is_inference):
            return False
        return not message.may_name_a_sequence and not names_region(message.message(None))

    def hedge(self, attempts: HedgedRequest, attempt: Attempt[Stream]) -> Hedge:
        return CallHedge(self, attempts, attempt)

    def send_hedge(self, attempt: Attempt[Stream], connection: Http2ClientConnection, receiver: StreamReceiver) -> None:
        first, self._attempt, up = self._attempt, attempt, self._up
        self._send(connection, monotonic())
        assert attempt.sent_on is not None
        attempt.sent_on.receiver = receiver
        attempt.sent_on.takes_whole_reply = False
        self._attempt, self._up = first, up

    def go_on_with_attempt(self, attempt: Attempt[Stream]) -> None:
        self._attempt, self._up = attempt, attempt.sent_on

    def sequence_input(self) -> Input | None:
        message = self._message
        if not (message.is_complete and message.can_be_sent_again):
            return None
        return Input(InputProtocol.GRPC, self._head.plan.path, (), message.message(self._target.model))

    def count_failed(self, meter: Meter, error: GatewayError) -> None:
        meter.failed(self._head.plan.rater + self._request_id, error.kind, error.status.http >= 500, self._message.size)

    # Ends

    def _finish(self, now: float, http_status: int, status: int | None) -> None:
        self._is_over = True
        attempts, attempt, message = self.attempts, self._attempt, self._message
        meter = attempts.meter if attempts.route_target.meter is not None else None
        if attempts.replay is not None:
            attempts.replay.keep_input(is_good=status == OK)
        attempts.status = http_status
        is_good = status == DEADLINE_EXCEEDED or not attempt.endpoint.counts_as_failure(http_status)
        attempts.answered(attempt, message.size, self._response_bytes, now, is_good=is_good)
        if meter is not None:
            rated_id = self._head.plan.rater + self._request_id
            meter.answered_rpc(rated_id, status, message.size, now - attempts.started_at)
        log = self._client.plane.request_log
        if log.is_on and (
            log.takes_all or log.takes(http_status, now - attempts.started_at, attempts, self._stream.note)
        ):
            self._log(http_status, "", UNKNOWN if status is None else status)
        self._client.call_ended(self._stream)
        if self._capture is not None:
            self._hand_over(self._capture, UNKNOWN if status is None else status)

    def attempts_failed(self, error: GatewayError, status: int) -> None:
        self._is_over = True
        client, route_target = self._client, self.attempts.route_target
        client.call_failed(self._stream, error, self._request_id, route_target, begun=self._has_begun, code=None)
        self._log(status, error.kind.value, error.status.grpc)
        client.call_ended(self._stream)
        if self._capture is not None:
            if error.kind in UNMIRRORED:
                self._capture.drop("refused")
            else:
                self._hand_over(self._capture, error.status.grpc)

    def _hand_over(self, capture: ReplyCapture, status: int) -> None:
        message, head = self._message, self._head
        whole = message.message(None) if message.is_complete and message.can_be_sent_again else None
        request = None if whole is None or len(whole) > capture.max_bytes else (whole,)
        lines = lines_of((*head.plan.fields, *head.own)).decode("latin-1")
        capture.hand_over(lines, request, status, is_call=True)

    def _log(self, status: int, reason: str, code: int) -> None:
        client, head, attempts = self._client, self._head, self.attempts
        if client.plane.request_log.is_on:
            log_call(
                client,
                head,
                status,
                reason,
                attempts.started_at,
                self._request_id,
                facts=facts_of_call(head, self._message),
                route_target=attempts.route_target,
                endpoint=attempts.url,
                trace=self._stream.note,
                code=code,
                attempts=attempts,
                request_bytes=self._message.size,
                response_bytes=self._response_bytes,
            )

"""A unary call whose target has fallbacks: where an engine fails or refuses it, the next one gets it.

The first fields of a reply are held until a message comes, or the status.
"""

from __future__ import annotations

from copy import copy
from time import monotonic

from gateway.dataplane.attempts.fallback_counts import count_fallback
from gateway.dataplane.attempts.upstream_attempts import UpstreamAttempts
from gateway.dataplane.context.call_target import CallTarget
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.grpc.message_body import MessageBody
from gateway.dataplane.grpc.reply_headers import relayed
from gateway.dataplane.grpc.unary_call import TakeOver, UnaryCall
from gateway.dataplane.grpc.unary_relay import UnaryRelay
from gateway.protocol.errors import GatewayError
from gateway.protocol.fallback_reasons import Reasons, reasons_of_error, reasons_of_reply
from gateway.protocol.grpc_status import DEADLINE_EXCEEDED, UNKNOWN, http_status
from gateway.protocol.sequence import AnySession
from gateway.protocol.trace_context import TRACEPARENT
from gateway.wire.http2.fields import Block
from gateway.wire.http2.frames import ErrorCode
from gateway.wire.http2.stream import Stream


class FallbackRelay(UnaryRelay):
    """`take_over` has the call go to another target."""

    __slots__ = ("_call", "_held_block", "_session", "_take_over")

    def __init__(
        self,
        call: UnaryCall,
        message: MessageBody,
        target: CallTarget,
        session: AnySession | None,
        take_over: TakeOver,
        attempts_type: type[UpstreamAttempts[Stream]] = UpstreamAttempts,
    ) -> None:
        super().__init__(call.client, call.stream, call.head, message, target, session, call.started_at, attempts_type)
        self._call = call
        self._session = session
        self._take_over = take_over
        self._held_block: Block | None = None
        message.keep()

    # The engine's reply

    takes_whole_replies = False  # its fields are held

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None:
        if stream is self._up:
            reply = relayed(block, self.attempts.route_target)
            if not ended and reply.http_status == 200:
                self._held_block = block
                return
            status = reply.http_status if reply.status is None else http_status(reply.status)
            if self._leaves(status, reply.status, reply.message, ended=ended):
                return
        super().headers_received(stream, block, ended)

    def trailers_received(self, stream: Stream, block: Block) -> None:
        if stream is self._up and self._held_block is not None:
            reply = relayed(block, self.attempts.route_target)
            status = 200 if reply.status is None else http_status(reply.status)
            if self._leaves(status, reply.status, reply.message, ended=True):
                return
            self._begin()
        super().trailers_received(stream, block)

    def _relay_data(self, up: Stream, data: bytes, ended: bool) -> None:
        if self._held_block is not None:
            self._begin()
        super()._relay_data(up, data, ended)

    def _begin(self) -> None:
        """Send the fields that were held: the reply is the client's."""
        block, self._held_block = self._held_block, None
        assert block is not None and self._up is not None
        super().headers_received(self._up, block, False)

    def attempts_failed(self, error: GatewayError, status: int) -> None:
        expires_at, target = self.attempts.expires_at, None
        if not self._has_begun and not (expires_at and monotonic() >= expires_at):
            idempotent = self.is_idempotent(self.attempts.route_target.engine.spec.retry.idempotent)
            target = self._next_target(reasons_of_error(error.kind, is_idempotent=idempotent))
        if target is None:
            super().attempts_failed(error, status)
        else:
            self._leave_behind(status, error.kind.value, error.status.grpc)
            self._go_to(target, status)

    # Going elsewhere

    def _leaves(self, status: int, code: int | None, text: str, *, ended: bool) -> bool:
        """Whether a reply with this HTTP status, of this gRPC status, is left for another engine's."""
        if status < 400:
            return False
        if self.attempts.gives_way(status):
            return True
        idempotent = self.is_idempotent(self.attempts.route_target.engine.spec.retry.idempotent)
        target = self._next_target(reasons_of_reply(status, text.encode(), is_idempotent=idempotent))
        if target is None:
            return False
        attempts, attempt, up, now, size = self.attempts, self._attempt, self._up, monotonic(), self._message.size
        self._release()
        if up is not None and not ended:
            up.reset(ErrorCode.CANCEL)
        meter = attempts.meter
        attempts.reply_began(attempt, status, now)
        is_good = code == DEADLINE_EXCEEDED or not attempt.endpoint.counts_as_failure(status)
        attempts.answered(attempt, size, 0, now, is_good=is_good)
        if meter is not None:
            meter.answered_rpc(self._rated_id, code, size, now - attempts.started_at)
        self._leave_behind(status, "", UNKNOWN if code is None else code)
        self._go_to(target, status)
        return True

    def _leave_behind(self, status: int, reason: str, code: int) -> None:
        """Log what has become of this target; the call's trace goes on with the next one."""
        spans, stream = self._client.plane.spans, self._stream
        if spans is None:
            self._log(status, reason, code)
            return
        stream.note = trace = spans.hold(stream.note, self._head.value(TRACEPARENT), self.attempts.started_at)
        self._log(status, reason, code)
        trace.is_held, trace.ended = False, None

    def _next_target(self, reasons: Reasons) -> RouteTarget | None:
        fallbacks, message = self.attempts.route_target.fallbacks, self._message
        if not reasons or fallbacks is None or not may_go_elsewhere(message):
            return None
        return fallbacks.find(reasons, monotonic(), was_admitted=True)

    def _go_to(self, target: RouteTarget, status: int) -> None:
        """Have the fallback's engine answer; `status` is that of the reply which is left."""
        self._is_over = True
        left, call, now = self.attempts.route_target, self._call, monotonic()
        count_fallback(call.client.plane.metrics, left, target, self._rated_id, status, is_inference=self.is_inference)
        call.head = head = copy(call.head)  # others share it
        head.id = self._request_id
        if head.timeout is not None:
            head.timeout = max(0.0, self.attempts.expires_at - now)
        call.started_at = now
        capture, self._capture = self._capture, None
        self._take_over(call, self._message, head.plan.target(target), self._session)
        if capture is not None:
            taken = call.stream.receiver
            if isinstance(taken, UnaryRelay):
                taken.go_on_with(capture)
            else:
                capture.drop("fallback")

    @property
    def _rated_id(self) -> bytes:
        return self._head.plan.rater + self._request_id


def may_go_elsewhere(message: MessageBody) -> bool:
    """Whether all of a message is at hand, and names no sequence."""
    return message.is_complete and message.can_be_sent_again and not message.may_name_a_sequence

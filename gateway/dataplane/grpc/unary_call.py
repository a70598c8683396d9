"""A unary call about one model until its target is decided: the message is read as far as the rules require."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from gateway.dataplane.context.active_requests import Progress, Stage
from gateway.dataplane.context.call_head import CallHead
from gateway.dataplane.context.call_target import CallTarget
from gateway.dataplane.context.request_refusals import undecided
from gateway.dataplane.grpc.interfaces import CallClient, CallHandler, log_call
from gateway.dataplane.grpc.message_body import MessageBody, PiecewiseMessage, facts_of_call, whole_message
from gateway.dataplane.grpc.reply_headers import fell_behind, fell_silent
from gateway.net.transfer_rate import is_too_slow
from gateway.protocol.errors import GatewayError
from gateway.protocol.grpc_status import CANCELLED
from gateway.protocol.sequence import AnySession
from gateway.routing.decision import Undecided
from gateway.wire.http2.stream import Stream

# Takes a call with this message over, for a target and a session.
TakeOver = Callable[["UnaryCall", MessageBody, CallTarget, AnySession | None], None]


class UnaryCall(CallHandler):
    """Reads the message until the rules decide; `take_over` then sets the handler as the stream's receiver."""

    __slots__ = (
        "_active_at",
        "_is_looking_up",
        "_is_over",
        "_message",
        "_settled",
        "_take_over",
        "client",
        "head",
        "started_at",
        "stream",
    )

    def __init__(self, client: CallClient, stream: Stream, head: CallHead, take_over: TakeOver) -> None:
        self.client = client
        self.stream = stream
        self.head = head
        self._take_over = take_over
        self._message: MessageBody | None = None
        self.started_at = self._active_at = monotonic()
        self._is_looking_up = False  # its session, in Redis
        self._settled: tuple[CallTarget, AnySession | None] | None = None  # where it goes once its message is whole
        self._is_over = False

    # Events of the client's stream

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        was_over = self._is_over
        if was_over:
            return
        message = self._message
        limits = self.client.plane.settings.limits
        try:
            if message is None:
                if ended:  # mostly, the message comes in one piece
                    message = self._message = whole_message(data, limits.max_body_bytes)
                    if message is not None:
                        self._decide(message)
                        return
                message = self._message = PiecewiseMessage(self.head.plan.encoding, limits)
            message.add(data, ended)
            if not ended:
                self._active_at = monotonic()
                self.client.plane.held.hold(self, message.size, self.client)
                if self._is_over:  # it was the largest of too many
                    return
                stream.credit(len(data))  # as far as the message's limit, since more is needed to decide
            else:
                self.client.plane.held.release(self)
            if self._settled is not None:
                if ended:
                    self._go(message, *self._settled)
            elif message.names is not None and not self._is_looking_up:
                self._decide(message)
        except GatewayError as error:
            self._fail(error)

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        if not self._is_over:
            self._is_over = True
            self.client.plane.held.release(self)
            self.client.plane.metrics.unrouted.count_error("client_gone")
            self._log(0, "client_gone", CANCELLED, self.head.id or self.client.plane.new_request_id())

    def drained(self, stream: Stream) -> None:
        self.client.call_ended(stream)

    def sweep(self, now: float) -> None:
        """Fail where the client has fallen silent in the middle of its message."""
        limit = self.client.plane.settings.limits.body_timeout
        is_due = not self._is_over and (self._message is None or not self._message.is_complete)
        if not is_due or self._is_looking_up:
            return
        if now - self._active_at > limit:
            self._fail(fell_silent(limit))
            return
        size = self._message.size if self._message is not None else 0
        min_rate = self.client.plane.settings.limits.min_rate
        if size and is_too_slow(min_rate, size, now - self.started_at):
            self._fail(fell_behind(min_rate))

    def progress(self) -> Progress | None:
        if self._is_over:
            return None
        names = self._message.names if self._message is not None else None
        model = names.model.decode("utf-8", "replace") if names is not None else ""
        request_id, line, principal = self.head.id or b"", self.head.plan.request_line, self.head.plan.principal
        return Progress(Stage.READING, self.started_at, request_id, model=model, request_line=line, principal=principal)

    def cancel(self, error: GatewayError) -> None:
        if not self._is_over:
            self._fail(error)

    # Deciding

    def _decide(self, message: MessageBody) -> None:
        """Decide by the rules, and hand the call over; wait for more of the message where they need it.

        Raises: GatewayError.
        """
        head, names = self.head, message.names
        assert names is not None
        decision = head.plan.decide(names, None, head)
        if decision is Undecided.NEEDS_BODY:
            facts = message.facts()
            if facts is None:
                return
            decision = head.plan.decide(names, facts, head)
        if isinstance(decision, Undecided):
            raise undecided(decision, head.plan.facts(names))
        target, session = decision
        if target.max_body_bytes is not None:
            target.check_size(message.declared_size)
        if session is not None and target.route_target.is_sticky:
            self._look_up(message, target, session)
        else:
            self._go(message, target, session)

    def _look_up(self, message: MessageBody, target: CallTarget, session: AnySession) -> None:
        """Go where the session is; a function of its own, since what a closure holds costs wherever it is used."""
        affinity, plan = self.client.plane.affinity, self.head.plan
        route_target = affinity.lookup_cached(target.route_target, session, self.head)
        if route_target is not None:
            self._go(message, plan.target(route_target), session)
            return
        self._is_looking_up = True
        affinity.find(
            target.route_target,
            session,
            lambda route_target: self._go(message, plan.target(route_target), session),
            self.head,
        )

    def _go(self, message: MessageBody, target: CallTarget, session: AnySession | None) -> None:
        if not self._is_over:
            if not message.is_complete:
                if self._waits_for_whole(message, target):
                    self._settled = target, session
                    return
                self.client.plane.held.release(self)
            self._is_over = True
            self._take_over(self, message, target, session)

    def _waits_for_whole(self, message: MessageBody, target: CallTarget) -> bool:
        """Whether several engines may get the message, which is held for them."""
        limits = self.client.plane.settings.limits
        return target.route_target.fallbacks is not None and message.declared_size <= limits.retry_body_bytes

    def _fail(self, error: GatewayError) -> None:
        """Answer a call that no engine gets."""
        self._is_over = True
        self.client.plane.held.release(self)
        client, head, status = self.client, self.head, error.status.http
        unrouted = client.plane.metrics.unrouted
        unrouted.count_error(error.kind.value)
        unrouted.count_failure(status, monotonic() - self.started_at)
        request_id = head.id or client.plane.new_request_id()
        client.call_failed(self.stream, error, request_id, None, begun=False, code=None)
        self._log(status, error.kind.value, error.status.grpc, request_id)
        self._message = None  # its memory: the client may have to read the reply yet
        client.call_ended(self.stream)

    def _log(self, status: int, reason: str, code: int, request_id: bytes) -> None:
        client, head = self.client, self.head
        if client.plane.request_log.is_on:
            facts = facts_of_call(head, self._message)
            trace = self.stream.note
            log_call(client, head, status, reason, self.started_at, request_id, facts=facts, trace=trace, code=code)

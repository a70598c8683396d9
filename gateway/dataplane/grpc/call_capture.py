"""The capture of a unary gRPC call for its route's shadow."""

from __future__ import annotations

from time import monotonic

from gateway.dataplane.context.call_head import CallHead
from gateway.dataplane.context.capture import CapturedFacts, Copy
from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.context.tap import Tap
from gateway.dataplane.grpc.message_body import MessageBody
from gateway.dataplane.mirroring.mirroring_handler import UNMIRRORED, is_drawn
from gateway.protocol.errors import GatewayError
from gateway.protocol.grpc_status import UNKNOWN
from gateway.wire.http2.fields import Block


def start_capture(tap: Tap, head: CallHead, lane: Lane, request_id: bytes, started_at: float) -> CallCapture | None:
    """The capture of a call to this lane; None where it is not of the sample."""
    assert lane.shadow is not None
    if not is_drawn(lane.shadow, tap, lane.target.route):
        return None
    return CallCapture(tap, head, lane, request_id, started_at)


class CallCapture:
    """Copies a call's answer as its engine sends it; the message follows when the call has ended. Neither is longer
    than `max_bytes`."""

    __slots__ = (
        "_answer",
        "_encoding",
        "_first_at",
        "_head",
        "_lane",
        "_request_id",
        "_started_at",
        "_tap",
        "max_bytes",
    )

    def __init__(self, tap: Tap, head: CallHead, lane: Lane, request_id: bytes, started_at: float) -> None:
        assert lane.shadow is not None
        self._tap = tap
        self._head = head
        self._lane = lane
        self._request_id = request_id
        self._started_at = started_at
        self._first_at = 0.0
        self._encoding = b"identity"
        self.max_bytes = lane.shadow.max_bytes
        self._answer = Copy(self.max_bytes)

    def began(self, block: Block) -> None:
        """The answer's first fields."""
        self._encoding = block.value(b"grpc-encoding") or b"identity"

    def answered(self, data: bytes) -> None:
        """More of the answer, as it is framed."""
        if not self._first_at:
            self._first_at = monotonic()
        self._answer.add(data)

    def failed(self, body: MessageBody | None, error: GatewayError) -> None:
        """No engine answers."""
        if error.kind in UNMIRRORED:
            self.dropped("refused")
        else:
            self.ended(body, error.status.grpc)

    def ended(self, body: MessageBody | None, status: int | None) -> None:
        """The answer is complete; `status` is None where it has none."""
        target = self._lane.target
        is_kept = body is not None and body.is_complete and body.can_be_sent_again
        message = body.message(None) if is_kept and body is not None else None
        if message is None or len(message) > self.max_bytes or not self._answer.is_whole:
            self.dropped("too_long")
            return
        now = monotonic()
        lines = b"".join([b"%b: %b\r\n" % field for field in (*self._head.plan.fields, *self._head.volatile)])
        facts = CapturedFacts(
            route=target.route,
            engine=target.engine,
            model=target.model,
            request_id=self._request_id.decode("latin-1"),
            head=lines.decode("latin-1"),
            is_call=True,
            answer_encoding=self._encoding.decode("latin-1"),
            status=UNKNOWN if status is None else status,
            seconds=now - self._started_at,
            first_seconds=(self._first_at or now) - self._started_at,
        )
        assert self._lane.shadow is not None
        self._tap.give(facts, (message,), self._answer.pieces, self._lane.shadow.max_in_flight)

    def dropped(self, reason: str) -> None:
        self._tap.drop(self._lane.target.route, reason)

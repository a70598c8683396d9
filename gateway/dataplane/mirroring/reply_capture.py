"""The capture of one mirrored request: its reply is copied, and goes to the shadow process with the request."""

from __future__ import annotations

import random
from collections.abc import Sequence
from time import monotonic

from gateway.dataplane.context.capture import BoundedCopy, CapturedFacts, Tap
from gateway.dataplane.context.route_target import RouteTarget
from gateway.observability.request_trace import RequestTrace
from gateway.protocol.errors import ErrorKind

# Refusals to reduce load: a candidate would get what limits keep from the route's own engine.
UNMIRRORED = (ErrorKind.RATE_LIMITED, ErrorKind.BUDGET_EXHAUSTED, ErrorKind.OVERLOADED)


class ReplyCapture:
    """Copies a reply of up to `max_bytes`; `encoding` is that of a call's messages."""

    def __init__(self, tap: Tap, route_target: RouteTarget, request_id: bytes, started_at: float) -> None:
        assert route_target.shadow is not None
        self._tap = tap
        self._route_target = route_target
        self.request_id = request_id
        self._started_at = started_at
        self._first_at = 0.0
        self.encoding = b""
        self.trace: RequestTrace | None = None
        self.max_bytes = route_target.shadow.max_bytes
        self._reply = BoundedCopy(self.max_bytes)

    def add(self, data: bytes) -> None:
        if not self._first_at:
            self._first_at = monotonic()
        self._reply.add(data)

    def hand_over(self, head: str, request: Sequence[bytes] | None, status: int, *, is_call: bool = False) -> None:
        """The reply is whole. `head` is the request's as `CapturedFacts` has it, `request` its body or message, None
        where it is too long; `status` is 0 where it stands in the reply."""
        if request is None or not self._reply.is_whole:
            self.drop("too_long")
            return
        now, target = monotonic(), self._route_target.spec
        facts = CapturedFacts(
            route=target.route,
            engine=target.engine,
            model=target.model,
            request_id=self.request_id.decode("latin-1"),
            head=head,
            is_call=is_call,
            answer_encoding=self.encoding.decode("latin-1"),
            status=status,
            seconds=now - self._started_at,
            first_seconds=(self._first_at or now) - self._started_at,
            traceparent=self.trace.traceparent.decode("ascii") if self.trace is not None else "",
        )
        assert self._route_target.shadow is not None
        self._tap.give(facts, request, self._reply.pieces, self._route_target.shadow.max_in_flight)

    def drop(self, reason: str) -> None:
        self._tap.drop(self._route_target.spec.route, reason)


def start_capture(tap: Tap, route_target: RouteTarget, request_id: bytes, started_at: float) -> ReplyCapture | None:
    """The capture of a request to this target; None where it is not sampled, or no capture is taken now."""
    shadow = route_target.shadow
    if shadow is None or random.random() >= shadow.sample:
        return None
    is_open = tap.is_open_for(route_target.spec.route, shadow.max_in_flight)
    return ReplyCapture(tap, route_target, request_id, started_at) if is_open else None

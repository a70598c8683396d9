"""Spans as a worker records them: compact, bounded, and sent in batches to the control process, which exports them.

head  --begin-->  sampled: a `RequestTrace`, whose context goes to engines
                  not sampled: nothing, which costs a request nothing
end   --take-->   sampled, failed, retried or slow: a `RequestSpan` in the batch
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Sequence
from random import random
from time import monotonic
from typing import Any, NamedTuple

from gateway.config.tracing import Tracing
from gateway.observability.request_trace import AttemptSpan, RequestTrace
from gateway.protocol.trace_context import read_traceparent

_FLUSH_SECONDS = 0.5
_RANGE = 1 << 64  # of the half of a trace id that decides


class RequestSpan(NamedTuple):
    """A request that has ended. Times are of `time.monotonic`, 0 for what has not happened; `status` is HTTP's.
    `link_trace` and `link_span` are the span that has caused it, of a copy for a shadow."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    why: str  # it is sampled: head, error, retry, slow
    started_at: float
    ended_at: float
    first_byte_at: float
    first_token_at: float
    waited: float  # seconds, for limits and the engine's queue
    queued: float  # of these, in the engine's queue
    protocol: str  # that the client speaks, as rules name it
    peer: str
    method: str
    target: str
    request_id: str
    status: int
    code: int  # gRPC's status, -1 where there is none
    reason: str
    operation: str
    provider: str  # the engine's protocol
    model: str
    version: str
    route: str
    arm: str
    engine: str
    engine_model: str
    tenant: str
    key: str
    session: str  # its hash
    fallback: str
    hedge: str
    request_bytes: int
    response_bytes: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish_reason: str
    link_trace: bytes
    link_span: bytes
    attempts: Sequence[AttemptSpan]


class SpanBatch(NamedTuple):
    """Requests of one worker; `dropped` were left out. `clock` is the wall clock's lead over `time.monotonic`."""

    requests: Sequence[RequestSpan]
    dropped: int
    clock: float


def decode_batch(encoded: bytes, dropped: int, clock: float) -> SpanBatch:
    requests = [
        RequestSpan._make((*fields[:-1], tuple(map(AttemptSpan._make, fields[-1]))))
        for fields in marshal.loads(encoded)
    ]
    return SpanBatch(requests, dropped, clock)


class SpanRecorder:
    """The spans of one worker. `send` gets what is recorded, encoded, and how many requests were left out."""

    def __init__(self, tracing: Tracing, call_later: Callable[[float, Callable[[], None]], Any]) -> None:
        self.send: Callable[[bytes, int], None] = lambda encoded, dropped: None
        self.slow = tracing.slow or float("inf")
        self._call_later = call_later
        self._share = tracing.share
        self._bound = int(tracing.share * _RANGE)
        self._follows_caller = tracing.follows_caller
        self._ends_decide = tracing.ends_decide
        self._most = max(1, int(tracing.rate * _FLUSH_SECONDS))  # of one batch
        self._records: list[tuple[Any, ...]] = []
        self._dropped = 0
        self._flushing: Any = None

    # When a request begins

    def begin(self, received: bytes | None) -> RequestTrace | None:
        """The trace of a request with this `traceparent`; None where the head does not decide that it is sampled."""
        if received is None:
            return RequestTrace(b"", b"", b"", monotonic()) if random() < self._share else None
        # The end of a flag that does not sample, mostly: what else the field has does not matter then
        if self._follows_caller and len(received) == 55 and received[54] in b"02468ace":
            return None
        context = read_traceparent(received)
        if context is None:
            return RequestTrace(b"", b"", received, monotonic()) if random() < self._share else None
        is_sampled = context.is_sampled if self._follows_caller else int(context.trace_id[16:], 16) < self._bound
        return RequestTrace(context.trace_id, context.span_id, received, monotonic()) if is_sampled else None

    def link(self, traceparent: str, received: bytes | None) -> RequestTrace | None:
        """The trace of a copy of a request whose span has this context; None where that is not traced. `received` is
        the copy's own field."""
        context = read_traceparent(traceparent.encode("latin-1"))
        if context is None:
            return None
        trace = RequestTrace(b"", b"", received or b"", monotonic())
        trace.link = context.trace_id, context.span_id
        return trace

    def hold(self, trace: RequestTrace | None, received: bytes | None, started_at: float) -> RequestTrace:
        """A trace to join what several handlers report of one request."""
        if trace is None:
            context = read_traceparent(received) if received is not None else None
            parent = (context.trace_id, context.span_id) if context is not None else (b"", b"")
            trace = RequestTrace(*parent, received or b"", started_at, is_sampled=False)
        trace.is_held = True
        return trace

    # When it ends

    def why(self, trace: RequestTrace | None, status: int, reason: str, seconds: float, num_attempts: int) -> str:
        """Why a request is sampled; empty where it is not."""
        if trace is not None and trace.is_sampled:
            return "head"
        if not self._ends_decide:
            return ""
        if status >= 500 or (reason and 200 <= status < 400):
            return "error"
        if num_attempts > 1:
            return "retry"
        return "slow" if seconds >= self.slow else ""

    def add(self, record: tuple[Any, ...]) -> None:
        """Record a request; the fields are those of `RequestSpan`."""
        if len(self._records) >= self._most:
            self._dropped += 1
            return
        self._records.append(record)
        if self._flushing is None:
            self._flushing = self._call_later(_FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if self._records or self._dropped:
            records, self._records = self._records, []
            dropped, self._dropped = self._dropped, 0
            self.send(marshal.dumps(records, 2), dropped)

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
from typing import Any, NamedTuple, TypeVar

from gateway.config.tracing import Tracing
from gateway.observability.request_trace import AttemptSpan, RequestTrace
from gateway.protocol.trace_context import read_traceparent

Request = TypeVar("Request")

_FLUSH_SECONDS = 0.5
_RANGE = 1 << 64  # of the half of a trace id that decides


class RequestSpan(NamedTuple):
    """A request that has ended. Times are of `time.monotonic`, 0 for what has not happened; `status` is HTTP's, `code`
    gRPC's, -1 where there is none; `why` it is sampled is head, error, retry or slow. `link_trace` and `link_span` are
    the span that has caused it, of a copy for a shadow."""

    # What many requests have in common: see `SpanRecorder.common`
    protocol: str  # that the client speaks, as rules name it
    method: str
    target: str
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
    fallback: str
    hedge: str
    # Each request's own
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    why: str
    started_at: float
    ended_at: float
    first_byte_at: float
    peer: str
    request_id: str
    status: int
    code: int
    reason: str
    request_bytes: int
    response_bytes: int
    # What few requests have
    first_token_at: float = 0.0
    waited: float = 0.0  # seconds, for limits and the engine's queue
    queued: float = 0.0  # of these, in the engine's queue
    session: str = ""  # its hash
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = ""
    link_trace: bytes = b""
    link_span: bytes = b""
    attempts: Sequence[AttemptSpan] = ()


class SpanBatch(NamedTuple):
    """Requests of one worker; `dropped` were left out. `clock` is the wall clock's lead over `time.monotonic`."""

    requests: Sequence[RequestSpan]
    dropped: int
    clock: float


def decode_batch(encoded: bytes, dropped: int, clock: float) -> SpanBatch:
    common, records = marshal.loads(encoded)
    requests = []
    for number, attempts, more, *own in records:
        request = RequestSpan(*common[number], *own, *more)
        requests.append(request._replace(attempts=tuple(map(AttemptSpan._make, attempts))))
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
        self._common: dict[tuple[object, ...], int] = {}
        self._common_values: list[tuple[Any, ...]] = []
        self._kept: list[object] = []  # the first request of each key
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
        if not self._follows_caller and len(received) == 55:
            try:
                if int(received[19:35], 16) >= self._bound:
                    return None
            except ValueError:
                pass  # it is no context
        context = read_traceparent(received)
        if context is None:
            return RequestTrace(b"", b"", received, monotonic()) if random() < self._share else None
        if self._follows_caller and not context.is_sampled:
            return None
        return RequestTrace(context.trace_id, context.span_id, received, monotonic())

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
            trace = RequestTrace(*parent, received or b"", started_at, False)
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

    @property
    def is_full(self) -> bool:
        """Whether this batch takes no more; the request counts as dropped then."""
        if len(self._records) < self._most:
            return False
        self._dropped += 1
        self._flush_soon()
        return True

    def common(self, key: tuple[object, ...], request: Request, values: Callable[[Request], tuple[Any, ...]]) -> int:
        """The number, in this batch, of what a request has in common with others of the same key: the first fields of
        `RequestSpan`, which `values` makes of it. The request is kept as long."""
        number = self._common.get(key)
        if number is None:
            number = self._common[key] = len(self._kept)
            self._kept.append(request)
            self._common_values.append(values(request))
        return number

    def add(self, record: tuple[Any, ...]) -> None:
        """Record a request: the number of what it has in common, the fields of its attempts, those that few requests
        have, and its own."""
        self._records.append(record)
        if self._flushing is None:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if self._flushing is None:
            self._flushing = self._call_later(_FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if self._records or self._dropped:
            encoded = marshal.dumps((self._common_values, self._records), 2)
            dropped, self._dropped = self._dropped, 0
            self._records, self._common_values, self._kept = [], [], []
            self._common.clear()
            self.send(encoded, dropped)

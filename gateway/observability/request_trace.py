"""The trace of a request in a worker, from its head to the end of its reply. Ids are in hexadecimal digits."""

from __future__ import annotations

from collections.abc import Sequence
from random import getrandbits
from typing import Any, NamedTuple

NO_LINK = b"", b""  # a trace's and a span's id
# Client spans of one request; those of a stream that goes on for days are left out from there on.
MAX_ATTEMPTS = 64


def new_span_id() -> bytes:
    return b"%016x" % (getrandbits(64) or 1)


class AttemptSpan(NamedTuple):
    """One attempt at an engine. Times are of `time.monotonic`, 0 for what has not happened; `failure` is the kind of an
    error, what became of a hedge, or empty; `status` is HTTP's, 0 where there is none."""

    span_id: bytes
    engine: str
    endpoint: str
    begun_at: float
    sent_at: float
    first_byte_at: float
    ended_at: float
    status: int
    failure: str
    is_rpc: bool


class RequestTrace:
    """The trace of one request in this worker.

    `received` is the client's field, empty where there is none. One that is not `is_sampled` exists where several
    handlers answer a request, to join what they report; it goes nowhere before the end, which decides. While `is_held`,
    the end of a handler is not that of the request: it stays in `ended`, until another handler takes over or the
    request ends.
    """

    __slots__ = (
        *("_sent", "attempts", "ended", "is_held", "is_sampled", "link", "parent_id", "received", "span_id"),
        *("started_at", "trace_id"),
    )

    def __init__(
        self, trace_id: bytes, parent_id: bytes, received: bytes, started_at: float, *, is_sampled: bool = True
    ) -> None:
        self.trace_id = trace_id or b"%032x" % (getrandbits(128) or 1)
        self.span_id = b"%016x" % (getrandbits(64) or 1)
        self.parent_id = parent_id
        self.received = received
        self.started_at = started_at
        self.is_sampled = is_sampled
        self.is_held = False
        self.ended: Any = None
        self.link = NO_LINK  # the span that has caused it, of a copy
        self.attempts: list[tuple[Any, ...]] = []  # the fields of `AttemptSpan`
        self._sent: list[tuple[object, bytes]] = []  # attempts that are under way, and the ids of their spans

    @property
    def traceparent(self) -> bytes:
        """The context of the request's own span; empty where it is not sampled."""
        return b"00-%b-%b-01" % (self.trace_id, self.span_id) if self.is_sampled else b""

    def send(self, attempt: object) -> bytes:
        """The field for an engine that gets this attempt, whose span is its caller."""
        span_id = b"%016x" % (getrandbits(64) or 1)
        self._sent.append((attempt, span_id))
        return b"00-%b-%b-01" % (self.trace_id, span_id)

    def span_id_of(self, attempt: object) -> bytes:
        for sent, span_id in self._sent:
            if sent is attempt:
                return span_id
        return new_span_id()

    def add(self, spans: Sequence[tuple[Any, ...]]) -> None:
        """Attempts have ended."""
        if len(self.attempts) < MAX_ATTEMPTS:
            self.attempts += spans
        self._sent.clear()

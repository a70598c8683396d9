"""The trace of a request in a worker, from its head to the end of its reply. Ids are in hexadecimal digits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import urandom
from typing import Any, NamedTuple

NO_LINK = b"", b""  # a trace's and a span's id
# Client spans of one request; those of a stream that goes on for days are left out from there on.
MAX_ATTEMPTS = 64
_IDS_AT_ONCE = 256


def _random_ids() -> Iterator[bytes]:
    """Ids of spans; a call of the kernel costs as much as many of them."""
    while True:
        digits = urandom(8 * _IDS_AT_ONCE).hex().encode("ascii")
        for start in range(0, len(digits), 16):
            yield digits[start : start + 16]


new_span_id = _random_ids().__next__


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
        *("_first", "_first_id", "_later", "attempts", "ended", "is_held", "is_sampled", "link", "parent_id"),
        *("received", "span_id", "started_at", "trace_id"),
    )

    def __init__(
        self, trace_id: bytes, parent_id: bytes, received: bytes, started_at: float, is_sampled: bool = True
    ) -> None:
        self.trace_id = trace_id or new_span_id() + new_span_id()
        self.span_id = new_span_id()
        self.parent_id = parent_id
        self.received = received
        self.started_at = started_at
        self.is_sampled = is_sampled
        self.is_held = False
        self.ended: Any = None
        self.link = NO_LINK  # the span that has caused it, of a copy
        self.attempts: Sequence[tuple[Any, ...]] = ()  # the fields of `AttemptSpan`
        # Attempts that are under way, and the ids of their spans
        self._first: object = None
        self._first_id = b""
        self._later: tuple[tuple[object, bytes], ...] = ()

    @property
    def traceparent(self) -> bytes:
        """The context of the request's own span; empty where it is not sampled."""
        return b"00-%b-%b-01" % (self.trace_id, self.span_id) if self.is_sampled else b""

    def send(self, attempt: object) -> bytes:
        """The field for an engine that gets this attempt, whose span is its caller."""
        span_id = new_span_id()
        if self._first is None:
            self._first, self._first_id = attempt, span_id
        else:
            self._later = (*self._later, (attempt, span_id))
        return b"00-%b-%b-01" % (self.trace_id, span_id)

    def span_id_of(self, attempt: object) -> bytes:
        """The id of an attempt's span, once: it has ended."""
        if self._first is attempt:
            self._first = None
            return self._first_id
        for number, (sent, span_id) in enumerate(self._later):
            if sent is attempt:
                self._later = self._later[:number] + self._later[number + 1 :]
                return span_id
        return new_span_id()

    def add(self, spans: Sequence[tuple[Any, ...]]) -> None:
        """Attempts have ended."""
        if len(self.attempts) < MAX_ATTEMPTS:
            self.attempts = [*self.attempts, *spans]

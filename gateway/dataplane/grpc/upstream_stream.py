"""An engine's stream under a client's: the messages of one lane, and what comes back for them."""

from __future__ import annotations

from time import monotonic

from gateway.dataplane.context.call_head import Way
from gateway.dataplane.grpc.interfaces import LegOwner
from gateway.dataplane.grpc.reply_headers import Relayed, relayed
from gateway.dataplane.grpc.stream_counters import LegCounts
from gateway.dataplane.grpc.stream_tries import StreamTries
from gateway.limits.pending import Grant
from gateway.net.http2_client import Http2ClientConnection
from gateway.observability.arms import Meter, is_fault, is_the_arms, kind_of
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_status import OK, http_status
from gateway.protocol.infer_message_head import Names
from gateway.protocol.llm.prompt import prompt_of_message
from gateway.protocol.stream_messages import ERROR_TAG
from gateway.wire.grpc import PREFIX_BYTES, Boundaries, MessageReader
from gateway.wire.http2.fields import Block
from gateway.wire.http2.relay_fast_path import Passage
from gateway.wire.http2.stream import Stream


class UpstreamStream(StreamTries):
    """Opens one stream to an endpoint of the lane, and keeps to it: sequences stay where they began.

    Until the endpoint has begun to answer, what was sent is held, as far as `retry_body_bytes` goes, for an endpoint
    that refuses the stream untouched. No time limit but the client's own applies where nobody knows when a response is
    due.
    """

    __slots__ = (
        "_active_at",
        "_call",
        "_counts",
        "_credited",
        "_first_byte_at",
        "_has_ended",
        "_held",
        "_held_bytes",
        "_is_held",
        "_was_sent_once",
        "boundaries",
        "encoding",
        "num_sent",
        "owed",
        "reader",
        "request_bytes",
        "way",
    )

    def __init__(self, call: LegOwner, way: Way, session: str | None) -> None:
        StreamTries.__init__(self, call.plane, way.lane, session if way.endpoint is None else None)
        self._first = way.endpoint
        self._call = call
        self.way = way
        self._held: list[tuple[bytes, Names]] = []
        self._held_bytes = 0
        self._is_held = True
        self._has_ended = False  # the client sends no more
        self._was_sent_once = False
        self._active_at = 0.0  # when some of a response came
        # Bytes of responses: those whose window is given back, and the others
        self._credited = 0
        self.owed = 0
        self._first_byte_at = 0.0
        self._counts = LegCounts()
        self.num_sent = 0  # messages
        self.request_bytes = 0
        self.encoding = b"identity"  # of compressed responses
        self.boundaries = Boundaries(ERROR_TAG)  # of the responses, while these pass through uncut
        self.reader: MessageReader | None = None  # of the responses, once they are placed one by one

    def __repr__(self) -> str:
        counts = f"{self.num_sent} sent, {self.boundaries.count} answered"
        return f"<UpstreamStream {self.way.lane!r} at {self._endpoint!r}: {counts}>"

    # What the client's call asks of it

    def start(self) -> None:
        self._try(self._started_at)

    def send(self, framed: bytes, names: Names) -> None:
        self.num_sent += 1
        self.request_bytes += len(framed)
        up = self._up
        if self._is_held:
            self._held.append((framed, names))
            self._held_bytes += len(framed)
            if up is not None and self._held_bytes > self._plane.settings.limits.retry_body_bytes:
                self._forget_held()
        if up is not None:
            up.send_data(framed)

    def charge(self) -> None:
        """One more message is to be sent.

        Raises: GatewayError where a limit is reached.
        """
        grant = self._grant
        if isinstance(grant, Grant):
            grant.again(monotonic())

    def end(self) -> None:
        """No more messages come."""
        self._has_ended = True
        if self._up is not None:
            self._up.send_data(b"", True)

    @property
    def is_backed_up(self) -> bool:
        """Whether messages wait: for a connection, or for the endpoint to read."""
        return self._up is None or self._up.is_waiting

    @property
    def num_unanswered(self) -> int:
        return self.num_sent - self.boundaries.count - (not self.boundaries.is_between_messages)

    def pass_to(self, client: Stream | None) -> None:
        # Of one request, what is owed says that the silence is ours: each piece is accounted for.
        if self._up is not None and not self._call.has_one_request:
            self._up.receiver = Passage(self, client) if client is not None else self

    def credit(self, size: int) -> None:
        """So much of the responses is done with."""
        self._credited += size
        if self._up is not None:
            self._up.credit(size)

    def owe(self, size: int) -> None:
        """So much of the responses waits for the client."""
        self.owed += size

    def pay(self) -> None:
        if self.owed:
            owed, self.owed = self.owed, 0
            self._active_at = monotonic()  # the silence was ours
            self.credit(owed)

    def sweep(self, now: float) -> None:
        """Called about once a second: has the engine fallen silent while something is due? What came is counted."""
        if self._first_byte_at and not self._call.has_one_request:
            self._count_messages()
            meter = self._meter
            if meter is not None:  # of the last one, more may come
                self._tell(meter, min(self.num_sent - 1, self.boundaries.count))
        limit = self.way.lane.engine.spec.idle_timeout
        is_due = self._call.has_one_request and self._credited and not self.owed
        if is_due and limit and now - self._active_at > limit:
            self._drop_try()
            silence = GatewayError(ErrorKind.DEADLINE, f"the engine sent nothing for {limit:g} s")
            self._try_failed(silence, was_sent=True)

    def cancel(self, reason: str, status: int) -> None:
        self._drop_try()
        if self._is_trying:
            self._leave(None)
        self._count_messages()
        meter = self._meter
        if meter is not None:
            self._measure_answered(meter, reason)
        if reason:
            self._counters().count_error(reason)
            if status:
                self._counters().count_failure(status, monotonic() - self._started_at)

    # What its stream tells it

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None:
        if stream is not self._up:
            return
        found = relayed(block, self.way.lane)
        if ended:
            self._end(found)
            return
        if found.http_status != 200:  # whatever comes now, it is no response
            self._drop_try()
            what = f"the engine answered with HTTP status {found.http_status}"
            self._try_failed(GatewayError(ErrorKind.UPSTREAM_PROTOCOL, what), was_sent=True)
            return
        self._status = found.http_status
        self._first_byte_at = monotonic()
        self._forget_held()
        self.encoding = block.value(b"grpc-encoding") or self.encoding
        assert self._endpoint is not None
        self._call.leg_began(self, found)

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        if stream is not self._up:
            return
        if data:
            if self._call.has_one_request:
                self._active_at = monotonic()
                self._clear_deadline()
            self._call.leg_answered(self, data)
        if ended and self._up is not None:  # without trailers, and so without a status
            self._up = None
            self._try_failed(
                GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the engine's stream ended without a status"), was_sent=True
            )

    def trailers_received(self, stream: Stream, block: Block) -> None:
        if stream is not self._up:
            return
        found = relayed(block, self.way.lane)
        if found.status == OK and self._is_cut_short():
            self._up = None
            what = "the engine's stream ended in the middle of a response"
            self._try_failed(GatewayError(ErrorKind.UPSTREAM_PROTOCOL, what), was_sent=True)
        else:
            self._end(found)

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        if stream is self._up:
            self._up_was_reset("stream", code, why)

    def drained(self, stream: Stream) -> None:
        if stream is self._up:
            self._call.leg_drained(self)

    # Trying

    def _send(self, connection: Http2ClientConnection, now: float) -> None:
        assert self._endpoint is not None
        self._sent_at = now
        self._was_sent_once = True
        self._up = up = self._call.outgoing.open(connection, self, self.way, self._endpoint, now)
        for framed, _ in self._held:
            up.send_data(framed)
        if self._held_bytes > self._plane.settings.limits.retry_body_bytes:
            self._forget_held()
        if self._has_ended:
            up.send_data(b"", True)
        self._call.leg_drained(self)

    def _deadline(self, now: float) -> float:
        return super()._deadline(now) if self._call.has_one_request else 0.0

    def _prompt(self) -> bytes | None:
        """That of the stream's first message, where it is plain."""
        if not self._held or self._held[0][0][0]:
            return None
        return prompt_of_message(self._held[0][0][PREFIX_BYTES:])

    def _can_be_sent_again(self) -> bool:
        return self._is_held and self.way.endpoint is None  # else it has messages of more than one session

    def _is_idempotent(self, declared: str) -> bool:
        return False  # a message may be of a sequence

    # Limits

    def field(self, name: bytes) -> bytes | None:
        return self._call.field(name)

    @property
    def _is_inference(self) -> bool:
        return True

    # Ends

    def _end(self, found: Relayed) -> None:
        self._up = None
        self._clear_deadline()
        status = found.status
        self._status = http_status(status) if status is not None else found.http_status
        assert self._series is not None
        self._answered(status)
        now = monotonic()
        self._count_messages()
        first_byte_at = self._first_byte_at or now
        self._series.count(self._status, now - self._started_at, first_byte_at - self._started_at, now - self._sent_at)
        if status != OK:
            self._series.count_error(kind_of(status))
        meter = self._meter
        if meter is not None:
            self._measure(meter, kind_of(status) if is_fault(status) else "", is_good=status == OK)
        self._call.leg_ended(self, found)

    def _fail(self, error: GatewayError) -> None:
        self._drop_try()
        if self._is_trying:
            self._leave(None)
        series = self._counters()
        self._count_messages()
        series.count_error(error.kind.value)
        series.count_failure(error.status.http, monotonic() - self._started_at)
        meter = self._meter
        if meter is not None:
            if is_the_arms(error.kind, error.status.http >= 500):
                self._measure(meter, error.kind.value)
            else:
                self._measure_answered(meter, error.kind.value)
        told = error.at(self._whereabouts())
        if self._was_sent_once:
            self._call.leg_broke(self, told)
        else:
            self._call.leg_refused(self, told, [names for _, names in self._held])

    def _measure(self, meter: Meter, failure: str, *, is_good: bool = False) -> None:
        """Tell an experiment what became of its messages; with a `failure`, of those without an answer."""
        num_failed = max(1, min(self.num_sent, self.num_unanswered)) if failure else 0
        seconds = monotonic() - self._started_at if is_good and self._call.has_one_request else None
        self._tell(meter, self.num_sent - num_failed, num_failed, failure, seconds)

    def _measure_answered(self, meter: Meter, reason: str) -> None:
        """The same where it ends, with a reason, by what says nothing of the arm."""
        self._tell(meter, min(self.num_sent, self.boundaries.count))
        if reason:
            meter.kept_out(reason)

    def _tell(
        self, meter: Meter, num_answered: int, num_failed: int = 0, failure: str = "", seconds: float | None = None
    ) -> None:
        """Engines' error messages are failures, too; of one request the client is told by a status."""
        num_errors = max(0, min(self.boundaries.num_marked, num_answered))
        if num_errors and self._call.has_one_request:
            num_errors, seconds = 0, None
        self._counts.measure(
            meter,
            self._call.request_id,
            num_answered - num_errors,
            num_errors,
            self.request_bytes,
            seconds,
            num_failed,
            failure,
        )

    def _is_cut_short(self) -> bool:
        reader = self.reader
        return not self.boundaries.is_between_messages or (reader is not None and not reader.is_between_messages)

    def _count_messages(self) -> None:
        num_bytes = self._credited + self.owed
        self._counts.count(self._counters(), self.num_sent, self.boundaries.count, self.request_bytes, num_bytes)

    def _forget_held(self) -> None:
        self._is_held = False
        self._held.clear()
        self._held_bytes = 0

"""An engine's stream under a client's: the messages for one target, and what comes back for them."""

from __future__ import annotations

from time import monotonic

from gateway.dataplane.attempts.model_refusal import learn_refusal
from gateway.dataplane.attempts.upstream_attempts import UpstreamAttempts
from gateway.dataplane.context.call_target import CallTarget
from gateway.dataplane.grpc.reply_headers import RelayedBlock, relayed, timeout_literal
from gateway.dataplane.grpc.stream_call import StreamCall
from gateway.dataplane.grpc.upstream_call import GrpcFront
from gateway.net.http2_client import Http2ClientConnection
from gateway.observability.arms import Meter, is_fault, is_the_arms, kind_of
from gateway.observability.metrics import RequestSeries
from gateway.protocol.advertised_models import ModelName
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_status import DEADLINE_EXCEEDED, OK, http_status
from gateway.protocol.infer_message_head import Names
from gateway.protocol.llm.request_facts import prompt_of_message
from gateway.protocol.message_layouts import ERROR_TAG, error_of
from gateway.protocol.sequence import AnySession
from gateway.wire.grpc import PREFIX_BYTES, Boundaries, MessageReader
from gateway.wire.http2.fields import Block
from gateway.wire.http2.relay_fast_path import RelayFastPath
from gateway.wire.http2.stream import Stream

# What an engine's `error_message` counts as: without a status, the fault is not assigned.
_STREAM_ERROR = "stream_error"


class UpstreamStream(GrpcFront):
    """Opens one stream to an endpoint of the target, and stays with it, so that sequences stay where they began.

    Until the endpoint begins to answer, up to `retry_body_bytes` of messages are held for another endpoint, should this
    one refuse the stream. Only the client's time limit applies, unless the call has one request.
    """

    may_queue = False

    def __init__(self, call: StreamCall, target: CallTarget, session: AnySession | None) -> None:
        self._call = call
        self.target = target
        session = session if target.endpoint is None else None
        super().__init__(UpstreamAttempts(call.plane, self, target.route_target, session, monotonic()))
        self.attempts.is_timed = call.has_one_request
        self.attempts.first_endpoint = target.endpoint
        self._held: list[tuple[bytes, Names]] = []
        self._held_bytes = 0
        self._is_held = True
        self._first: Names | None = None  # those of the first message, once it is sent
        self._client_ended = False
        self._was_sent = False  # to some endpoint
        self._active_at = 0.0  # when some of a response came
        # Bytes of responses: those whose window is given back, and the others
        self._credited = 0
        self.owed = 0
        self._counters = StreamCounters()
        self.num_sent = 0  # messages
        self.request_bytes = 0
        self.encoding = b"identity"
        self.boundaries = Boundaries(ERROR_TAG)  # of the responses, while these pass through uncut
        self.reader: MessageReader | None = None

    # What the client's call requires: see `BackendStream`

    @property
    def url(self) -> str:
        return self.attempts.url

    def start(self) -> None:
        self.attempts.start(self.attempts.started_at)

    def send(self, framed: bytes, names: Names) -> None:
        self.num_sent += 1
        self.request_bytes += len(framed)
        up = self._up
        if self._is_held:
            self._held.append((framed, names))
            self._held_bytes += len(framed)
            if up is not None and self._held_bytes > self._call.plane.settings.limits.retry_body_bytes:
                self._drop_held()
        if up is not None:
            up.send_data(framed)

    def charge(self) -> None:
        self.attempts.charge()

    def end(self) -> None:
        self._client_ended = True
        if self._up is not None:
            self._up.send_data(b"", True)

    @property
    def is_backed_up(self) -> bool:
        return self._up is None or self._up.is_waiting

    @property
    def num_unanswered(self) -> int:
        return self.num_sent - self.boundaries.count - (not self.boundaries.is_between_messages)

    def pass_to(self, client: Stream | None) -> None:
        # With one request each piece is accounted for: the engine's silence has a limit, the client's has none.
        up = self._up
        if up is not None and not self._call.has_one_request:
            up.receiver = RelayFastPath(self, client) if client is not None else self

    def credit(self, size: int) -> None:
        self._credited += size
        if self._up is not None:
            self._up.credit(size)

    def owe(self, size: int) -> None:
        self.owed += size

    def pay(self) -> None:
        if self.owed:
            owed, self.owed = self.owed, 0
            self._active_at = monotonic()  # the client was silent, not the engine
            self.credit(owed)

    def sweep(self, now: float) -> None:
        """Count what has come; fail where the engine is silent while something is due."""
        if self.attempts.first_byte_at and not self._call.has_one_request:
            self._count_messages()
            meter = self.attempts.meter
            if meter is not None:  # of the last one, more may come
                self._measure(meter, min(self.num_sent - 1, self.boundaries.count))
        if self._call.has_one_request and self._credited and not self.owed:
            self.attempts.check_silence(self._active_at, now)

    def error_received(self, response: bytes) -> None:
        if self._call.has_one_model and learn_refusal(self.attempts, 400, error_of(response)):
            self._call.model_refused(self)

    def cancel(self, reason: str, status: int) -> None:
        self._count_messages()
        self.attempts.abandon(reason, status)
        self._call.attempts_ended(self.attempts, reason)

    # Events of the engine's stream

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None:
        if stream is not self._up:
            return
        reply = relayed(block, self.target.route_target)
        if ended:
            self._end(reply)
            return
        if reply.http_status != 200:  # whatever follows is no response
            what = f"the engine answered with HTTP status {reply.http_status}"
            self.attempts.failed(GatewayError(ErrorKind.UPSTREAM_PROTOCOL, what), was_sent=True)
            return
        self.attempts.status = reply.http_status
        self.attempts.first_byte_at = monotonic()
        self._drop_held()
        self.encoding = block.value(b"grpc-encoding") or self.encoding
        self._call.backend_began(self, reply)

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        if stream is not self._up:
            return
        if data:
            if self._call.has_one_request:
                self._active_at = monotonic()
                self.attempts.clear_deadline()
            self._call.backend_answered(self, data)
        if ended and stream is self._up:  # without trailers, and so without a status
            self._broke("the engine's stream ended without a status")

    def trailers_received(self, stream: Stream, block: Block) -> None:
        if stream is not self._up:
            return
        reply = relayed(block, self.target.route_target)
        readers = self.boundaries, self.reader or self.boundaries
        if reply.status == OK and not all(reader.is_between_messages for reader in readers):
            self._broke("the engine's stream ended in the middle of a response")
        else:
            self._end(reply)

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        if stream is self._up:
            self._upstream_reset("stream", code, why)

    def drained(self, stream: Stream) -> None:
        if stream is self._up:
            self._call.backend_drained(self)

    def _broke(self, what: str) -> None:
        self._release()
        self.attempts.failed(GatewayError(ErrorKind.UPSTREAM_PROTOCOL, what), was_sent=True)

    # What attempts require

    def _send(self, connection: Http2ClientConnection, now: float) -> None:
        self._was_sent = True
        call, attempt = self._call, self._attempt
        attempt.sent_on = self._up = up = connection.open_stream(self)
        attempt.sent_at = now
        passing = call.passing_to(self.target.route_target.engine, attempt)
        if call.expires_at:
            passing += timeout_literal(call.expires_at - now)
        up.send_headers(self.target.head(attempt.endpoint), passing)
        for framed, _ in self._held:
            up.send_data(framed)
        if self._held_bytes > call.plane.settings.limits.retry_body_bytes:
            self._drop_held()
        if self._client_ended:
            up.send_data(b"", True)
        call.backend_drained(self)

    def field(self, name: bytes) -> bytes | None:
        return self._call.field(name)

    def prompt(self) -> bytes | None:
        """That of the stream's first message, where it is not compressed."""
        if not self._held or self._held[0][0][0]:
            return None
        return prompt_of_message(self._held[0][0][PREFIX_BYTES:])

    def model(self) -> ModelName | None:
        """That of the stream's first message: all others' are at the same endpoints."""
        first = self._held[0][1] if self._held else self._first
        return first.of_model if first is not None else None

    def is_replayable(self) -> bool:
        return self._is_held and self.target.endpoint is None  # else it has messages of more than one session

    # It is not idempotent: a message may be of a sequence.
    is_inference = True

    # Ends

    def _end(self, reply: RelayedBlock) -> None:
        attempts, attempt, status = self.attempts, self._attempt, reply.status
        meter = attempts.meter
        self._release()
        code = http_status(status) if status is not None else reply.http_status
        if status != OK and self._call.has_one_model:
            learn_refusal(attempts, code, reply.message.encode())
        attempts.status = code
        is_good = status == DEADLINE_EXCEEDED or not attempt.endpoint.counts_as_failure(code)
        self._count_messages()
        attempts.answered(attempt, 0, 0, monotonic(), is_good=is_good)
        self._call.attempts_ended(attempts, kind_of(status) if status != OK else "")
        if status != OK:
            attempt.series.count_error(kind_of(status))
        if meter is not None:
            self._measure_end(meter, kind_of(status) if is_fault(status) else "", is_good=status == OK)
        self._call.backend_ended(self, reply)

    def attempts_failed(self, error: GatewayError, status: int) -> None:
        self._count_messages()
        self._call.attempts_ended(self.attempts, error.kind.value)
        if self._was_sent:
            self._call.backend_broke(self, error)
        else:
            self._call.backend_refused(self, error, self._held)

    def count_failed(self, meter: Meter, error: GatewayError) -> None:
        if is_the_arms(error.kind, error.status.http >= 500):
            self._measure_end(meter, error.kind.value)
        else:
            self.count_abandoned(meter, error.kind.value)

    def count_abandoned(self, meter: Meter, reason: str) -> None:
        """The end, for a `reason`, says nothing of the arm: only answered messages do."""
        self._measure(meter, min(self.num_sent, self.boundaries.count))
        if reason:
            meter.kept_out(reason)

    def _measure_end(self, meter: Meter, failure: str, *, is_good: bool = False) -> None:
        """Report what became of the messages; with a `failure`, of those without an answer."""
        num_failed = max(1, min(self.num_sent, self.num_unanswered)) if failure else 0
        is_timed = is_good and self._call.has_one_request
        seconds = monotonic() - self.attempts.started_at if is_timed else None
        self._measure(meter, self.num_sent - num_failed, num_failed, failure, seconds)

    def _measure(
        self, meter: Meter, num_answered: int, num_failed: int = 0, failure: str = "", seconds: float | None = None
    ) -> None:
        """Engines' error messages are failures, too; a client with one request gets a status in their place."""
        num_errors = max(0, min(self.boundaries.num_marked, num_answered))
        if num_errors and self._call.has_one_request:
            num_errors, seconds = 0, None
        self._counters.measure(
            meter,
            self._call.rated_id,
            num_answered=num_answered - num_errors,
            num_errors=num_errors,
            num_failed=num_failed,
            failure=failure,
            num_bytes=self.request_bytes,
            seconds=seconds,
        )

    def _count_messages(self) -> None:
        num_bytes = self._credited + self.owed
        self._counters.count(self.attempts.series, self.num_sent, self.boundaries.count, self.request_bytes, num_bytes)

    def _drop_held(self) -> None:
        self._is_held = False
        if self._held:
            self._first = self._held[0][1]
        self._held.clear()
        self._held_bytes = 0


class StreamCounters:
    """Reports to a series and a meter what has come since the last report, as a stream may go on for days. The
    arguments are totals."""

    def __init__(self) -> None:
        self._sent = self._received = self._request_bytes = self._response_bytes = 0
        self._meter: Meter | None = None
        self._answered = self._errors = self._measured_bytes = 0

    def count(self, series: RequestSeries, sent: int, received: int, request_bytes: int, response_bytes: int) -> None:
        series.messages_sent += sent - self._sent
        series.messages_received += received - self._received
        series.request_bytes += request_bytes - self._request_bytes
        series.response_bytes += response_bytes - self._response_bytes
        self._sent, self._received = sent, received
        self._request_bytes, self._response_bytes = request_bytes, response_bytes

    def measure(
        self,
        meter: Meter,
        request_id: bytes,
        *,
        num_answered: int,
        num_errors: int,
        num_failed: int,
        failure: str,
        num_bytes: int,
        seconds: float | None,
    ) -> None:
        """What became of an arm's messages: well answered, answered by an error message, or, at the end, not answered
        for the reason `failure`.

        No message counts twice: what is reported stays, though of several messages under way an error may belong to a
        later one than assumed.
        """
        if self._meter is None:
            self._meter = meter.of_stream()
        left = max(0, num_answered + num_errors + num_failed - self._answered - self._errors)
        errors = min(left, num_errors - self._errors)
        if errors > 0:
            self._meter.streamed(request_id, 0, errors, _STREAM_ERROR, 0, None)
            self._errors += errors
            left -= errors
        failed = min(left, num_failed)
        answered = left - failed
        self._answered += answered
        more_bytes = num_bytes - self._measured_bytes
        if answered or failed or (more_bytes and self._answered + self._errors):
            self._meter.streamed(request_id, answered, failed, failure, more_bytes, seconds)
            self._measured_bytes = num_bytes

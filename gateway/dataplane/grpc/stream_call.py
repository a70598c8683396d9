"""A ModelStreamInfer call: each message goes to its own model's target, and all responses come back on the one stream.

`StreamRequests` reads what the client sends, `StreamRouter` finds each message's target, a `BackendStream` for each
target answers, `StreamResponses` writes to the client.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from gateway.dataplane.attempts.front import Attempt
from gateway.dataplane.attempts.trace_fields import literals_with_trace
from gateway.dataplane.attempts.upstream_attempts import UpstreamAttempts
from gateway.dataplane.context.active_requests import Progress, Stage
from gateway.dataplane.context.call_head import CallHead
from gateway.dataplane.context.call_target import CallTarget
from gateway.dataplane.context.ended_request import DecisionFacts, EndedRequest, attempt_spans
from gateway.dataplane.grpc.interfaces import BackendStream, CallClient, ClientCall, log_call
from gateway.dataplane.grpc.region_renamer import RegionRenamer, RenamingReceiver
from gateway.dataplane.grpc.reply_headers import RelayedBlock, fell_silent, request_id_literal
from gateway.dataplane.grpc.stream_requests import StreamRequests
from gateway.dataplane.grpc.stream_responses import StreamResponses
from gateway.dataplane.grpc.stream_router import Key, StreamRouter
from gateway.observability.request_trace import RequestTrace
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_status import CANCELLED, OK, http_status
from gateway.protocol.infer_message_head import Names, read_names, renamed
from gateway.protocol.message_layouts import error_response
from gateway.protocol.sequence import AnySession
from gateway.protocol.trace_context import TRACEPARENT
from gateway.upstream.engine import Engine
from gateway.wire.grpc import PREFIX_BYTES, decompress, framed
from gateway.wire.http2.stream import Stream

# Opens the backend of a call for a target; the session chooses its endpoint.
OpenBackend = Callable[["StreamCall", CallTarget, AnySession | None], BackendStream]


class StreamCall(ClientCall):
    """One client's stream, and a backend for each target of its messages.

    A message that no engine gets is answered by an `error_message`, and the stream goes on, unless the client wants
    `triton_grpc_error`. An engine that breaks off ends the stream.
    """

    def __init__(
        self,
        client: CallClient,
        stream: Stream,
        head: CallHead,
        open_backend: OpenBackend,
        decided: tuple[Key, CallTarget, AnySession | None] | None = None,
    ) -> None:
        """`decided`: the call has one request, of this model, target and session."""
        super().__init__(client, stream, head)
        self.plane = plane = client.plane
        self._open_backend = open_backend
        limits = plane.settings.limits
        self._router = StreamRouter(head, plane)
        self.has_one_request = decided is not None  # a response is due, and the engine's time limits apply
        if decided is not None:
            self._router.keep(*decided)
        receiver = RenamingReceiver(self, RegionRenamer(client, head)) if head.plan.may_name_region else self
        self._requests = StreamRequests(receiver, self._router, head.plan.encoding, limits)
        self.trace: RequestTrace | None = None  # joins what its backends report
        if plane.spans is not None:
            self.trace = plane.spans.hold(stream.note, head.value(TRACEPARENT), self._started_at)
        self._backends: dict[CallTarget, BackendStream] = {}
        self._num_backends = 0  # since the start
        self.responses = StreamResponses(stream, self.request_id, self._backends, limits.high_water_bytes)

    @property
    def rated_id(self) -> bytes:
        """The id that ratings name, behind that of who may rate it."""
        return self._head.plan.rater + self.request_id

    @property
    def expires_at(self) -> float:
        """The client's deadline, of `time.monotonic`; 0 where it has none."""
        return self._started_at + self._head.timeout if self._head.timeout is not None else 0.0

    @property
    def has_one_model(self) -> bool:
        """Whether all messages so far are of one model."""
        return self._requests.is_one_model

    def passing_to(self, engine: Engine, attempt: Attempt[Any]) -> bytes:
        """The call's own fields for an attempt at an engine, encoded."""
        if engine.overrides_gateway_fields:
            own = [*self._client.forwarded, (b"x-request-id", self.request_id)]
            passing = self._head.passing_beside(engine, own)
        else:
            own_id = request_id_literal(self.request_id)
            passing = b"".join((self._client.passing, self._head.passing_to(engine), own_id))
        trace = self.trace
        if trace is None or not trace.is_sampled:
            return passing
        return literals_with_trace(trace, attempt, engine, passing)

    # Events of the client's stream

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        was_over = self._is_over
        if was_over:
            return
        try:
            if data:
                self._requests.feed(data)
            if ended and not self._is_over:
                self._has_ended = True
                self._requests.end()
                self._end_backends()
        except GatewayError as error:
            self._fail(error)
        if self._is_over:
            return
        if not self._requests.is_between_messages:
            self._active_at = monotonic()
        if self._is_backed_up():
            self._owed += len(data)
        else:
            stream.credit(len(data))

    def holds(self, size: int) -> None:
        held = self.plane.held
        if size:
            held.hold(self, size, self._client)
        else:
            held.release(self)

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        if not self._is_over:
            self._log(499, "client_gone", CANCELLED)
            self._close("client_gone")

    def drained(self, stream: Stream) -> None:
        if self._is_over:
            self._client.call_ended(stream)
        else:
            self.responses.drained()

    def sweep(self, now: float) -> None:
        """Fail where the client has fallen silent in the middle of a message."""
        for backend in list(self._backends.values()):
            backend.sweep(now)
        limit = self.plane.settings.limits.body_timeout
        is_due = not self._requests.is_between_messages and not self._owed  # else the gateway holds the client back
        if is_due and now - self._active_at > limit:
            self._fail(fell_silent(limit))

    def progress(self) -> Progress | None:
        if self._is_over:
            return None
        target, names = self._router.first, self._router.names
        has_begun, num_backends = self.responses.has_begun, self._num_backends
        stage = Stage.ANSWERING if has_begun else Stage.REQUESTED if num_backends else Stage.READING
        route_target = target.route_target if target is not None else None
        model = names.model.decode("utf-8", "replace") if names is not None else ""
        url = next((backend.url for backend in self._backends.values() if backend.url), "")
        return Progress(
            stage,
            self._started_at,
            self.request_id,
            route_target,
            url,
            model,
            self._head.plan.request_line,
            principal=self._head.plan.principal,
        )

    def send_only(self, message: bytes, names: Names) -> None:
        """Send the one request of a call that has one; `message` has its prefix."""
        self._has_ended = True
        self.take(message, None, names)
        self._end_backends()

    # Events of `StreamRequests`

    def take(self, data: bytes, plain: bytes | None, names: Names) -> None:
        has_turn = self._requests.have_turns(names)
        try:
            target = self._router.find(names, data, plain)
            if target.max_body_bytes is not None:
                target.check_size(len(data))
            backend = self._backends.get(target)
            if backend is not None:
                backend.charge()
        except GatewayError as error:
            self.plane.metrics.unrouted.count_error(error.kind.value)
            if has_turn:
                self.responses.expect(None, names.model, names.id)
            self._answer_error(None, error, names)
            return
        if target.model is not None:
            data = framed(renamed(data[PREFIX_BYTES:] if plain is None else plain, names, target.model))
        if has_turn:
            self.responses.expect(target, target.model or names.model, names.id)
        if backend is not None:
            backend.send(data, names)
        else:
            self._start_backend(target, data, names)

    def second_model_comes(self, first: Names) -> None:
        self.responses.cut()
        if self._requests.have_turns(first):  # what they still owe comes first
            for target, backend in self._backends.items():
                for _ in range(backend.num_unanswered):
                    self.responses.expect(target, target.model or first.model, b"")

    def requests_go_on(self, error: GatewayError | None) -> None:
        if error is not None:
            self._fail(error)
        elif not self._is_over:
            if self._has_ended:
                self._end_backends()
            self._credit_client()

    def _start_backend(self, target: CallTarget, data: bytes, names: Names) -> None:
        backend = self._open_backend(self, target, self._router.session(target))
        self.responses.join(backend)
        self._backends[target] = backend
        self._num_backends += 1
        backend.send(data, names)
        backend.start()

    def _fall_back(self, target: CallTarget, messages: list[tuple[bytes, Names]]) -> None:
        """Have the backend of a fallback answer these messages."""
        (data, names), *others = messages
        self._start_backend(target, data, names)
        backend = self._backends.get(target)
        if backend is not None:
            for data, names in others:
                backend.send(data, names)
            if self._has_ended:
                backend.end()

    def _for_target(self, data: bytes, names: Names, target: CallTarget) -> bytes:
        """A message that another target's engine did not get, with its prefix, for this one's."""
        if target.model is None:
            return data
        plain = data[PREFIX_BYTES:]
        if data[0]:
            plain = decompress(plain, self._head.plan.encoding, self.plane.settings.limits.most_inflated(len(plain)))
        return framed(renamed(plain, read_names(plain, 0, len(plain)), target.model))

    def _is_backed_up(self) -> bool:
        if self._requests.wait:
            return True
        for backend in self._backends.values():  # noqa: SIM110 - a generator would cost as much again, for each piece that comes
            if backend.is_backed_up:
                return True
        return False

    def _credit_client(self) -> None:
        if self._owed and not self._is_backed_up():
            owed, self._owed = self._owed, 0
            self._active_at = monotonic()
            self._stream.credit(owed)

    def _end_backends(self) -> None:
        if not self._requests.wait:
            for backend in list(self._backends.values()):
                backend.end()
            self._succeed_if_done()

    # Events of the backends

    def field(self, name: bytes) -> bytes | None:
        return self._head.value(name)

    def backend_began(self, backend: BackendStream, block: RelayedBlock) -> None:
        self.responses.began(backend, block)

    def backend_answered(self, backend: BackendStream, data: bytes) -> None:
        """Responses, cut anywhere; `BackendStream.credit` gives their window back."""
        try:
            self.responses.answered(backend, data)
        except GatewayError as error:
            self._fail(GatewayError(ErrorKind.UPSTREAM_PROTOCOL, error.message))

    def backend_drained(self, backend: BackendStream) -> None:
        """It takes more messages again."""
        self._credit_client()

    def backend_refused(self, backend: BackendStream, error: GatewayError, unsent: list[tuple[bytes, Names]]) -> None:
        """Its engine has got none of its messages, and will get none: a fallback gets them, or they fail."""
        del self._backends[backend.target]
        if not (self.has_one_request or self.responses.are_ordered):
            target = self._router.fallback(backend.target, error, [data for data, _ in unsent])
            if target is not None:
                self._num_backends -= 1
                self._fall_back(target, [(self._for_target(data, names, target), names) for data, names in unsent])
                return
        for _, names in unsent:
            self._answer_error(backend.target, error, names)
        self._succeed_if_done()
        self._credit_client()

    def message_failed(self, backend: BackendStream, text: str, code: int, names: Names) -> None:
        """One message has failed, and the backend goes on."""
        self._answer_error(backend.target, GatewayError(ErrorKind.UPSTREAM_RESET, text), names, code)

    def model_refused(self, backend: BackendStream) -> None:
        """Its endpoint turns out to lack the model: the messages that follow may go elsewhere."""
        self._router.forget(backend.target)

    def backend_broke(self, backend: BackendStream, error: GatewayError) -> None:
        """Some of its messages stay without an answer."""
        self._backends.pop(backend.target, None)
        self._fail(error, is_counted=True)

    def backend_ended(self, backend: BackendStream, block: RelayedBlock | None) -> None:
        """The engine has ended the stream with a status; None where there was no stream, and all messages have an
        answer."""
        self._backends.pop(backend.target, None)
        self.responses.ended(backend)
        if block is None:
            self._succeed_if_done()
        elif self._num_backends == 1 and not self._requests.wait:  # it was the engine's stream in all but name
            self._succeed(block)
        elif block.status != OK or not self._has_ended:
            error = GatewayError(ErrorKind.UPSTREAM_RESET, block.message or "the engine ended the stream")
            self._fail(error, code=block.status or None, is_counted=True)
        else:
            self._succeed_if_done()

    def _answer_error(
        self, target: CallTarget | None, error: GatewayError, names: Names, code: int | None = None
    ) -> None:
        if self._head.plan.wants_grpc_errors:
            self._fail(error, code=code, is_counted=True)
            return
        model = (target.model if target is not None else None) or names.model
        self.responses.answered_by_us(target, model, names.id, error_response(error.message, names.id))

    # Ends

    def _succeed_if_done(self) -> None:
        if self._has_ended and not self._backends and not self._requests.wait and not self._is_over:
            self._succeed(None)

    def _succeed(self, block: RelayedBlock | None) -> None:
        code = block.status if block is not None and block.status is not None else OK
        self._log(http_status(code), "", code)
        self.responses.end(block)
        self._close("")
        self._client.call_ended(self._stream)

    def _fail(self, error: GatewayError, *, code: int | None = None, is_counted: bool = False) -> None:
        """End the stream; each backend counts the error where it is not counted yet."""
        if self._is_over:
            return
        status, reason = error.status.http, error.kind.value
        if not is_counted and not self._backends:
            self.plane.metrics.unrouted.count_error(reason)
            self.plane.metrics.unrouted.count_failure(status, monotonic() - self._started_at)
        self._log(status, reason, error.status.grpc if code is None else code)
        route_target = next(iter(self._backends)).route_target if self._backends else None
        self._close("" if is_counted else reason, status)
        begun = self.responses.has_begun
        self._client.call_failed(self._stream, error, self.request_id, route_target, begun=begun, code=code)
        self._client.call_ended(self._stream)

    def _close(self, reason: str, status: int = 0) -> None:
        self._leave()
        while self._backends:
            self._backends.popitem()[1].cancel(reason, status)
        self._requests.forget()
        self.responses.forget()
        if self.trace is not None:
            self.plane.request_log.release(self.trace)

    def attempts_ended(self, attempts: UpstreamAttempts[Stream], reason: str) -> None:
        """A backend's are over; the logs report them with the call."""
        trace, now = self.trace, monotonic()
        if trace is not None:
            line, spec = self._head.plan.request_line, attempts.route_target.spec
            seconds = now - attempts.started_at
            ended = EndedRequest(
                "", line, 0, reason, seconds, target=spec, trace=trace, attempts=attempts, sent_by_rpc=True
            )
            trace.add(attempt_spans(ended, trace, now))

    def _log(self, status: int, reason: str, code: int) -> None:
        if self.plane.request_log.is_on:
            target, names, head = self._router.first, self._router.names, self._head
            route_target = target.route_target if target is not None else None
            facts = DecisionFacts(head.plan.facts(names, units=head.units), head.session) if names is not None else None
            log_call(
                self._client,
                head,
                status,
                reason,
                self._started_at,
                self.request_id,
                facts=facts,
                route_target=route_target,
                trace=self.trace,
                code=code,
            )

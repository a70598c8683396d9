"""One REST request that an engine answers as it is: sent, and its reply relayed as it comes.

    body -> UpstreamAttempts: limits, endpoint, connection -> sent -> reply relayed -> ended

All of it happens in callbacks, without a task, a future or a lock. A request ends once: by its reply (`_finish`), by an
error (`attempts_failed`), or because its client is gone (`client_gone`).
"""

from __future__ import annotations

from time import monotonic

from gateway.dataplane.attempts.front import Attempt, Hedge, HedgedRequest
from gateway.dataplane.attempts.model_refusal import hold_refusal, is_turned_away
from gateway.dataplane.attempts.trace_fields import lines_with_trace
from gateway.dataplane.attempts.upstream_attempts import UpstreamAttempts
from gateway.dataplane.attempts.upstream_handler import UpstreamHandler
from gateway.dataplane.context.active_requests import Progress, progress_of
from gateway.dataplane.context.ended_request import NOTHING
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.local_handler import log_request
from gateway.dataplane.context.local_replies import error_event
from gateway.dataplane.context.outcome import ENERGY_FIELD, GenerationUsage, count_energy
from gateway.dataplane.context.request_body import RequestBody
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.context.snapshot import Snapshot
from gateway.dataplane.rest.exchange_hedge import ExchangeHedge
from gateway.dataplane.rest.generation_reader import GenerationReader
from gateway.limits.limit import expected_tokens
from gateway.net.http1_client import Http1ClientConnection, ReplyReceiver
from gateway.observability.arms import Meter
from gateway.protocol.advertised_models import ModelName
from gateway.protocol.engine_load import read_orca
from gateway.protocol.errors import GatewayError
from gateway.protocol.llm.canonical import TokenUsage
from gateway.protocol.llm.request_facts import prompt_of_json
from gateway.protocol.operations import INFERENCE_OPERATIONS, OF_V2
from gateway.protocol.region_names import names_region
from gateway.protocol.request_urgency import Urgency, urgency_of
from gateway.protocol.sequence import AnySession
from gateway.routing.decision import Facts
from gateway.sessions.sequence_log import FIELDS_OF_BODIES, Input, InputProtocol
from gateway.upstream.engine import Engine
from gateway.wire.http1.head import ResponseHead

# Up to here, one copy of the body into one write is cheaper than a write of two pieces.
_JOIN_BYTES = 16 * 1024

_SAFE_METHODS = frozenset({"GET", "HEAD"})


class Exchange(UpstreamHandler):
    """A request for the engine of one target, from its head to the end of its reply.

    A generation is read on its way by a `GenerationReader`, and may be requested again until the client has read a
    token: it leaves nothing behind.
    """

    __slots__ = (
        *("_active_at", "_attempt", "_body", "_client", "_generation", "_is_event_stream", "_is_relayed"),
        *("_plan", "_request", "_request_id", "_response_bytes", "_swept_bytes", "_waits_for_engine"),
        "attempts",
    )

    _attempt: Attempt[Http1ClientConnection]  # set by `start_attempt`, before anything of a reply can come

    def __init__(
        self,
        client: Client,
        request: Request,
        route_target: RouteTarget,
        session: AnySession | None,
        *,
        is_generation: bool = False,
        attempts_type: type[UpstreamAttempts[Http1ClientConnection]] = UpstreamAttempts,
    ) -> None:
        plane, plan, now = client.plane, request.plan, monotonic()
        self._client = client
        self._plan = plan
        self._request = request
        self._request_id = request.id or plane.new_request_id()
        self._body = RequestBody(request, plane.settings.limits.retry_body_bytes)
        self.attempts = attempts_type(plane, self, route_target, session, now)
        if plan.wants_timing:
            self._request = request = request.timed(now)
            self.attempts.timing = request.timing
        self._generation: GenerationReader | None = None
        if is_generation:
            takes_payload = client.takes_payload or plan.head.is_http_10
            self._generation = GenerationReader(self, self.attempts, plan.call.api, takes_payload=takes_payload)
        self._waits_for_engine = False  # to read more of the body
        # The reply
        self._active_at = 0.0
        self._response_bytes = 0
        self._swept_bytes = 0
        self._is_event_stream = False
        self._is_relayed = not plan.without_body  # byte for byte; else it is framed here, or left out

    @property
    def begun(self) -> bool:
        return bool(self.attempts.status)

    # Events of the client's connection

    def body_received(self, data: bytes, ended: bool) -> None:
        attempts = self.attempts
        attempt = attempts.attempt
        if attempt is not None and attempt.sent_on is not None:
            attempt.sent_on.send(self._body.pass_on(data, ended))
            attempt.sent_on.request_is_sent = ended
            return
        self._body.add(data, ended)
        if not attempts.is_started:
            if ended or not self._waits_for_body():
                attempts.start(attempts.started_at if self._body.size == len(data) else monotonic())
        elif self._body.size > self._client.plane.settings.limits.high_water_bytes:
            self._client.pause_body()  # until there is a connection to send it on

    def _waits_for_body(self) -> bool:
        """Whether a short body is held until it is whole: clients that send slowly hold no engine's connections. A
        client that waits for leave to send gets it once there is a connection."""
        length, client = self._request.length, self._client
        if length is None or self._body.size >= length > 0 or self._plan.head.expects_continue:
            return False
        if length > client.plane.settings.limits.retry_body_bytes:
            return False
        client.hold_body()
        return True

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        was_open, noticed_at = self.attempts.is_open, monotonic()
        self.attempts.abandon(reason, status)
        self._log(self.attempts.status, reason)
        if self._generation is not None:
            self._generation.stopped(noticed_at, was_open=was_open)

    def client_paused(self) -> None:
        attempt = self.attempts.attempt
        if attempt is not None and attempt.sent_on is not None and not self._reads_ahead(attempt.sent_on):
            attempt.sent_on.pause_reply()

    def _reads_ahead(self, connection: Http1ClientConnection) -> bool:
        """Whether the rest of a short reply is read before its client takes it, so that it holds no connection."""
        size = connection.remaining
        limits = self._client.plane.settings.limits
        return size is not None and size <= limits.read_ahead_bytes and self._client.read_ahead(size)

    def client_resumed(self) -> None:
        self._active_at = monotonic()  # the client was silent, not the engine
        attempt = self.attempts.attempt
        if attempt is not None and attempt.sent_on is not None:
            attempt.sent_on.resume_reply()

    def sweep(self, now: float) -> None:
        """Fail where the engine has fallen silent in the middle of its reply."""
        if not self.attempts.status or self._client.is_paused:
            return
        if self._response_bytes != self._swept_bytes:
            self._swept_bytes, self._active_at = self._response_bytes, now
        else:
            self.attempts.check_silence(self._active_at, now)

    def progress(self) -> Progress:
        attempts = self.attempts
        stage, since = attempts.stage(), attempts.started_at
        return progress_of(
            self._request, stage, since, id=self._request_id, route_target=attempts.route_target, endpoint=attempts.url
        )

    # Sending

    def start_attempt(self, attempt: Attempt[Http1ClientConnection], now: float) -> None:
        self._attempt = attempt
        pool, shared = attempt.endpoint.pool, self._client.shared_connection
        assert pool is not None
        connection = pool.acquire(self, now) if shared is None else pool.acquire_shared(shared, self, now)
        if connection is not None:
            self._send(connection, now)
        elif self.attempts.timing is not None:
            self.attempts.timing.requested_at = now

    def connected(self, connection: Http1ClientConnection) -> None:
        self._send(connection, monotonic())

    def connect_failed(self, error: GatewayError) -> None:
        self.attempts.failed(error, was_sent=False)

    def cancel_attempt(self, attempt: Attempt[Http1ClientConnection]) -> None:
        connection, attempt.sent_on = attempt.sent_on, None
        if connection is not None:
            connection.abandon()
        elif attempt.endpoint.pool is not None:
            attempt.endpoint.pool.forget(self)

    def _send(self, connection: Http1ClientConnection, now: float) -> None:
        plan, body, client, request, attempt = self._plan, self._body, self._client, self._request, self._attempt
        route_target = self.attempts.route_target
        engine = route_target.engine
        leads = plan if route_target is plan.route_target else plan.leading(route_target)
        attempt.sent_on = connection
        attempt.sent_at = now
        connection.begin(self._generation or self, wants_payload=client.takes_payload or plan.head.is_http_10)
        connection.request_is_sent = body.is_complete
        self._waits_for_engine = False
        lines = request.lines_without(engine.extra_names) if engine.extra_names else request.lines
        trace = client.trace
        if trace is not None and trace.is_sampled:
            lines = lines_with_trace(trace, attempt, engine, lines)
        if engine.overrides_gateway_fields:
            head = self._overridden_head(engine, leads.opening + attempt.endpoint.host_line + leads.lines, lines)
        else:
            head = b"".join(
                (
                    leads.opening,
                    attempt.endpoint.host_line,
                    leads.lines,
                    lines,
                    client.forwarded_for_line,
                    b"" if plan.keeps_forwarded_proto else client.forwarded_proto_line,
                    engine.extra_lines,
                    body.framing_line,
                    b"x-request-id: ",
                    self._request_id,
                    b"\r\n\r\n",
                )
            )
        if not body.is_complete:
            client.expect_body()
            client.resume_body()  # it may be paused, since there was no connection to send it on
        replay = self.attempts.replay
        keeps = (  # only what may run twice is ever sent again
            replay is not None
            or self._generation is not None
            or engine.keeps_bodies
            or not body.size
            or client.plane.request_log.keeps_bodies
        )
        if replay is not None:
            body.keep_up_to(replay.max_bytes)
        if body.size <= _JOIN_BYTES:
            connection.send(head + body.take(keeps=keeps))
        else:
            connection.send_all([head, body.take(keeps=keeps)])

    def _overridden_head(self, engine: Engine, beginning: bytes, lines: bytes) -> bytes:
        """The head without those of the gateway's own fields that the engine declares; `lines` are the request's."""
        client, names = self._client, engine.extra_names
        pieces = [beginning, lines]
        if b"x-forwarded-for" not in names:
            pieces.append(client.forwarded_for_line)
        if b"x-forwarded-proto" not in names and not self._plan.keeps_forwarded_proto:
            pieces.append(client.forwarded_proto_line)
        pieces += (engine.extra_lines, self._body.framing_line)
        if b"x-request-id" not in names:
            pieces.append(b"x-request-id: %b\r\n" % self._request_id)
        return b"".join([*pieces, b"\r\n"])

    def sending_paused(self) -> None:
        self._waits_for_engine = True
        self._client.pause_body()

    def sending_resumed(self) -> None:
        self._waits_for_engine = False
        self._client.resume_body()

    # The reply

    def reply_started(self, head: ResponseHead, data: bytes, ended: bool) -> None:
        now = monotonic()
        attempts, attempt, plan, client = self.attempts, self._attempt, self._plan, self._client
        route_target = attempts.route_target
        if ended:
            attempt.sent_on = None  # the connection is back in its pool
        if head.status >= 400 and self._is_turned_away(head, data, ended):
            return
        attempts.reply_began(attempt, head.status, now)
        self._active_at = now
        self._response_bytes = len(data)
        if route_target.engine.spec.load.source == "orca":
            report = head.value(ENERGY_FIELD)
            load = read_orca(report) if report is not None else None
            if load is not None:
                attempt.endpoint.observe_load(load)
        if route_target.meter is not None and plan.is_inference:
            count_energy(route_target.meter, head.value(ENERGY_FIELD))
        if head.length is None:
            if (head.value(b"content-type") or b"").startswith(b"text/event-stream"):
                self._is_event_stream = True
                client.write_at_once()
            if head.ends_at_close:
                self._is_relayed = False
        added = attempts.timing_fields(now) if plan.wants_timing else ()
        client.relay(head, route_target, added, self._request_id, b"" if plan.without_body else data)
        if ended:
            if attempt.is_open:
                self._finish(now)
        elif client.is_paused:  # it has been since before this attempt
            self.client_paused()

    def _is_turned_away(self, head: ResponseHead, data: bytes, ended: bool) -> bool:
        """Whether another endpoint gets the request, or may once the refusal is whole."""
        attempts = self.attempts
        if attempts.gives_way(head.status):
            return True
        if not ended:
            return hold_refusal(attempts, self._generation or self, head, data)
        if attempts.replay is not None and attempts.sequence_forgotten(data):
            return True
        return is_turned_away(attempts, head.status, data)

    def reply_continued(self, data: bytes, ended: bool) -> None:
        self._response_bytes += len(data)
        if ended:
            self._attempt.sent_on = None
        if self._is_relayed:
            self._client.write(data)
        elif not self._plan.without_body:
            self._client.write_piece(data, ended)
        if ended and self._attempt.is_open:  # writing may have reported that the client is gone
            self._finish(monotonic())

    def reply_failed(self, error: GatewayError) -> None:
        self._attempt.sent_on = None
        self.attempts.failed(error, was_sent=True)

    def _finish(self, now: float) -> None:
        attempts, attempt, size = self.attempts, self._attempt, self._body.size
        meter, status = attempts.route_target.meter, attempts.status
        if self._generation is not None:
            self._generation.finish(now)
        if attempts.replay is not None:
            attempts.replay.keep_input(is_good=200 <= status < 300)
        is_good = not attempt.endpoint.counts_as_failure(status)
        attempts.answered(attempt, size, self._response_bytes, now, is_good=is_good)
        if meter is not None and self._plan.is_inference:
            meter.answered(self._plan.rater + self._request_id, status, size, now - attempts.started_at)
        log = self._client.plane.request_log
        if log.is_on and (log.takes_all or log.takes(status, now - attempts.started_at, attempts, self._client.trace)):
            self._log(status, "")
        self._client.reply_ended()

    def attempts_failed(self, error: GatewayError, status: int) -> None:
        attempts, client = self.attempts, self._client
        self._log(status, error.kind.value)
        if self._generation is not None:
            self._generation.leave()
        if not attempts.status:
            fields = [*attempts.route_target.reply_fields, *attempts.timing_fields(monotonic())]
            attempts.status = status
            client.refuse(error, [*fields, (b"x-request-id", self._request_id)])
            return
        has_event = self._is_event_stream and not self._plan.without_body
        client.break_off(error_event(error, self._plan.api) if has_event else b"")

    def _log(self, status: int, reason: str) -> None:
        attempts, client, request = self.attempts, self._client, self._request
        if client.plane.request_log.is_on:
            log_request(
                client,
                request,
                status,
                reason,
                attempts.started_at,
                self._request_id,
                route_target=attempts.route_target,
                endpoint=attempts.url,
                body=self._body,
                attempts=attempts,
                generated=self._generation.outcome if self._generation is not None else NOTHING,
                response_bytes=self._response_bytes,
            )

    # See `AttemptFront`

    def is_replayable(self) -> bool:
        return self._body.can_be_sent_again

    def is_idempotent(self, declared: str) -> bool:
        plan = self._plan
        if self._generation is not None or plan.head.method in _SAFE_METHODS:
            return True
        return (
            declared == "infer" and plan.call.operation in INFERENCE_OPERATIONS and not self._body.may_name_a_sequence
        )

    def may_hedge(self) -> bool:
        body = self._body
        if not (body.is_complete and body.can_be_sent_again and self.is_idempotent("infer")):
            return False
        return not names_region(body.held())

    def hedge(self, attempts: HedgedRequest, attempt: Attempt[Http1ClientConnection]) -> Hedge:
        return ExchangeHedge(self, attempts, attempt)

    def send_hedge(self, attempt: Attempt[Http1ClientConnection], receiver: ReplyReceiver) -> None:
        first, self._attempt = self._attempt, attempt
        connection = attempt.sent_on
        assert connection is not None
        self._send(connection, attempt.sent_at)
        connection.receiver = receiver
        self._attempt = first

    def go_on_with(self, attempt: Attempt[Http1ClientConnection]) -> None:
        self._attempt = attempt

    def waits_for_client(self) -> bool:
        attempt = self.attempts.attempt
        is_sent = attempt is not None and attempt.sent_on is not None
        return is_sent and not self._body.is_complete and not self._waits_for_engine

    def sequence_input(self) -> Input | None:
        body, plan, route_target = self._body, self._plan, self.attempts.route_target
        if not (body.is_complete and body.can_be_sent_again):
            return None
        opening = plan.opening if route_target is plan.route_target else plan.leading(route_target).opening
        fields = [field for field in (*plan.head.fields, *self._request.fields) if field[0] in FIELDS_OF_BODIES]
        return Input(InputProtocol.REST, opening.split(b" ")[1], tuple(fields), body.held())

    def field(self, name: bytes) -> bytes | None:
        return self._request.value(name)

    def prompt(self) -> memoryview | None:
        return prompt_of_json(self._body.held()) if self._body.is_complete else None

    def urgency(self) -> Urgency:
        api = self._plan.call.api
        return urgency_of(self._body.held(), is_v2=api is None or api in OF_V2)

    def expected_tokens(self) -> int:
        if self._generation is None:
            return 0
        return expected_tokens(self._body.held(), max(self._request.length or 0, self._body.size))

    def used_tokens(self, expected: int) -> int:
        if self._generation is None or self.attempts.status != 200:
            return 0
        return self._generation.used_tokens(self._body.size, expected)

    def usage(self) -> TokenUsage | None:
        if self._generation is None or self.attempts.status != 200:
            return None
        return self._generation.usage(self._body)

    def model(self) -> ModelName | None:
        call = self._plan.call
        return (call.model, call.version or "") if call.model else None

    def facts(self) -> tuple[Snapshot, Facts]:
        return self._plan.snapshot, self._plan.facts

    def generated(self) -> GenerationUsage | None:
        if self._generation is None or self.attempts.status != 200:
            return None
        return GenerationUsage(self._generation.used, self._generation.first_token_at, monotonic())

    @property
    def is_inference(self) -> bool:
        return self._plan.is_inference

    def count_failed(self, meter: Meter, error: GatewayError) -> None:
        meter.failed(self._plan.rater + self._request_id, error.kind, error.status.http >= 500, self._body.size)

"""One request on its way: decided, sent to an endpoint, answered as the reply comes.

    deciding -> waiting for a connection -> waiting for the reply -> relaying it -> ended
                         ^                            |
                         +------- another try --------+

Everything here happens in callbacks: no task, no future, no lock. However a request ends, it ends in `_finish`
(answered), `_fail` (answered by us) or `client_gone`; see `Tries` for what stands between.
"""

from __future__ import annotations

from time import monotonic

from gateway.dataplane.attempts.sequence_replay import sequence_forgotten
from gateway.dataplane.attempts.timed_tries import TimedTries
from gateway.dataplane.context.active_request import Progress, of_request
from gateway.dataplane.context.decision_log import known_of
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.local_replies import event_told
from gateway.dataplane.context.outcome import ENERGY_FIELD, count_energy
from gateway.dataplane.context.prepared_head import no_route
from gateway.dataplane.context.request_body import RequestBody, decide
from gateway.dataplane.context.snapshot import Lane
from gateway.net.http1_client import Http1ClientConnection
from gateway.protocol.engine_load import read_orca
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.request_facts import prompt_of_json
from gateway.protocol.operations import INFERENCE_OPERATIONS
from gateway.routing.decision import Decision, Undecided
from gateway.sessions.sequence_log import Input, Sent
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.engine import Engine
from gateway.wire.http1.head import ResponseHead

# Up to here, one copy of the body into one write is cheaper than a write of two pieces.
_JOIN_BYTES = 16 * 1024

# The fields without which an engine cannot read a body.
_OF_BODIES = frozenset({b"content-type", b"content-encoding", b"inference-header-content-length"})

_SAFE_METHODS = frozenset({"GET", "HEAD"})


def observe_orca(endpoint: Endpoint, head: ResponseHead) -> None:
    """Take over what a reply says of its engine's load."""
    told = head.value(b"endpoint-load-metrics")
    load = read_orca(told) if told is not None else None
    if load is not None:
        endpoint.observe_load(load)


class Exchange(TimedTries):
    """A request that the rules send to an engine, from its head to the end of its reply."""

    __slots__ = (
        "_active_at",
        "_body",
        "_client",
        "_connection",
        "_first_byte_at",
        "_is_event_stream",
        "_is_relayed",
        "_plan",
        "_request_id",
        "_response_bytes",
        "_swept_bytes",
        "_waits_for_engine",
    )

    def __init__(self, client: Client, request: Request, decided: tuple[Lane, str | None] | None = None) -> None:
        """`decided` are the lane and the session where somebody has asked the rules already."""
        plane = client.plane
        plan = request.plan
        lane, session = decided or (plan.lane, None)
        TimedTries.__init__(self, plane, lane, session)  # `super()` would be an object more for each request
        self._client = client
        self._request = request
        self._plan = plan
        self._body = RequestBody(request, plane.settings.limits.retry_body_bytes)
        self._request_id = request.id or plane.new_request_id()
        # The try under way
        self._connection: Http1ClientConnection | None = None
        self._waits_for_engine = False  # to read more of the body
        # The reply
        self._first_byte_at = 0.0
        self._active_at = 0.0
        self._response_bytes = 0
        self._swept_bytes = 0
        self._is_event_stream = False
        self._is_relayed = not plan.without_body  # byte for byte; else the client frames it, or gets no body

    def __repr__(self) -> str:
        return f"<Exchange {self._plan!r} at {self._endpoint!r}>"

    @property
    def begun(self) -> bool:
        return bool(self._status)

    # What the client's connection tells it

    def body_received(self, data: bytes, ended: bool) -> None:
        """More of the request's body; the first call comes with the head, and may bring nothing."""
        connection = self._connection
        if connection is not None:
            connection.send(self._body.pass_on(data, ended))
            connection.request_is_sent = ended
            return
        self._body.add(data, ended)
        if self._lane is None:
            self._decide()
        elif not self._attempts and (self._grant is None or not self._grant.is_waiting):
            self._try(self._started_at)
        elif self._body.size > self._client.plane.settings.limits.high_water_bytes:
            self._client.pause_body()  # until there is a connection to send it on

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        """Nobody waits for the reply any more: the engine is told at once."""
        self._drop_try()
        if self._is_trying:
            self._leave(None)
        self._settle_input()
        series = self._counters()
        series.count_error(reason)
        if status and not self._status:
            self._status = status
            series.count_failure(status, monotonic() - self._started_at)
        meter = self._meter
        if meter is not None:
            meter.kept_out(reason)
        self._log(reason)

    def client_paused(self) -> None:
        if self._connection is not None:
            self._connection.pause_reply()

    def client_resumed(self) -> None:
        self._active_at = monotonic()  # the silence was ours
        if self._connection is not None:
            self._connection.resume_reply()

    def sweep(self, now: float) -> None:
        """Called about once a second: has the engine fallen silent in the middle of its reply?"""
        if not self._status or self._lane is None or self._client.is_paused:
            return
        if self._response_bytes != self._swept_bytes:
            self._swept_bytes, self._active_at = self._response_bytes, now
            return
        limit = self._lane.engine.spec.idle_timeout
        if limit and now - self._active_at > limit:
            self._drop_try()
            silence = GatewayError(ErrorKind.DEADLINE, f"the engine sent nothing for {limit:g} s")
            self._try_failed(silence, was_sent=True)

    def progress(self) -> Progress:
        stage, lane = self._stage(), self._lane
        return of_request(self._request, stage, self._started_at, id=self._request_id, lane=lane, endpoint=self.url)

    # Deciding

    def _decide(self) -> None:
        try:
            decision = decide(self._plan, self._body, self._client.plane.settings.limits.max_body_bytes)
        except GatewayError as error:
            self._fail(error)
            return
        if decision is Undecided.NEEDS_BODY:
            self._client.expect_body()
            return
        if not isinstance(decision, Decision):
            self._fail(no_route(self._plan.facts))
            return
        self._lane = self._plan.snapshot.lane_of(decision)
        self._session = decision.session
        self._try(monotonic())

    # Trying

    def _ask(self, endpoint: Endpoint, now: float) -> None:
        assert endpoint.pool is not None
        connection = endpoint.pool.acquire(self)
        if connection is not None:
            self._send(connection, now)
        elif (timing := self._timing()) is not None:
            timing.asked_at = now

    def connected(self, connection: Http1ClientConnection) -> None:
        """The pool has a connection for us."""
        self._send(connection, monotonic())

    def _send(self, connection: Http1ClientConnection, now: float) -> None:
        plan, lane, body, client, endpoint = self._plan, self._lane, self._body, self._client, self._endpoint
        assert lane is not None and endpoint is not None
        engine = lane.engine
        leads = plan if lane is plan.lane else plan.leading(lane)
        self._connection = connection
        self._sent_at = now
        connection.begin(self, wants_payload=client.takes_payload or plan.head.is_http_10)
        connection.request_is_sent = body.is_complete
        self._waits_for_engine = False
        head = b"".join(
            (
                leads.opening,
                endpoint.host_line,
                leads.lines,
                self._request.lines_without(engine.extra_names) if engine.extra_names else self._request.lines,
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
            client.resume_body()  # it may have been paused while nobody was there to send to
        keeps = self._keeps_its_body(engine)
        if lane.replay is not None and self._is_numbered:
            keeps = True
            body.keep_up_to(lane.replay.max_bytes)
        if body.size <= _JOIN_BYTES:
            connection.send(head + body.take(keeps=keeps))
        else:
            connection.send_all([head, body.take(keeps=keeps)])

    def _prompt(self) -> memoryview | None:
        return prompt_of_json(self._body.held()) if self._body.is_complete else None

    def _keeps_its_body(self, engine: Engine) -> bool:
        """Once sent, only what may run twice is ever sent again."""
        is_again = engine.spec.retry.idempotent == "infer"
        return is_again or not self._body.size or self._client.plane.keeps_bodies

    def sending_paused(self) -> None:
        self._waits_for_engine = True
        self._client.pause_body()

    def sending_resumed(self) -> None:
        self._waits_for_engine = False
        self._client.resume_body()

    # The reply

    def reply_started(self, head: ResponseHead, data: bytes, ended: bool) -> None:
        now = monotonic()
        lane, endpoint, client = self._lane, self._endpoint, self._client
        assert lane is not None and endpoint is not None
        if ended:
            self._connection = None  # it serves somebody else by now
            if lane.replay is not None and head.status >= 400 and self._is_forgotten(data):
                self._try_failed(sequence_forgotten(), was_sent=True, is_good=None)
                return
        if self._slot is not None:
            self._slot.discard(self)
            self._slot = None
        self._first_byte_at = self._active_at = now
        self._status = head.status
        self._response_bytes = len(data)
        endpoint.observe_latency(now - self._sent_at)
        if lane.engine.spec.load.source == "orca":
            observe_orca(endpoint, head)
        if lane.meter is not None and self._plan.is_inference:
            count_energy(lane.meter, head.value(ENERGY_FIELD))
        plan = self._plan
        if head.length is None:
            if (head.value(b"content-type") or b"").startswith(b"text/event-stream"):
                self._is_event_stream = True
                client.write_at_once()
            if head.ends_at_close:
                self._is_relayed = False
        added = self._timing_fields(now) if plan.tells_timing else ()
        client.relay(head, lane, added, self._request_id, b"" if plan.without_body else data)
        if not ended and client.is_paused and self._connection is not None:  # it has been since before this try
            self._connection.pause_reply()
        if ended and self._is_trying:
            self._finish(now)

    def reply_continued(self, data: bytes, ended: bool) -> None:
        self._response_bytes += len(data)
        if ended:
            self._connection = None
        if self._is_relayed:
            self._client.write(data)
        elif not self._plan.without_body:
            self._client.write_piece(data, ended)
        if ended and self._is_trying:  # unless the client had enough of what it has just read
            self._finish(monotonic())

    def reply_failed(self, error: GatewayError) -> None:
        self._connection = None
        self._try_failed(error, was_sent=True)

    # Limits

    def field(self, name: bytes) -> bytes | None:
        return self._request.value(name)

    @property
    def _is_inference(self) -> bool:
        return self._plan.is_inference

    # Ends

    @property
    def _was_sent(self) -> bool:
        return self._connection is not None

    def _waits_for_client(self) -> bool:
        return self._was_sent and not self._body.is_complete and not self._waits_for_engine

    def _can_be_sent_again(self) -> bool:
        return self._body.can_be_sent_again

    def _is_idempotent(self, declared: str) -> bool:
        plan = self._plan
        if plan.head.method in _SAFE_METHODS:
            return True
        return (
            declared == "infer" and plan.call.operation in INFERENCE_OPERATIONS and not self._body.may_name_a_sequence
        )

    def _input(self) -> Input | None:
        body, plan, lane = self._body, self._plan, self._lane
        assert lane is not None
        if not (body.is_complete and body.can_be_sent_again):
            return None
        opening = plan.opening if lane is plan.lane else plan.leading(lane).opening
        fields = [field for field in (*plan.head.fields, *self._request.volatile) if field[0] in _OF_BODIES]
        return Input(Sent.REST, opening.split(b" ")[1], tuple(fields), body.held())

    def _abandon(self) -> None:
        if self._connection is not None:
            self._connection.abandon()
            self._connection = None
        elif self._is_trying and self._endpoint is not None and self._endpoint.pool is not None:
            self._endpoint.pool.forget(self)

    def _finish(self, now: float) -> None:
        """The reply is whole."""
        series, endpoint, lane = self._series, self._endpoint, self._lane
        assert series is not None and endpoint is not None and lane is not None
        self._leave(not endpoint.counts_as_failure(self._status))
        lane.engine.budget.requests += 1
        if lane.replay is not None:
            self._keep_input(200 <= self._status < 300)
        series.request_bytes += self._body.size
        series.response_bytes += self._response_bytes
        started_at = self._started_at
        series.count(self._status, now - started_at, self._first_byte_at - started_at, now - self._sent_at)
        meter = lane.meter
        if meter is not None and self._plan.is_inference:
            meter.answered(self._request_id, self._status, self._body.size, now - started_at)
        if self._client.plane.tells_ends:
            self._log("")
        self._client.reply_ended()

    def _fail(self, error: GatewayError) -> None:
        """No engine answers this request, or none to the end: the caller is told as clearly as the moment allows."""
        series = self._counters()
        series.count_error(error.kind.value)
        status = self._status or error.status.http
        series.count_failure(status, monotonic() - self._started_at)
        meter = self._meter
        if meter is not None:
            meter.failed(self._request_id, error.kind, error.status.http >= 500, self._body.size)
        self._drop_try()
        self._settle_input()
        told = error.at(self._whereabouts())
        if not self._status:
            self._status = status
            fields = [*(self._lane.reply_fields if self._lane else ()), *self._timing_fields(monotonic())]
            self._log(error.kind.value)
            self._client.refuse(told, [*fields, (b"x-request-id", self._request_id)])
            return
        self._log(error.kind.value)
        is_told = self._is_event_stream and not self._plan.without_body
        self._client.break_off(event_told(told, self._plan.api) if is_told else b"")

    def _log(self, reason: str) -> None:
        plane = self._client.plane
        if plane.tells_ends:
            target = self._lane.target if self._lane is not None else None
            url = self._endpoint.url if self._endpoint is not None else ""
            seconds = monotonic() - self._started_at
            known = known_of(self._request, self._body)
            peer, asked, id = self._client.peer, self._plan.asked, self._request_id
            plane.log(peer, asked, self._status, reason, seconds, id, target, url, known)

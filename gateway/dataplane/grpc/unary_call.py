"""One unary call on its way: decided by its message's names, sent to an endpoint, answered as the reply comes.

Bytes pass through: neither side's messages are decoded. Everything here happens in callbacks, as in `Exchange`.
"""

from __future__ import annotations

from time import monotonic

from gateway.dataplane.attempts.sequence_replay import sequence_forgotten
from gateway.dataplane.context.active_request import Progress
from gateway.dataplane.context.call_head import CallHead, Way
from gateway.dataplane.context.decision_log import Known
from gateway.dataplane.context.prepared_head import no_route
from gateway.dataplane.dispatch.by_http import by_http
from gateway.dataplane.dispatch.model_in_body import Serve
from gateway.dataplane.grpc.call_capture import Witness, witness
from gateway.dataplane.grpc.client import CallClient
from gateway.dataplane.grpc.message_body import CallBody, WholeMessage, whole_message
from gateway.dataplane.grpc.reply_headers import (
    deadline_passed,
    fell_silent,
    relayed,
    request_id_literal,
    tell_error,
    timeout_literal,
)
from gateway.dataplane.grpc.stream_tries import StreamTries
from gateway.dataplane.protocol_bridge.grpc_to_rest import GrpcToRestCall
from gateway.net.http2_client import Http2ClientConnection
from gateway.protocol.body_facts import BodyFacts
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_status import OK, http_status
from gateway.protocol.operations import Operation
from gateway.routing.decision import Undecided
from gateway.sessions.sequence_log import Input, Sent
from gateway.wire.http2.fields import Block
from gateway.wire.http2.stream import Stream


class UnaryCall(StreamTries):
    """A call about one model, relayed to an engine that speaks gRPC. It receives from both its client's stream and the
    engine's."""

    __slots__ = (
        "_active_at",
        "_body",
        "_client",
        "_decided",
        "_first_byte_at",
        "_has_begun",
        "_head",
        "_id_literal",
        "_is_over",
        "_is_recalling",
        "_owed_to_client",
        "_owed_to_engine",
        "_request_id",
        "_response_bytes",
        "_serve",
        "_stream",
        "_swept_bytes",
        "_way",
        "_witness",
    )

    def __init__(
        self,
        client: CallClient,
        stream: Stream,
        head: CallHead,
        decided: tuple[Way, str | None] | None = None,
        serve: Serve = by_http,
    ) -> None:
        """`decided` are the way and the session where somebody has asked the rules already, and knows that the engine
        takes the call as it is. `serve` answers a call that is asked as REST."""
        plane = client.plane
        StreamTries.__init__(self, plane, None, None)  # `super()` would be an object more for each call
        self._client = client
        self._stream = stream
        self._head = head
        self._body: WholeMessage | CallBody | None = None
        self._request_id = head.id or plane.new_request_id()
        self._id_literal = request_id_literal(self._request_id)
        if head.timeout is not None:
            self._expires_at = self._started_at + head.timeout
        self._way: Way | None = None
        self._decided = decided
        self._serve = serve
        self._owed_to_client = 0  # bytes that wait for the engine to take them
        self._owed_to_engine = 0
        self._is_recalling = False  # Redis is asked for its session
        self._has_begun = False  # the reply's first fields are sent
        self._is_over = False  # answered to the end, though the client may have to read it yet
        self._first_byte_at = 0.0
        self._active_at = self._started_at
        self._response_bytes = 0
        self._swept_bytes = 0
        self._witness: Witness | None = None  # of a call that is mirrored

    def __repr__(self) -> str:
        return f"<UnaryCall {self._head.plan!r} at {self._endpoint!r}>"

    # What streams tell it

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        if stream is self._up:
            self._relay_data(data, ended)
        elif stream is self._stream and not self._is_over:
            self._take(data, ended)

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None:
        """The engine's reply begins; `ended`: it is trailers only."""
        if stream is not self._up:
            return
        lane, endpoint = self._lane, self._endpoint
        assert lane is not None and endpoint is not None
        now = monotonic()
        found = relayed(block, lane)
        if found.joules is not None and self._meter is not None:
            self._meter.used_energy(found.joules)
        if ended and lane.replay is not None and found.status != OK and self._is_forgotten(found.message.encode()):
            self._up = None
            self._try_failed(sequence_forgotten(), was_sent=True, is_good=None)
            return
        self._first_byte_at = self._active_at = now
        if self._witness is not None:
            self._witness.began(block)
        endpoint.observe_latency(now - self._sent_at)
        self._has_begun = True
        if ended:
            self._up = None
            self._status = found.http_status if found.status is None else http_status(found.status)
            self._stream.send_headers(found.steady, self._id_literal, ended=True)
            self._finish(now, found.status)
            return
        self._status = found.http_status
        self._stream.send_headers(found.steady, self._id_literal)

    def trailers_received(self, stream: Stream, block: Block) -> None:
        if stream is self._stream:
            if not self._is_over:
                self._take(b"", True)  # gRPC clients send none, but HTTP/2 allows them
            return
        if stream is not self._up:
            return
        assert self._lane is not None
        self._up = None
        found = relayed(block, self._lane)
        if found.joules is not None and self._meter is not None:
            self._meter.used_energy(found.joules)
        if found.status is not None:
            self._status = http_status(found.status)
        self._stream.send_trailers(found.steady)
        self._finish(monotonic(), found.status)

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        if stream is self._stream:
            if not self._is_over:
                self._client_gone()
        elif stream is self._up:
            self._up_was_reset("call", code, why)

    def drained(self, stream: Stream) -> None:
        if stream is self._up:
            if self._owed_to_client:
                owed, self._owed_to_client = self._owed_to_client, 0
                self._stream.credit(owed)
        elif self._is_over:
            self._client.call_ended(stream)
        elif self._up is not None and self._owed_to_engine:
            owed, self._owed_to_engine = self._owed_to_engine, 0
            self._up.credit(owed)

    def sweep(self, now: float) -> None:
        """Called about once a second: has a side fallen silent in the middle?"""
        if self._is_over:
            return
        if (self._body is None or not self._body.is_complete) and self._up is None and not self._is_trying:
            limit = self._plane.settings.limits.body_timeout
            if now - self._active_at > limit:
                self._fail(fell_silent(limit))
        elif self._response_bytes != self._swept_bytes:
            self._swept_bytes, self._active_at = self._response_bytes, now
        elif self._status and self._lane is not None and not self._stream.is_waiting:
            limit = self._lane.engine.spec.idle_timeout
            if limit and now - self._active_at > limit:
                self._drop_try()
                silence = GatewayError(ErrorKind.DEADLINE, f"the engine sent nothing for {limit:g} s")
                self._try_failed(silence, was_sent=True)

    def progress(self) -> Progress | None:
        if self._is_over:
            return None
        names = self._body.names if self._body is not None else None
        model = names.model.decode("utf-8", "replace") if names is not None else ""
        asked, stage = self._head.plan.asked, self._stage()
        return Progress(stage, self._started_at, self._request_id, self._lane, self.url, model, asked)

    def cancel(self, error: GatewayError) -> None:
        if not self._is_over:
            self._refuse(error)

    # The request

    def _take(self, data: bytes, ended: bool) -> None:
        """More of the client's message."""
        up, body = self._up, self._body
        try:
            if body is None:
                limits = self._plane.settings.limits
                if ended:  # mostly, the message comes in one piece
                    body = self._body = whole_message(data, limits.max_body_bytes)
                    if body is not None:
                        self._decide(body)
                        return
                body = self._body = CallBody(
                    self._head.plan.encoding,
                    limit=limits.max_body_bytes,
                    hold_bytes=limits.high_water_bytes,
                    replay_bytes=limits.retry_body_bytes,
                )
            assert isinstance(body, CallBody)
            if up is not None:
                body.pass_on(data, ended)
                up.send_data(data, ended)
                if up.is_waiting:
                    self._owed_to_client += len(data)
                elif not ended:
                    self._stream.credit(len(data))
                return
            body.add(data, ended)
        except GatewayError as error:
            self._refuse(error)
            return
        if self._lane is None:
            if not ended:
                self._active_at = monotonic()
                self._stream.credit(len(data))  # as far as the message's limit, since more is needed to decide
            if body.names is not None and not self._is_recalling:
                self._decide(body)
        else:
            self._owed_to_client += len(data)  # nobody takes it yet

    def _decide(self, body: WholeMessage | CallBody) -> None:
        plan, names = self._head.plan, body.names
        assert names is not None
        decision = self._decided or plan.decide(names, None, self._head)
        if decision is Undecided.NEEDS_BODY:
            facts = body.facts()
            if facts is None:
                return
            try:
                decision = plan.decide(names, facts, self._head)
            except GatewayError as error:
                self._refuse(error)
                return
        if isinstance(decision, Undecided):
            self._refuse(no_route(plan.facts(names)))
            return
        way, session = decision
        if session is None or not way.lane.keeps_session or self._decided:
            self._go(body, way, session)
        else:
            self._recall(body, way, session)

    def _recall(self, body: WholeMessage | CallBody, way: Way, session: str) -> None:
        """Go where the session is; a function of its own, since what a closure holds costs wherever it is used."""
        keeper, plan = self._plane.keeper, self._head.plan
        lane = keeper.recall(way.lane, session)
        if lane is not None:
            self._go(body, plan.way(lane), session)
        else:
            self._is_recalling = True
            keeper.find(way.lane, session, lambda lane: self._recalled(body, plan.way(lane), session))

    def _recalled(self, body: WholeMessage | CallBody, way: Way, session: str) -> None:
        """It is known where the session has it."""
        self._is_recalling = False
        if not self._is_over:
            self._go(body, way, session)

    def _go(self, body: WholeMessage | CallBody, way: Way, session: str | None) -> None:
        if not way.lane.engine.speaks_grpc or (session and self._is_of_conversation(way)):
            self._convert(body, way, session)
            return
        self._way, self._session = way, session
        self._lane = lane = way.lane
        if lane.shadow is not None and self._decided is None and self._is_inference:  # else as a REST request
            self._witness = witness(self._plane.tap, self._head, lane, self._request_id, self._started_at)
        now = self._started_at if body.is_complete else monotonic()
        self._try(now)

    def _is_of_conversation(self, way: Way) -> bool:
        """Whether turns may have to be told with it: only requests in JSON are completed."""
        rpc = self._head.plan.rpc
        is_inference = rpc is not None and rpc.operation is Operation.INFER
        return way.lane.target.history is not None and is_inference and self._decided is None

    def _convert(self, body: WholeMessage | CallBody, way: Way, session: str | None) -> None:
        """Somebody else takes the call from here, as a REST request."""
        stream = self._stream
        stream.receiver = call = GrpcToRestCall(self._client, stream, self._head, (way.lane, session), self._serve)
        call.data_received(stream, body.take(None, keeps=False), body.is_complete)

    def _refuse(self, error: GatewayError) -> None:
        """What the client sent cannot be served."""
        if self._is_trying:
            self._drop_try()
            self._leave(None)
        self._fail(error)

    def _send(self, connection: Http2ClientConnection, now: float) -> None:
        way, body, endpoint, lane = self._way, self._body, self._endpoint, self._lane
        assert way is not None and body is not None and endpoint is not None and lane is not None
        self._sent_at = now
        self._up = up = connection.open_stream(self)
        passing = self._client.passing + self._head.passing + self._id_literal
        if self._expires_at:
            passing += timeout_literal(self._expires_at - now)
        keeps = lane.engine.spec.retry.idempotent == "infer" or self._plane.keeps_bodies
        if lane.replay is not None and self._is_numbered:
            keeps = True
            body.keep_up_to(lane.replay.max_bytes)
        if self._witness is not None:
            keeps = True
            body.keep_up_to(self._witness.max_bytes)
        data = body.take(way.model, keeps=keeps)
        if body.is_complete:
            up.send_whole(way.head(endpoint), passing, data)
        else:
            up.send_headers(way.head(endpoint), passing)
            up.send_data(data)
        if self._owed_to_client and not up.waiting:
            owed, self._owed_to_client = self._owed_to_client, 0
            self._stream.credit(owed)

    # The reply

    def _relay_data(self, data: bytes, ended: bool) -> None:
        size = len(data)
        self._response_bytes += size
        stream = self._stream
        if size:
            stream.send_data(data)
            if self._witness is not None:
                self._witness.answered(data)
        if ended:  # without trailers, and so without a status
            self._up = None
            self._try_failed(
                GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the engine's reply ended without a status"), was_sent=True
            )
        elif stream.waiting:
            self._owed_to_engine += size
        else:
            assert self._up is not None
            self._up.credit(size)

    # Limits

    def field(self, name: bytes) -> bytes | None:
        return self._head.value(name)

    @property
    def _is_inference(self) -> bool:
        rpc = self._head.plan.rpc
        return rpc is not None and rpc.operation is Operation.INFER

    # Ends

    def expired(self) -> None:
        if not self._expires_at or monotonic() < self._expires_at:
            if not self._status:
                super().expired()
            else:  # the first byte came in time: from then on only the client's own limit applies
                self._slot = self._plane.wheel.add(self, self._expires_at) if self._expires_at else None
            return
        self._slot = None
        self._drop_try()
        if self._is_trying:
            self._leave(None)  # the client's patience says nothing of the endpoint
        self._fail(deadline_passed())

    def _waits_for_client(self) -> bool:
        body, up = self._body, self._up
        return up is not None and body is not None and not body.is_complete and not up.is_waiting

    def _prompt(self) -> bytes | None:
        return self._body.prompt if self._body is not None else None

    def _can_be_sent_again(self) -> bool:
        return self._body is not None and self._body.can_be_sent_again

    def _is_idempotent(self, declared: str) -> bool:
        rpc = self._head.plan.rpc
        if rpc is not None and rpc.operation is not Operation.INFER:
            return True  # it only asks
        return declared == "infer" and self._body is not None and not self._body.may_name_a_sequence

    def _input(self) -> Input | None:
        body, way = self._body, self._way
        assert body is not None and way is not None
        if not (body.is_complete and body.can_be_sent_again):
            return None
        return Input(Sent.GRPC, self._head.plan.path, (), body.message(way.model))

    def _client_gone(self) -> None:
        """Nobody waits for the reply any more: the engine is told at once."""
        self._is_over = True
        self._drop_try()
        if self._is_trying:
            self._leave(None)
        self._settle_input()
        if self._witness is not None:
            self._witness.dropped("client_gone")
        self._counters().count_error("client_gone")
        meter = self._meter
        if meter is not None:
            meter.kept_out("client_gone")
        self._log("client_gone")

    def _finish(self, now: float, status: int | None) -> None:
        """The reply is whole."""
        self._is_over = True
        series = self._series
        assert series is not None and self._body is not None
        self._clear_deadline()
        self._answered(status)
        if self._lane is not None and self._lane.replay is not None:
            self._keep_input(status == OK)
        series.request_bytes += self._body.size
        series.response_bytes += self._response_bytes
        started_at = self._started_at
        series.count(self._status, now - started_at, self._first_byte_at - started_at, now - self._sent_at)
        meter = self._meter
        if meter is not None:
            meter.answered_rpc(self._request_id, status, self._body.size, now - started_at)
        if self._plane.tells_ends:
            self._log("")
        self._client.call_ended(self._stream)
        if self._witness is not None:
            self._witness.ended(self._body, status)

    def _fail(self, error: GatewayError) -> None:
        self._is_over = True
        series = self._counters()
        series.count_error(error.kind.value)
        series.count_failure(error.status.http, monotonic() - self._started_at)
        meter = self._meter
        if meter is not None:
            size = self._body.size if self._body is not None else 0
            meter.failed(self._request_id, error.kind, error.status.http >= 500, size)
        self._drop_try()
        self._settle_input()
        self._status = error.status.http
        told = error.at(self._whereabouts())
        tell_error(self._stream, told, self._request_id, self._lane, has_begun=self._has_begun)
        self._log(error.kind.value)
        self._client.call_ended(self._stream)
        if self._witness is not None:
            self._witness.failed(self._body, error)

    def _log(self, reason: str) -> None:
        if self._plane.tells_ends:
            target = self._lane.target if self._lane is not None else None
            url = self._endpoint.url if self._endpoint is not None else ""
            seconds = monotonic() - self._started_at
            peer, asked, id = self._client.peer, self._head.plan.asked, self._request_id
            self._plane.log_call(peer, asked, self._status, reason, seconds, id, target, url, self._known())

    def _known(self) -> Known | None:
        """What the rules knew of it."""
        head, body = self._head, self._body
        if head.plan.told is not None:
            return Known(head.plan.told, head.session)
        if body is None or body.names is None:
            return None
        return Known(head.plan.facts(body.names, units=head.units), head.session, self._facts_in_body)

    def _facts_in_body(self) -> BodyFacts | None:
        body = self._body
        return body.facts() if body is not None and body.is_complete and body.can_be_sent_again else None

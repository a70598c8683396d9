"""A ModelStreamInfer call: each message goes its own model's way, and all responses come back on the one stream.

What comes from the client is read by `StreamRequests`, what goes to it is written by `Responses`; here the messages
meet the engines' streams.
"""

from __future__ import annotations

from time import monotonic

from gateway.dataplane.context.active_request import Progress, Stage
from gateway.dataplane.context.call_head import CallHead, Way
from gateway.dataplane.context.decision_log import Known
from gateway.dataplane.dispatch.by_http import by_http
from gateway.dataplane.dispatch.model_in_body import Serve
from gateway.dataplane.grpc.client import CallClient
from gateway.dataplane.grpc.interfaces import AnyLeg
from gateway.dataplane.grpc.reply_headers import Relayed, deadline_passed, fell_silent, tell_error
from gateway.dataplane.grpc.stream_requests import StreamRequests
from gateway.dataplane.grpc.stream_responses import Responses
from gateway.dataplane.grpc.stream_router import Key, StreamRouter
from gateway.dataplane.grpc.upstream_call import UpstreamCall
from gateway.dataplane.grpc.upstream_stream import UpstreamStream
from gateway.dataplane.protocol_bridge.rest_backend_stream import RestBackendStream
from gateway.net.timer_wheel import Slot
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_status import OK, http_status
from gateway.protocol.infer_message_head import Names, renamed
from gateway.protocol.stream_messages import error_response
from gateway.wire.grpc import PREFIX_BYTES, framed
from gateway.wire.http2.fields import Block
from gateway.wire.http2.stream import Stream


class StreamCall:
    """One client's stream, and an engine's stream for each lane that its messages take.

    What cannot be sent to an engine is answered in its place by an `error_message`, and the stream goes on, unless the
    client asked for `triton_grpc_error`. An engine that breaks off ends the stream.
    """

    __slots__ = (
        "_active_at",
        "_client",
        "_has_ended",
        "_head",
        "_is_over",
        "_legs",
        "_num_legs",
        "_owed",
        "_requests",
        "_serve",
        "_slot",
        "_started_at",
        "_stream",
        "_ways",
        "has_one_request",
        "outgoing",
        "plane",
        "request_id",
        "responses",
    )

    def __init__(
        self,
        client: CallClient,
        stream: Stream,
        head: CallHead,
        decided: tuple[Way, str | None] | None = None,
        key: Key = (b"", b""),
        serve: Serve = by_http,
    ) -> None:
        """`decided` are the way and the session of model `key`, where somebody has asked the rules already, for a call
        of one request that the engine takes as it is. `serve` answers messages that are asked as REST."""
        self.plane = plane = client.plane
        self._client = client
        self._stream = stream
        self._head = head
        self._serve = serve
        self._started_at = self._active_at = monotonic()
        self.request_id = head.id or plane.new_request_id()
        self.outgoing = UpstreamCall(client, head, self.request_id, self._started_at)
        limits = plane.settings.limits
        self._ways = StreamRouter(head, plane.keeper)
        self.has_one_request = decided is not None
        if decided is not None:
            self._ways.keep(key, *decided)
        self._requests = StreamRequests(self, self._ways, head.plan.encoding, limits.max_body_bytes)
        self._legs: dict[Way, AnyLeg] = {}
        self._num_legs = 0  # that there ever were
        self.responses = Responses(stream, self.request_id, self._legs, limits.high_water_bytes)
        self._owed = 0  # bytes of messages that wait for an engine to take them
        self._has_ended = False  # the client sends no more
        self._is_over = False
        self._slot: Slot | None = None
        if self.outgoing.expires_at:
            self._slot = plane.wheel.add(self, self.outgoing.expires_at)

    def __repr__(self) -> str:
        return f"<StreamCall {self._head.plan!r}, {len(self._legs)} legs>"

    # What the client's stream tells it

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None:
        """Never of a client's stream."""

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        if self._is_over:
            return
        try:
            if data:
                self._requests.feed(data)
            if ended and not self._is_over:
                self._has_ended = True
                self._requests.end()
                self._end_legs()
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

    def trailers_received(self, stream: Stream, block: Block) -> None:
        self.data_received(stream, b"", True)  # gRPC clients send none, but HTTP/2 allows them

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        """The client is gone: every engine is told at once."""
        if not self._is_over:
            self._log(499, "client_gone")
            self._close("client_gone")

    def drained(self, stream: Stream) -> None:
        if self._is_over:
            self._client.call_ended(stream)
        else:
            self.responses.drained()

    def sweep(self, now: float) -> None:
        """Called about once a second: has the client fallen silent in the middle of a message?"""
        for leg in list(self._legs.values()):
            leg.sweep(now)
        limit = self.plane.settings.limits.body_timeout
        is_due = not self._requests.is_between_messages and not self._owed  # else the silence is ours
        if is_due and now - self._active_at > limit:
            self._fail(fell_silent(limit))

    def expired(self) -> None:
        self._fail(deadline_passed())

    def progress(self) -> Progress | None:
        if self._is_over:
            return None
        way = self._ways.first
        stage = Stage.ANSWERING if self.responses.has_begun else Stage.ASKING if self._num_legs else Stage.READING
        lane, model = (way.lane, self._ways.first_model) if way is not None else (None, "")
        url = next((leg.url for leg in self._legs.values() if leg.url), "")
        return Progress(stage, self._started_at, self.request_id, lane, url, model, self._head.plan.asked)

    def cancel(self, error: GatewayError) -> None:
        self._fail(error)

    # What its requests tell it

    def take(self, data: bytes, plain: bytes | None, names: Names) -> None:
        """Send a message its way."""
        has_turn = self._requests.have_turns(names)
        try:
            way = self._ways.find(names, data, plain)
            leg = self._legs.get(way)
            if leg is not None:
                leg.charge()
        except GatewayError as error:
            self.plane.metrics.unrouted.count_error(error.kind.value)
            if has_turn:
                self.responses.expect(None, names.model, names.id)
            self._answer_error(None, error, names)
            return
        if way.model is not None:
            data = framed(renamed(data[PREFIX_BYTES:] if plain is None else plain, names, way.model))
        if has_turn:
            self.responses.expect(way, way.model or names.model, names.id)
        if leg is not None:
            leg.send(data, names)
        else:
            self._start_leg(way, data, names)

    def second_model_comes(self, first: Names) -> None:
        self.responses.cut()
        if self._requests.have_turns(first):  # what it still owes stands before all else
            for way, leg in self._legs.items():
                for _ in range(leg.num_unanswered):
                    self.responses.expect(way, way.model or first.model, b"")

    def requests_go_on(self, error: GatewayError | None) -> None:
        if error is not None:
            self._fail(error)
        elif not self._is_over:
            if self._has_ended:
                self._end_legs()
            self._credit_client()

    def _start_leg(self, way: Way, data: bytes, names: Names) -> None:
        session = self._ways.session(way)
        leg: AnyLeg
        lane = way.lane
        if lane.shadow is not None and not self.has_one_request:
            self.plane.tap.drop(lane.target.route, "stream")  # no single answer to compare
        is_apart = (lane.target.history is not None or lane.replay is not None) and not self.has_one_request
        if is_apart or not lane.engine.speaks_grpc:
            leg = RestBackendStream(self, way, session, self._client, self._head, self.request_id, self._serve)
        else:
            leg = UpstreamStream(self, way, session)
        self.responses.join(leg)
        self._legs[way] = leg
        self._num_legs += 1
        leg.send(data, names)
        leg.start()

    def _is_backed_up(self) -> bool:
        if self._requests.wait:
            return True
        for leg in self._legs.values():  # noqa: SIM110 - a generator would cost as much again, for each piece that comes
            if leg.is_backed_up:
                return True
        return False

    def _credit_client(self) -> None:
        if self._owed and not self._is_backed_up():
            owed, self._owed = self._owed, 0
            self._active_at = monotonic()
            self._stream.credit(owed)

    def _end_legs(self) -> None:
        if not self._requests.wait:
            for leg in list(self._legs.values()):
                leg.end()
            self._succeed_if_done()

    # What its legs tell it

    def field(self, name: bytes) -> bytes | None:
        return self._head.value(name)

    def leg_began(self, leg: AnyLeg, found: Relayed) -> None:
        self.responses.began(leg, found)

    def leg_answered(self, leg: AnyLeg, data: bytes) -> None:
        try:
            self.responses.answered(leg, data)
        except GatewayError as error:
            self._fail(GatewayError(ErrorKind.UPSTREAM_PROTOCOL, error.message))

    def leg_drained(self, leg: AnyLeg) -> None:
        self._credit_client()

    def leg_refused(self, leg: AnyLeg, error: GatewayError, unsent: list[Names]) -> None:
        del self._legs[leg.way]
        for names in unsent:
            self._answer_error(leg.way, error, names)
        self._succeed_if_done()
        self._credit_client()

    def leg_failed(self, leg: AnyLeg, text: str, code: int, names: Names) -> None:
        self._answer_error(leg.way, GatewayError(ErrorKind.UPSTREAM_RESET, text), names, code)

    def leg_broke(self, leg: AnyLeg, error: GatewayError) -> None:
        self._legs.pop(leg.way, None)
        self._fail(error, is_counted=True)

    def leg_ended(self, leg: AnyLeg, found: Relayed | None) -> None:
        self._legs.pop(leg.way, None)
        self.responses.left(leg)
        if found is None:
            self._succeed_if_done()
        elif self._num_legs == 1 and not self._requests.wait:  # it was the engine's stream in all but name
            self._succeed(found)
        elif found.status != OK or not self._has_ended:
            error = GatewayError(ErrorKind.UPSTREAM_RESET, found.message or "the engine ended the stream")
            self._fail(error, code=found.status or None, is_counted=True)
        else:
            self._succeed_if_done()

    def _answer_error(self, way: Way | None, error: GatewayError, names: Names, code: int | None = None) -> None:
        """One message has no other answer than this."""
        if self._head.plan.wants_grpc_errors:
            self._fail(error, code=code, is_counted=True)
            return
        model = (way.model if way is not None else None) or names.model
        self.responses.answered_by_us(way, model, names.id, error_response(error.message, names.id))

    # Ends

    def _succeed_if_done(self) -> None:
        if self._has_ended and not self._legs and not self._requests.wait and not self._is_over:
            self._succeed(None)

    def _succeed(self, found: Relayed | None) -> None:
        self._log(http_status(found.status) if found is not None and found.status is not None else 200, "")
        self.responses.end(found)
        self._close("")
        self._client.call_ended(self._stream)

    def _fail(self, error: GatewayError, *, code: int | None = None, is_counted: bool = False) -> None:
        """End the stream; where nobody has counted the error, each leg does."""
        if self._is_over:
            return
        status, reason = error.status.http, error.kind.value
        if not is_counted and not self._legs:
            self.plane.metrics.unrouted.count_error(reason)
            self.plane.metrics.unrouted.count_failure(status, monotonic() - self._started_at)
        self._log(status, reason)
        lane = next(iter(self._legs)).lane if self._legs else None
        self._close("" if is_counted else reason, status)
        tell_error(self._stream, error, self.request_id, lane, has_begun=self.responses.has_begun, code=code)
        self._client.call_ended(self._stream)

    def _close(self, reason: str, status: int = 0) -> None:
        self._is_over = True
        if self._slot is not None:
            self._slot.discard(self)
        while self._legs:
            self._legs.popitem()[1].cancel(reason, status)
        self._requests.forget()
        self.responses.forget()

    def _log(self, status: int, reason: str) -> None:
        if self.plane.tells_ends:
            way, plan = self._ways.first, self._head.plan
            target = way.lane.target if way is not None else None
            seconds = monotonic() - self._started_at
            names = self._ways.names
            known = Known(plan.facts(names, units=self._head.units), self._head.session) if names is not None else None
            self.plane.log_call(
                self._client.peer, plan.asked, status, reason, seconds, self.request_id, target, known=known
            )

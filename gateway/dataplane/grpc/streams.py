"""A ModelStreamInfer call: each message goes its own model's way, and all responses come back on the one stream.

While one model has all the messages, responses pass through uncut. With the second model they are placed one by one
(`ResponseOrder`), for which the gateway asks the engines whether these models are decoupled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic

from gateway.dataplane.bridging.metadata import is_decoupled
from gateway.dataplane.bridging.rest_leg import RestLeg
from gateway.dataplane.grpc.client import CallClient
from gateway.dataplane.grpc.legs import AnyLeg, Leg
from gateway.dataplane.grpc.order import ResponseOrder
from gateway.dataplane.grpc.outgoing import Outgoing
from gateway.dataplane.grpc.plan import CallHead, Way
from gateway.dataplane.grpc.replies import OPENING, TRAILERS_OK, Relayed, request_id_literal, tell_error
from gateway.dataplane.plan import no_route
from gateway.dataplane.wheel import Slot
from gateway.protocol.conversion.control import RpcError
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_status import OK, http_status
from gateway.protocol.message_head import Names, facts_or_none, read_names, renamed
from gateway.protocol.stream_messages import error_response, response_names
from gateway.routing.decision import Undecided
from gateway.wire.grpc import PREFIX, PREFIX_BYTES, MessageReader, decompress, framed
from gateway.wire.http2.fields import Block
from gateway.wire.http2.hpack import Steady
from gateway.wire.http2.stream import Stream

Key = tuple[bytes, bytes]  # a model and its version, as the client names them


class StreamCall:
    """One client's stream, and an engine's stream for each lane that its messages take.

    A model's messages all go the way that the first of them was sent, so that a sequence stays on its endpoint; only
    where the rules ask for what is in a message, each is decided by its own. What cannot be sent to an engine is
    answered in its place by an `error_message`, and the stream goes on, unless the client asked for
    `triton_grpc_error`. An engine that breaks off ends the stream.
    """

    __slots__ = (
        "_active_at",
        "_client",
        "_decoupled",
        "_has_begun",
        "_has_ended",
        "_head",
        "_is_over",
        "_key",
        "_later",
        "_legs",
        "_lookup",
        "_num_legs",
        "_order",
        "_owed",
        "_queue",
        "_reader",
        "_request_id",
        "_sessions",
        "_slot",
        "_started_at",
        "_stream",
        "_ways",
        "outgoing",
        "plane",
    )

    def __init__(
        self,
        client: CallClient,
        stream: Stream,
        head: CallHead,
        decided: tuple[Way, str | None] | None = None,
        key: Key = (b"", b""),
    ) -> None:
        """`decided` are the way and the session of model `key`, where somebody has asked the rules already."""
        self.plane = plane = client.plane
        self._client = client
        self._stream = stream
        self._head = head
        self._started_at = self._active_at = monotonic()
        self._request_id = head.id or plane.new_request_id()
        self.outgoing = Outgoing(client, head, self._request_id, self._started_at)
        self._reader = MessageReader(plane.settings.limits.max_body_bytes)
        self._ways: dict[Key, Way] = {}
        self._sessions: dict[Way, str | None] = {}
        self._legs: dict[Way, AnyLeg] = {}
        self._num_legs = 0  # that there ever were
        self._owed = 0  # bytes of messages that wait for an engine to take them
        self._has_begun = False  # the reply's first fields are sent
        self._has_ended = False  # the client sends no more
        self._is_over = False
        self._later: list[bytes] = []  # responses of ours, for when the engine's is whole
        # With the second model
        self._key: Key | None = None  # the one that has all messages so far
        self._order: ResponseOrder | None = None
        self._decoupled: dict[Key, bool] = {}
        self._lookup: asyncio.Task[None] | None = None
        self._queue: deque[tuple[bool, bytes]] = deque()  # messages that wait for it
        if decided is not None:
            self._ways[key] = decided[0]
            self._sessions[decided[0]] = decided[1]
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
            size = len(data)
            if (
                self._order is None
                and self._lookup is None
                and size >= PREFIX_BYTES
                and self._reader.is_between_messages
                and PREFIX.unpack_from(data) == (0, size - PREFIX_BYTES)
            ):  # mostly, a piece is a message, and goes on as it is
                if size > self.plane.settings.limits.max_body_bytes:
                    self._reader.feed(data)
                self._take_plain(data, read_names(data, PREFIX_BYTES, size))
            elif data:
                self._queue += self._reader.feed(data)
                self._active_at = monotonic()
                self._take_queue()
            if self._is_over:
                return
            if ended:
                self._requests_ended()
            elif any(leg.is_backed_up for leg in self._legs.values()) or self._queue:
                self._owed += size
            else:
                stream.credit(size)
        except GatewayError as error:
            self._fail(error)

    def trailers_received(self, stream: Stream, block: Block) -> None:
        self.data_received(stream, b"", True)  # gRPC clients send none, but HTTP/2 allows them

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        """The client is gone: every engine is told at once."""
        if not self._is_over:
            self._close("client_gone")
            self._log(499, "client_gone")

    def drained(self, stream: Stream) -> None:
        for leg in self._legs.values():
            leg.pay()

    def sweep(self, now: float) -> None:
        """Called about once a second: has the client fallen silent in the middle of a message?"""
        for leg in list(self._legs.values()):
            leg.sweep(now)
        limit = self.plane.settings.limits.body_timeout
        if not self._reader.is_between_messages and now - self._active_at > limit:
            what = f"no more of the request's message came for {limit:g} s"
            self._fail(GatewayError(ErrorKind.REQUEST_TIMEOUT, what))

    def expired(self) -> None:
        self._slot = None
        self._fail(GatewayError(ErrorKind.DEADLINE, "the call's deadline (grpc-timeout) has passed"))

    # Messages

    def _take_queue(self) -> None:
        while self._queue and self._lookup is None and not self._is_over:
            is_compressed, message = self._queue.popleft()
            limit = self.plane.settings.limits.max_body_bytes
            plain = decompress(message, self._head.plan.encoding, limit) if is_compressed else message
            names = read_names(plain, 0, len(plain))
            if self._order is None and not self._is_first_model(names):
                self._look_up()
            if self._lookup is None and self._order is not None and self._must_look_up(names):
                self._look_up(names)
            if self._lookup is not None:
                self._queue.appendleft((is_compressed, message))
                return
            self._take(framed(message, compressed=is_compressed), plain, names)

    def _take_plain(self, data: bytes, names: Names) -> None:
        """A whole message with its prefix, while there is one model."""
        if self._is_first_model(names):
            self._take(data, None, names)
        else:
            self._queue.append((False, data[PREFIX_BYTES:]))
            self._take_queue()

    def _is_first_model(self, names: Names) -> bool:
        key = (names.model, names.version)
        if self._key is None:
            self._key = key
        return key == self._key

    def _take(self, data: bytes, plain: bytes | None, names: Names) -> None:
        """Send a message its way: `data` with its prefix, `plain` without it and decompressed, if at hand."""
        try:
            way = self._ways.get((names.model, names.version)) or self._decide(data, plain, names)
        except GatewayError as error:
            self._expect(None, names.model, names)
            self._answer_error(None, error, names)
            return
        if way.model is not None:
            data = framed(renamed(data[PREFIX_BYTES:] if plain is None else plain, names, way.model))
        self._expect(way, way.model or names.model, names)
        leg = self._legs.get(way)
        if leg is not None:
            leg.send(data, names)
            return
        leg = self._legs[way] = self._new_leg(way)
        if self._order is not None:
            leg.reader = self._new_reader()
        self._num_legs += 1
        leg.send(data, names)
        leg.start()

    def _new_leg(self, way: Way) -> AnyLeg:
        session = self._sessions.get(way)
        if way.lane.engine.speaks_grpc:
            return Leg(self, way, session)
        return RestLeg(self, way, session, self._client, self._head, self._request_id)

    def _decide(self, data: bytes, plain: bytes | None, names: Names) -> Way:
        plan = self._head.plan
        decision = plan.decide(names, None)
        is_by_content = decision is Undecided.NEEDS_BODY
        if is_by_content:
            decision = plan.decide(names, facts_or_none(data[PREFIX_BYTES:] if plain is None else plain))
        if isinstance(decision, Undecided):
            error = no_route(plan.facts(names))
            self.plane.metrics.unrouted.count_error(error.kind.value)
            raise error
        way, session = decision
        self._sessions.setdefault(way, session)
        if not is_by_content:
            self._ways[names.model, names.version] = way
        return way

    def _requests_ended(self) -> None:
        self._has_ended = True
        if not self._reader.is_between_messages:
            raise GatewayError(ErrorKind.BAD_REQUEST, "the stream ends before its last message is whole")
        if not self._queue:
            self._end_legs()

    def _end_legs(self) -> None:
        for leg in list(self._legs.values()):
            leg.end()
        if not self._legs and not self._is_over:
            self._succeed()

    # The second model

    def _must_look_up(self, names: Names) -> bool:
        return (names.model, names.version) not in self._decoupled

    def _look_up(self, names: Names | None = None) -> None:
        """Ask the model's engine whether it is decoupled; messages wait meanwhile. Without names it is the one that had
        all messages so far."""
        key = (names.model, names.version) if names is not None else self._key
        assert key is not None
        way = self._ways.get(key)
        if way is None and names is not None:
            decision = self._head.plan.decide(names, None)
            if decision is Undecided.NO_ROUTE:
                self._know(key, False)  # it is refused, in its turn
                return
            if not isinstance(decision, Undecided):
                way = self._ways[key] = decision[0]
                self._sessions.setdefault(*decision)
        if way is None:  # decided message by message: nothing is promised of their order
            self._know(key, True)
            return
        self._lookup = asyncio.get_running_loop().create_task(self._ask_engine(key, way))

    async def _ask_engine(self, key: Key, way: Way) -> None:
        try:
            found = await is_decoupled(way.lane, key[0].decode("utf-8", "replace"), key[1].decode("utf-8", "replace"))
        except (GatewayError, RpcError):
            found = True  # nobody must wait for an answer that is not promised
        self._lookup = None
        if self._is_over:
            return
        self._know(key, found)
        try:
            self._take_queue()
        except GatewayError as error:
            self._fail(error)
            return
        if not self._queue and not self._is_over:
            if self._has_ended:
                self._end_legs()
            self._credit_client()

    def _know(self, key: Key, decoupled: bool) -> None:
        self._decoupled[key] = decoupled
        if self._order is not None:
            return
        self._order = ResponseOrder()
        for way, leg in self._legs.items():
            leg.reader = self._new_reader()
            for _ in range(0 if decoupled else leg.num_sent - leg.boundaries.count):
                self._order.expect(way, way.model or key[0], b"")

    def _new_reader(self) -> MessageReader:
        return MessageReader(1 << 31)  # what engines answer is not limited

    def _expect(self, way: Way | None, model: bytes, names: Names) -> None:
        if self._order is not None and not self._decoupled.get((names.model, names.version)):
            self._order.expect(way, model, names.id)

    # What its legs tell it

    def leg_began(self, leg: AnyLeg, found: Relayed) -> None:
        if not self._has_begun:
            self._begin(found.steady)

    def leg_answered(self, leg: AnyLeg, data: bytes) -> None:
        if not self._has_begun:
            self._begin(_OPENING)
        if leg.reader is None:
            leg.boundaries.feed(data)
            self._stream.send_data(data)
            if self._later:
                self._write_later(leg)
            if self._stream.is_waiting:
                leg.owe(len(data))
            else:
                leg.credit(len(data))
            return
        size = len(data)
        if not leg.boundaries.is_between_messages:  # the rest of one that was passing through uncut
            cut = leg.boundaries.end_of_message(data)
            self._stream.send_data(data[:cut])
            data = data[cut:]
            self._write_later(leg)
        try:
            self._place(leg, leg.reader.feed(data))
        except GatewayError as error:
            self.leg_broke(leg, GatewayError(ErrorKind.UPSTREAM_PROTOCOL, error.message))
            return
        order = self._order
        assert order is not None
        if self._stream.is_waiting or order.held_bytes.get(leg.way, 0) > self.plane.settings.limits.high_water_bytes:
            leg.owe(size)
        else:
            leg.credit(size)

    def _place(self, leg: AnyLeg, messages: list[tuple[bool, bytes]]) -> None:
        order = self._order
        assert order is not None
        for is_compressed, message in messages:
            leg.boundaries.count += 1
            plain = decompress(message, leg.encoding, 1 << 31) if is_compressed else message
            names = response_names(plain)
            response = framed(message, compressed=is_compressed)
            for ready in order.place(leg.way, names.model, names.id, response):
                self._write(ready)
        for other in self._legs.values():
            if other is not leg and not order.held_bytes.get(other.way):
                other.pay()

    def leg_drained(self, leg: AnyLeg) -> None:
        self._credit_client()

    def leg_refused(self, leg: AnyLeg, error: GatewayError, unsent: list[Names]) -> None:
        del self._legs[leg.way]
        for names in unsent:
            self._answer_error(leg.way, error, names)
        if self._has_ended and not self._queue and not self._legs and not self._is_over:
            self._succeed()
        self._credit_client()

    def leg_failed(self, leg: AnyLeg, text: str, code: int, names: Names) -> None:
        self._answer_error(leg.way, GatewayError(ErrorKind.UPSTREAM_RESET, text), names, code)

    def leg_broke(self, leg: AnyLeg, error: GatewayError) -> None:
        self._legs.pop(leg.way, None)
        self._fail(error, is_counted=True)

    def leg_ended(self, leg: AnyLeg, found: Relayed | None) -> None:
        self._legs.pop(leg.way, None)
        if found is None:
            if not self._legs and not self._queue:
                self._succeed()
        elif self._num_legs == 1 and not self._queue:  # it was the engine's stream in all but name
            self._finish(found.status)
            if self._has_begun:
                self._stream.send_trailers(found.steady)
            else:
                self._stream.send_headers(found.steady, request_id_literal(self._request_id), ended=True)
            self._client.call_ended(self._stream)
        elif found.status != OK or not self._has_ended:
            what = found.message or "the engine ended the stream"
            error = GatewayError(ErrorKind.UPSTREAM_RESET, what)
            self._fail(error, code=found.status or None, is_counted=True)
        elif not self._legs and not self._queue:
            self._succeed()

    # Writing

    def _begin(self, steady: Steady) -> None:
        self._has_begun = True
        self._stream.send_headers(steady, request_id_literal(self._request_id))

    def _write(self, response: bytes) -> None:
        """A whole response, where it does not fall into the middle of another."""
        if not self._has_begun:
            self._begin(_OPENING)
        if self._later or any(not leg.boundaries.is_between_messages for leg in self._legs.values()):
            self._later.append(response)
        else:
            self._stream.send_data(response)

    def _write_later(self, leg: AnyLeg) -> None:
        if leg.boundaries.is_between_messages:
            later, self._later = self._later, []
            for response in later:
                self._stream.send_data(response)

    def _answer_error(self, way: Way | None, error: GatewayError, names: Names, code: int | None = None) -> None:
        """One message has no other answer than this."""
        if self._head.plan.wants_grpc_errors:
            self._fail(error, code=code, is_counted=True)
            return
        response = framed(error_response(error.message, names.id))
        order = self._order
        model = (way.model if way is not None else None) or names.model
        for ready in [response] if order is None else order.place(way, model, names.id, response):
            self._write(ready)

    def _credit_client(self) -> None:
        if self._owed and not self._queue and not any(leg.is_backed_up for leg in self._legs.values()):
            owed, self._owed = self._owed, 0
            self._stream.credit(owed)

    # Ends

    def _succeed(self) -> None:
        self._finish(OK)
        if self._has_begun:
            self._stream.send_trailers(TRAILERS_OK)
        else:
            steady = Steady([*OPENING, *TRAILERS_OK.fields])
            self._stream.send_headers(steady, request_id_literal(self._request_id), ended=True)
        self._client.call_ended(self._stream)

    def _finish(self, status: int | None) -> None:
        self._log(http_status(status) if status is not None else 200, "")
        self._close("stream_ended")

    def _fail(self, error: GatewayError, *, code: int | None = None, is_counted: bool = False) -> None:
        if self._is_over:
            return
        if not is_counted:
            self.plane.metrics.unrouted.count_error(error.kind.value)
        self._log(error.status.http, error.kind.value)
        lane = next(iter(self._legs)).lane if self._legs else None
        self._close(error.kind.value)
        tell_error(self._stream, error, self._request_id, lane, has_begun=self._has_begun, code=code)
        self._client.call_ended(self._stream)

    def _close(self, reason: str) -> None:
        self._is_over = True
        if self._slot is not None:
            self._slot.discard(self)
            self._slot = None
        if self._lookup is not None:
            self._lookup.cancel()
            self._lookup = None
        legs, self._legs = self._legs, {}
        for leg in legs.values():
            leg.cancel(reason)
        self._queue.clear()

    def _log(self, status: int, reason: str) -> None:
        if self.plane.access_log is not None:
            way = next(iter(self._legs), None) or next(iter(self._ways.values()), None)
            target = way.lane.target if way is not None else None
            path = self._head.plan.path.decode("latin-1")
            seconds = monotonic() - self._started_at
            self.plane.log_call(self._client.peer, path, status, reason, seconds, self._request_id, target)


_OPENING = Steady(OPENING)

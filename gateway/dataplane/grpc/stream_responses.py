"""What the client of a stream reads: the responses of all its engines, each whole and in its turn.

While one engine answers, its responses pass through uncut. With the second one they are cut into messages, so that none
falls into the middle of another.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.dataplane.context.call_head import Way
from gateway.dataplane.grpc.interfaces import AnyLeg
from gateway.dataplane.grpc.order import NO_ORDER, ResponseOrder
from gateway.dataplane.grpc.reply_headers import OPENING, TRAILERS_OK, Relayed, request_id_literal
from gateway.protocol.mlserver.stream import begins_as_tritons, is_bare_response, wrapped
from gateway.protocol.stream_messages import is_error, response_names
from gateway.wire.grpc import MessageReader, decompress, framed
from gateway.wire.http2.hpack import Steady
from gateway.wire.http2.stream import Stream

_MAX_MESSAGE_BYTES = 1 << 31  # what engines answer is not limited
_PLAIN = b"identity"


class Responses:
    """Writes to the client's stream. A leg whose responses the client does not take fast enough is owed their window.

    `legs` are those of the call, as they come and go; `high_water_bytes` may wait of each for its turn.
    """

    __slots__ = (
        "_are_cut",
        "_encoding",
        "_high_water_bytes",
        "_later",
        "_legs",
        "_order",
        "_request_id",
        "_stream",
        "has_begun",
    )

    def __init__(self, stream: Stream, request_id: bytes, legs: Mapping[Way, AnyLeg], high_water_bytes: int) -> None:
        self._stream = stream
        self._request_id = request_id
        self._legs = legs
        self._high_water_bytes = high_water_bytes
        self._order = NO_ORDER
        self._are_cut = False
        self._later: list[bytes] = []  # what came while another response was passing through
        self._encoding = _PLAIN  # of compressed responses, as the client was told
        self.has_begun = False  # the reply's first fields are sent

    def __repr__(self) -> str:
        return f"<Responses {self._order!r}>"

    # Before responses come

    def expect(self, way: Way | None, model: bytes, request_id: bytes) -> None:
        """A request that is answered once is on its way; `model` as its engine calls it."""
        if self._order is NO_ORDER:
            self._order = ResponseOrder()
        self._order.expect(way, model, request_id)

    def cut(self) -> None:
        """From now on responses are written one by one."""
        if not self._are_cut:
            self._are_cut = True
            self._bend()
            for leg in self._legs.values():
                leg.reader = MessageReader(_MAX_MESSAGE_BYTES)

    def join(self, leg: AnyLeg) -> None:
        """One more leg is going to answer."""
        self._bend()
        if self._legs:
            self.cut()
        if self._are_cut:
            leg.reader = MessageReader(_MAX_MESSAGE_BYTES)

    def began(self, leg: AnyLeg, found: Relayed) -> None:
        """An engine's first fields."""
        if not self.has_begun:
            self._encoding = leg.encoding
            self._begin(found.steady)
        elif leg.encoding != self._encoding:
            self.cut()  # to be told plain

    # Responses

    def answered(self, leg: AnyLeg, data: bytes) -> None:
        """Some of a leg's responses, cut anywhere.

        Raises: GatewayError where it is no message, or none that can be read.
        """
        if not self.has_begun:
            self._begin(_OPENING)
        stream, size = self._stream, len(data)
        is_first = leg.reader is None and not leg.boundaries.count and leg.boundaries.is_between_messages
        if is_first and not begins_as_tritons(data):  # an error, or MLServer's bare responses
            self.cut()
        if leg.reader is None:
            leg.boundaries.feed(data)
            stream.send_data(data)
            if self._later:
                self._write_later()
            else:
                leg.pass_to(stream)
            if stream.is_waiting:
                leg.owe(size)
            else:
                leg.credit(size)
            return
        if not leg.boundaries.is_between_messages:  # the rest of one that was passing through uncut
            stop = leg.boundaries.end_of_message(data)
            stream.send_data(data[:stop])
            data = data[stop:]
            self._write_later()
        for is_compressed, message in leg.reader.feed(data):
            self._place(leg, is_compressed, message)
        if self._takes(leg):
            leg.credit(size)
        else:
            leg.owe(size)
        self._pay()

    def answered_by_us(self, way: Way | None, model: bytes, request_id: bytes, message: bytes) -> None:
        """The gateway's own answer in the place of an engine's."""
        for ready in self._order.place(way, model, request_id, framed(message)):
            self._write(ready)
        self._pay()

    def left(self, leg: AnyLeg) -> None:
        """A leg has answered for the last time: nobody waits for what it still owes."""
        for ready in self._order.abandon(leg.way):
            self._write(ready)
        self._pay()

    def drained(self) -> None:
        """The client reads on."""
        if self._are_cut:
            self._pay()
        else:
            for leg in self._legs.values():
                leg.pay()

    # The end

    def end(self, found: Relayed | None = None) -> None:
        """End the stream with an engine's status; None: all went well."""
        if self.has_begun:
            self._stream.send_trailers(found.steady if found is not None else TRAILERS_OK)
            return
        steady = found.steady if found is not None else Steady([*OPENING, *TRAILERS_OK.fields])
        self._stream.send_headers(steady, request_id_literal(self._request_id), ended=True)

    def forget(self) -> None:
        """Nothing more is told."""
        self._order = NO_ORDER
        self._later.clear()
        self._bend()

    def _begin(self, steady: Steady) -> None:
        self.has_begun = True
        self._stream.send_headers(steady, request_id_literal(self._request_id))

    def _place(self, leg: AnyLeg, is_compressed: bool, message: bytes) -> None:
        leg.boundaries.count += 1
        plain = decompress(message, leg.encoding, _MAX_MESSAGE_BYTES) if is_compressed else message
        if is_bare_response(plain):
            is_compressed, message = False, wrapped(plain)
            plain = message
        leg.boundaries.num_marked += is_error(plain)
        names = response_names(plain)
        if is_compressed and leg.encoding != self._encoding:
            is_compressed, message = False, plain
        response = framed(message, compressed=is_compressed)
        for ready in self._order.place(leg.way, names.model, names.id, response):
            self._write(ready)

    def _write(self, response: bytes) -> None:
        """A whole response, where it does not fall into the middle of another."""
        if not self.has_begun:
            self._begin(_OPENING)
        if self._later or self._is_in_the_middle():
            self._later.append(response)
            self._bend()
        else:
            self._stream.send_data(response)

    def _write_later(self) -> None:
        if not self._is_in_the_middle():
            later, self._later = self._later, []
            for response in later:
                self._stream.send_data(response)

    def _bend(self) -> None:
        """From now on each piece is told here."""
        for leg in self._legs.values():
            leg.pass_to(None)

    def _is_in_the_middle(self) -> bool:
        return any(not leg.boundaries.is_between_messages for leg in self._legs.values())

    def _takes(self, leg: AnyLeg) -> bool:
        return not self._stream.is_waiting and self._order.held_bytes(leg.way) <= self._high_water_bytes

    def _pay(self) -> None:
        """Give back the windows of legs that are behind, as far as the client keeps up."""
        for leg in self._legs.values():
            if self._takes(leg):
                leg.pay()


_OPENING = Steady(OPENING)

"""The responses of all backends of a stream, each whole and in its turn.

The responses of a single backend pass through uncut. With a second one they are cut into messages, so that none lands
in the middle of another. Models answer in the order of the requests, whichever engine each went to; a decoupled model's
responses come at any time. Source: Triton's stream_infer_handler.cc.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from gateway.dataplane.context.call_target import CallTarget
from gateway.dataplane.grpc.interfaces import BackendStream
from gateway.dataplane.grpc.reply_headers import OPENING, TRAILERS_OK, RelayedBlock, request_id_literal
from gateway.protocol.conversion.stream import begins_as_tritons, is_bare_response, stream_response
from gateway.protocol.message_layouts import is_error, response_names
from gateway.wire.grpc import MessageReader, decompress, framed
from gateway.wire.http2.hpack import CachedHeaders
from gateway.wire.http2.stream import Stream

_MAX_MESSAGE_BYTES = 1 << 31  # what engines answer is not limited
_PLAIN = b"identity"


@dataclass(slots=True, eq=False)
class _Owed:
    """A request whose response has not been written to the client."""

    target: Hashable
    model: bytes
    request_id: bytes
    response: bytes = b""
    is_settled: bool = False  # the response has come, or never will

    def may_be_of(self, model: bytes, request_id: bytes) -> bool:
        """Whether a response with these names can be of this request; an empty name fits any."""
        return (not model or self.model == model) and (
            not request_id or not self.request_id or self.request_id == request_id
        )


class ResponseOrder:
    """Holds back responses that come before their turn. A `target` identifies an engine's stream."""

    def __init__(self) -> None:
        self._owed: deque[_Owed] = deque()  # in the order of the requests
        self._unanswered: dict[Hashable, deque[_Owed]] = {}  # the same, of each target
        self._held_bytes: dict[Hashable, int] = {}

    def held_bytes(self, target: Hashable) -> int:
        """How many bytes of a target's responses wait for their turn."""
        return self._held_bytes.get(target, 0)

    def expect(self, target: Hashable, model: bytes, request_id: bytes) -> None:
        """A request with one response is sent; `model` is its engine's name for it."""
        owed = _Owed(target, model, request_id)
        self._owed.append(owed)
        self._unanswered.setdefault(target, deque()).append(owed)

    def place(self, target: Hashable, model: bytes, request_id: bytes, response: bytes) -> list[bytes]:
        """The responses that may be written now that this one has come. `model` is empty where it has none."""
        unanswered = self._unanswered.get(target, ())
        for owed in unanswered:  # the first one, unless an engine answers several models in any order
            if owed.may_be_of(model, request_id):
                break
        else:  # a decoupled model's
            return [response]
        self._unanswered[target].remove(owed)
        owed.response, owed.is_settled = response, True
        self._held_bytes[target] = self.held_bytes(target) + len(response)
        return self._take()

    def abandon(self, target: Hashable) -> list[bytes]:
        """The responses that may be written now that no more come from this target."""
        for owed in self._unanswered.pop(target, ()):
            owed.is_settled = True
        return self._take()

    def _take(self) -> list[bytes]:
        ready: list[bytes] = []
        while self._owed and self._owed[0].is_settled:
            owed = self._owed.popleft()
            if owed.response:
                self._held_bytes[owed.target] -= len(owed.response)
                ready.append(owed.response)
        return ready


# Of most streams: nothing is expected, and each response is written at once. Never changed.
NO_ORDER = ResponseOrder()


class StreamResponses:
    """Writes to the client's stream. Backends get the window of their responses back as the client reads.

    `backends` are those of the call, as they come and go; up to `high_water_bytes` of each may wait for their turn.
    """

    def __init__(
        self, stream: Stream, request_id: bytes, backends: Mapping[CallTarget, BackendStream], high_water_bytes: int
    ) -> None:
        self._stream = stream
        self._request_id = request_id
        self._backends = backends
        self._high_water_bytes = high_water_bytes
        self._order = NO_ORDER
        self._are_cut = False
        self._delayed: list[bytes] = []  # what came while another response was passing through
        self._encoding = _PLAIN  # of compressed responses, as the reply's fields have it
        self.has_begun = False  # the reply's first fields are sent

    # Before responses come

    @property
    def are_ordered(self) -> bool:
        """Whether some response is expected before others."""
        return self._order is not NO_ORDER

    def expect(self, target: CallTarget | None, model: bytes, request_id: bytes) -> None:
        """A request with one response is sent; `model` is its engine's name for it."""
        if self._order is NO_ORDER:
            self._order = ResponseOrder()
        self._order.expect(target, model, request_id)

    def cut(self) -> None:
        """From now on responses are written one by one."""
        if not self._are_cut:
            self._are_cut = True
            self._take_pieces()
            for backend in self._backends.values():
                backend.reader = MessageReader(_MAX_MESSAGE_BYTES)

    def join(self, backend: BackendStream) -> None:
        """One more backend is going to answer."""
        self._take_pieces()
        if self._backends:
            self.cut()
        if self._are_cut:
            backend.reader = MessageReader(_MAX_MESSAGE_BYTES)

    def began(self, backend: BackendStream, block: RelayedBlock) -> None:
        """An engine's first fields."""
        if not self.has_begun:
            self._encoding = backend.encoding
            self._begin(block.steady)
        elif backend.encoding != self._encoding:
            self.cut()  # to be decompressed

    # Responses

    def answered(self, backend: BackendStream, data: bytes) -> None:
        """Some of a backend's responses, cut anywhere.

        Raises: GatewayError where it is no message, or none that can be read.
        """
        if not self.has_begun:
            self._begin(_OPENING)
        stream, size = self._stream, len(data)
        is_first = backend.reader is None and not backend.boundaries.count and backend.boundaries.is_between_messages
        if is_first and not begins_as_tritons(data):  # an error, or MLServer's bare responses
            self.cut()
        if backend.reader is None:
            backend.boundaries.feed(data)
            stream.send_data(data)
            if self._delayed:
                self._write_delayed()
            else:
                backend.pass_to(stream)
            if stream.is_waiting:
                backend.owe(size)
            else:
                backend.credit(size)
            return
        if not backend.boundaries.is_between_messages:  # the rest of one that was passing through uncut
            stop = backend.boundaries.end_of_message(data)
            stream.send_data(data[:stop])
            data = data[stop:]
            self._write_delayed()
        for is_compressed, message in backend.reader.feed(data):
            self._place(backend, is_compressed, message)
        if self._takes(backend):
            backend.credit(size)
        else:
            backend.owe(size)
        self._pay()

    def answered_by_us(self, target: CallTarget | None, model: bytes, request_id: bytes, message: bytes) -> None:
        """An answer of the gateway's own in the place of an engine's."""
        for ready in self._order.place(target, model, request_id, framed(message)):
            self._write(ready)
        self._pay()

    def ended(self, backend: BackendStream) -> None:
        """A backend has ended: what it still owes is not waited for."""
        for ready in self._order.abandon(backend.target):
            self._write(ready)
        self._pay()

    def drained(self) -> None:
        if self._are_cut:
            self._pay()
        else:
            for backend in self._backends.values():
                backend.pay()

    # The end

    def end(self, block: RelayedBlock | None = None) -> None:
        """End the stream with an engine's status; None: all went well."""
        if self.has_begun:
            self._stream.send_trailers(block.steady if block is not None else TRAILERS_OK)
            return
        steady = block.steady if block is not None else CachedHeaders([*OPENING, *TRAILERS_OK.fields])
        self._stream.send_headers(steady, request_id_literal(self._request_id), ended=True)

    def forget(self) -> None:
        self._order = NO_ORDER
        self._delayed.clear()
        self._take_pieces()

    def _begin(self, steady: CachedHeaders) -> None:
        self.has_begun = True
        self._stream.send_headers(steady, request_id_literal(self._request_id))

    def _place(self, backend: BackendStream, is_compressed: bool, message: bytes) -> None:
        backend.boundaries.count += 1
        plain = decompress(message, backend.encoding, _MAX_MESSAGE_BYTES) if is_compressed else message
        if is_bare_response(plain):
            is_compressed, message = False, stream_response(plain)
            plain = message
        if is_error(plain):
            backend.boundaries.num_marked += 1
            backend.error_received(plain)
        names = response_names(plain)
        if is_compressed and backend.encoding != self._encoding:
            is_compressed, message = False, plain
        response = framed(message, compressed=is_compressed)
        for ready in self._order.place(backend.target, names.model, names.id, response):
            self._write(ready)

    def _write(self, response: bytes) -> None:
        """Write a whole response, as soon as it does not land in the middle of another."""
        if not self.has_begun:
            self._begin(_OPENING)
        if self._delayed or self._is_in_the_middle():
            self._delayed.append(response)
            self._take_pieces()
        else:
            self._stream.send_data(response)

    def _write_delayed(self) -> None:
        if not self._is_in_the_middle():
            delayed, self._delayed = self._delayed, []
            for response in delayed:
                self._stream.send_data(response)

    def _take_pieces(self) -> None:
        """From now on each piece passes through here."""
        for backend in self._backends.values():
            backend.pass_to(None)

    def _is_in_the_middle(self) -> bool:
        return any(not backend.boundaries.is_between_messages for backend in self._backends.values())

    def _takes(self, backend: BackendStream) -> bool:
        return not self._stream.is_waiting and self._order.held_bytes(backend.target) <= self._high_water_bytes

    def _pay(self) -> None:
        """Give back the windows of backends that are behind, as far as the client keeps up."""
        for backend in self._backends.values():
            if self._takes(backend):
                backend.pay()


_OPENING = CachedHeaders(OPENING)

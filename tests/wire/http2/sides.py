"""An HTTP/2 connection that records all events, and frames as a peer sends them."""

from dataclasses import dataclass, field

from gateway.wire.http2 import frames
from gateway.wire.http2.connection import Http2Connection
from gateway.wire.http2.fields import Block, Field
from gateway.wire.http2.frames import ErrorCode
from gateway.wire.http2.hpack import CachedHeaders, literals
from gateway.wire.http2.peer_state import PeerState
from gateway.wire.http2.state import Http2Limits
from gateway.wire.http2.stream import Stream

REQUEST: list[Field] = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a"), (b":authority", b"host")]
REPLY: list[Field] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
SETTINGS = frames.settings({})
OPENING = frames.PREFACE + SETTINGS


@dataclass
class ReceivedStream:
    """The events that the receiver of one stream got."""

    stream: Stream
    fields: list[Field] | None = None
    body: bytes = b""
    trailers: list[Field] | None = None
    ended: bool = False
    reset: int | None = None
    why: str = ""
    num_drained: int = 0

    @property
    def outcome(self) -> tuple[object, ...]:
        return self.fields, self.body, self.trailers, self.ended, self.reset


@dataclass
class Side:
    """The owner of a connection and the receiver of its streams. It checks that no event is repeated or late."""

    is_client: bool
    limits: Http2Limits = field(default_factory=Http2Limits)
    credits: bool = True  # returns flow-control credit as it reads

    def __post_init__(self) -> None:
        self.http2 = Http2Connection(self, self.limits, is_client=self.is_client)
        self.received: dict[int, ReceivedStream] = {}
        self.sent = b""
        self.num_closed = 0
        self.num_farewells = 0
        self.num_settings = 0
        self.http2.start()

    def feed(self, *pieces: bytes) -> "Side":
        for piece in pieces:
            self.http2.feed(piece)
        return self

    def take(self) -> bytes:
        """The bytes sent since the last call."""
        data = b"".join(self.http2.out)
        self.http2.out = []
        self.sent += data
        return data

    def open(self, fields: list[Field] = REQUEST, *, ended: bool = False) -> ReceivedStream:
        stream = self.http2.open_stream(self)
        received = self.received[stream.id] = ReceivedStream(stream)
        stream.send_headers(CachedHeaders(fields), ended=ended)
        return received

    # As the connection's owner

    def stream_opened(self, stream: Stream, block: Block, ended: bool) -> None:
        assert stream.id not in self.received
        self.received[stream.id] = ReceivedStream(stream, block.fields, ended=ended)
        stream.receiver = self

    def stream_closed(self) -> None:
        self.num_closed += 1

    def settings_changed(self) -> None:
        self.num_settings += 1

    def peer_is_leaving(self) -> None:
        self.num_farewells += 1

    def has_output(self) -> None:
        assert self.http2.out

    has_relayed = has_output

    # As the receiver of all its streams

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None:
        received = self._listen(stream)
        assert self.is_client and received.fields is None and not received.ended
        received.fields, received.ended = block.fields, ended

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        received = self._listen(stream)
        assert received.fields is not None and not received.ended
        received.body += data
        received.ended = ended
        if self.credits:
            stream.credit(len(data))

    def trailers_received(self, stream: Stream, block: Block) -> None:
        received = self._listen(stream)
        assert received.fields is not None and not received.ended
        received.trailers, received.ended = block.fields, True

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        received = self._listen(stream)
        assert why and stream.id not in self.http2.streams
        assert stream.is_sent and stream.peer_state is PeerState.ENDED and not stream.is_waiting
        received.reset, received.why = code, why

    def drained(self, stream: Stream) -> None:
        self._listen(stream).num_drained += 1

    def _listen(self, stream: Stream) -> ReceivedStream:
        received = self.received[stream.id]
        assert received.stream is stream and received.reset is None
        return received


def server(limits: Http2Limits | None = None) -> Side:
    """A server that has received the client's preface and SETTINGS."""
    side = Side(is_client=False, limits=limits or Http2Limits())
    side.feed(OPENING)
    side.take()
    return side


def client(limits: Http2Limits | None = None) -> Side:
    """A client that has received the server's SETTINGS."""
    side = Side(is_client=True, limits=limits or Http2Limits())
    side.feed(SETTINGS)
    side.take()
    return side


Frame = tuple[int, int, int, bytes]  # type, flags, stream, payload


def cut(data: bytes) -> list[Frame]:
    """Split bytes into frames."""
    found = []
    while data:
        kind, flags, stream_id = frames.HEAD.unpack_from(data)
        stop = frames.HEAD_BYTES + (kind >> 8)
        assert len(data) >= stop
        found.append((kind & 0xFF, flags, stream_id, data[frames.HEAD_BYTES : stop]))
        data = data[stop:]
    return found


def errors(data: bytes) -> list[tuple[int, ErrorCode]]:
    """The errors sent: each RST_STREAM's stream and code, and stream 0 with the code of GOAWAY."""
    return [
        (stream_id, ErrorCode(frames.read_u32(payload[4:] if kind == frames.GOAWAY else payload)))
        for kind, _, stream_id, payload in cut(data)
        if kind in (frames.RST_STREAM, frames.GOAWAY)
    ]


def headers(
    stream_id: int = 1, fields: list[Field] | bytes = REQUEST, *, ended: bool = False, flags: int = frames.END_HEADERS
) -> bytes:
    block = fields if isinstance(fields, bytes) else literals(fields)
    return frames.frame(frames.HEADERS, flags | (frames.END_STREAM if ended else 0), stream_id, block)


def data(stream_id: int = 1, body: bytes = b"", *, ended: bool = False, padding: int | None = None) -> bytes:
    flags = frames.END_STREAM if ended else 0
    if padding is not None:
        return frames.frame(frames.DATA, flags | frames.PADDED, stream_id, bytes([padding]) + body + bytes(padding))
    return frames.frame(frames.DATA, flags, stream_id, body)

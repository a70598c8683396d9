"""One side of an HTTP/2 connection: bytes in, calls to the receivers of its streams; bytes out in `out` (RFC 9113)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gateway.wire.http2 import frames
from gateway.wire.http2.field_decoder import OwnNames
from gateway.wire.http2.frame_handlers import READERS, RETURN_AT, return_window, take_block, take_data, take_reply
from gateway.wire.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEAD_BYTES,
    HEADERS,
    PADDED,
    PREFACE,
    SETTINGS,
    STREAM_MASK,
    WITH_PRIORITY,
    ErrorCode,
    Http2Error,
    Setting,
    unpack_head,
)
from gateway.wire.http2.peer_state import SENDING
from gateway.wire.http2.state import ConnectionState, Http2Limits
from gateway.wire.http2.stream import ConnectionOwner, Stream, StreamReceiver

# CONTINUATION frames of one block: a block of the longest allowed length needs far fewer.
_MAX_CONTINUATIONS = 64
_BLOCK_FLAGS = END_HEADERS | PADDED | WITH_PRIORITY


class Opening(Enum):
    """What the peer has yet to send to open the connection (section 3.4): the client's preface, the first frame,
    nothing."""

    PREFACE = 1
    SETTINGS = 2
    DONE = 3


_PREFACE, _SETTINGS, _DONE = Opening


@dataclass(slots=True)
class _OpenBlock:
    """A header block of which more must follow."""

    stream_id: int
    ends_stream: bool
    pieces: list[bytes]


# A small connection window would let one slow stream stop all others; each stream's own window is small instead.
_CONNECTION_WINDOW = 1 << 30


class Http2Connection(ConnectionState):
    """Frames of one connection, read and written. It never raises: errors of the peer are answered as the RFC requires,
    and `failed` is set once the connection is over."""

    __slots__ = ("_block", "_buffer", "_part", "opening")

    def __init__(
        self, owner: ConnectionOwner, limits: Http2Limits, *, is_client: bool, own_names: OwnNames | None = None
    ) -> None:
        """`own_names`: see `FieldDecoder`."""
        super().__init__(owner, limits, is_client=is_client, own_names=own_names)
        self._buffer = b""
        self.opening = _SETTINGS if is_client else _PREFACE
        self._part: tuple[int, int, bool] | None = None  # of a DATA frame: stream, bytes left, whether it ends
        self._block: _OpenBlock | None = None

    def start(self) -> None:
        """Open the connection."""
        limits = self.limits
        values = {
            Setting.MAX_FRAME_SIZE: limits.max_frame_bytes,
            Setting.INITIAL_WINDOW_SIZE: self.window,
            Setting.MAX_HEADER_LIST_SIZE: limits.max_header_bytes,
        }
        if self.is_client:
            values[Setting.ENABLE_PUSH] = 0
        else:
            values[Setting.MAX_CONCURRENT_STREAMS] = limits.max_streams
        opening = PREFACE if self.is_client else b""
        more = _CONNECTION_WINDOW - frames.DEFAULT_WINDOW
        self.emit(opening + frames.settings(values) + frames.window_update(0, more))

    def open_stream(self, receiver: StreamReceiver) -> Stream:
        """A new stream of this side; its headers must be the next thing sent."""
        stream = Stream(self, self.next_id, receiver, self.peer_window, self.window)
        self.streams[stream.id] = stream
        self.next_id += 2
        if self.next_id > STREAM_MASK - 2:
            self.is_leaving = True  # the numbers are used up
        return stream

    def feed(self, data: bytes) -> None:
        """Read what came, and handle all of it before returning."""
        if self.failed is None:
            try:
                self._read(data)
            except Http2Error as error:
                self.fail(error)

    def leave(self, *, last_id: int | None = None) -> None:
        """Take no new streams; those under way go on. With the highest `last_id`, streams that are on their way are
        still taken until the next call (section 6.8)."""
        if self.failed is None:
            self.is_leaving = True
            if self.last_taken is not None:  # a GOAWAY cannot be taken back
                last_id = self.last_taken
            elif last_id is None:
                last_id = self.last_taken = self.last_id
            self.emit(frames.goaway(last_id, ErrorCode.NO_ERROR))

    def ping(self) -> None:
        """Ask the peer for a sign of life; whatever comes next is one (section 6.7)."""
        self.emit(frames.frame(frames.PING, 0, 0, bytes(8)))

    def tick(self) -> None:
        """Called about once a second: the counts of the flood guard decay."""
        self.flood_guard.tick(self.granted - self.send_window)

    # Reading

    def _read(self, data: bytes) -> None:
        """Read what came, cut anywhere. Raises: Http2Error: the connection is over."""
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        at = 0
        end = len(data)
        if self.opening is _PREFACE:
            at = self._read_preface(data)
            if not at:
                return
        if self._part is not None:
            at = self._read_part(data, at, end)
        limit = self.limits.max_frame_bytes
        is_special = self.opening is not _DONE or self._block is not None
        find, find_reader = self.streams.get, READERS.get
        while end - at >= HEAD_BYTES:
            kind, flags, stream_id = unpack_head(data, at)
            length = kind >> 8
            start = at + HEAD_BYTES
            stop = start + length
            if not flags and stop <= end and not kind & 0xFF and not is_special:  # mostly: DATA, whole, plain and amid
                stream = find(stream_id)
                if (  # whatever else it is, `take_data` looks into it
                    stream is not None
                    and 0 < length <= stream.receive_window
                    and length <= limit
                    and stream.peer_state is SENDING
                    and stream.expected_bytes is None
                ):
                    self.owed += length
                    stream.receive_window -= length
                    stream.receiver.data_received(stream, data[start:stop], False)
                    at = stop
                    continue
            if length > limit:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"a frame is longer than {limit} bytes")
            kind &= 0xFF
            stream_id &= STREAM_MASK
            if is_special:
                if stop > end:
                    break
                self._expect(kind, flags, stream_id)
                self._read_frame(kind, flags, stream_id, data[start:stop])
                is_special = self._block is not None
            elif kind == DATA:
                if stop <= end:
                    payload = data[start:stop]
                    if flags & PADDED:
                        payload = _without_padding(payload)
                    take_data(self, stream_id, payload, length, flags & END_STREAM != 0)
                elif flags & PADDED:
                    break
                else:  # no need to wait for the rest of it
                    self._part = (stream_id, length, flags & END_STREAM != 0)
                    at = self._read_part(data, start, end)
                    break
            elif stop > end:
                break
            elif kind == HEADERS and flags & _BLOCK_FLAGS == END_HEADERS and stream_id:
                if flags == END_HEADERS and self.is_client:
                    at = take_reply(self, stream_id, data, start, stop, end)
                    continue
                take_block(self, stream_id, data[start:stop], flags & END_STREAM != 0)
            elif (read := find_reader(kind)) is not None:
                read(self, flags, stream_id, data[start:stop])
            else:
                self._read_frame(kind, flags, stream_id, data[start:stop])
                is_special = self._block is not None
            at = stop
        if self.owed >= RETURN_AT:
            return_window(self)
        if at < end:
            self._buffer = data[at:] if at else data

    def _read_preface(self, data: bytes) -> int:
        """Returns where it stops; 0 while more of it must come."""
        if not PREFACE.startswith(data[: len(PREFACE)]):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the connection does not start with HTTP/2's preface")
        if len(data) < len(PREFACE):
            self._buffer = data
            return 0
        self.opening = _SETTINGS
        return len(PREFACE)

    def _read_part(self, data: bytes, at: int, end: int) -> int:
        """Some more of a DATA frame; returns where it stops."""
        assert self._part is not None
        stream_id, left, ended = self._part
        size = min(left, end - at)
        if size == left:
            self._part = None
            take_data(self, stream_id, data[at : at + size], size, ended)
        elif size:
            self._part = (stream_id, left - size, ended)
            take_data(self, stream_id, data[at : at + size], size, False)
        return at + size

    def _expect(self, kind: int, flags: int, stream_id: int) -> None:
        """Only SETTINGS opens a connection; only CONTINUATION follows a part of a block (section 6.10)."""
        if self._block is None:
            if kind != SETTINGS or flags & ACK:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self.opening = _DONE
        elif kind != CONTINUATION or stream_id != self._block.stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a frame stands in the middle of a header block")

    def _read_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == HEADERS:
            self._read_headers(flags, stream_id, payload)
        elif kind == CONTINUATION:
            self._read_continuation(flags, stream_id, payload)
        else:
            read = READERS.get(kind)
            if read is None:  # an extension: ignored (section 5.5)
                self.count_idle_frame()
            else:
                read(self, flags, stream_id, payload)

    def _read_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "HEADERS on stream 0")
        if flags & PADDED:
            payload = _without_padding(payload)
        if flags & WITH_PRIORITY:
            if len(payload) < 5:
                code = ErrorCode.PROTOCOL_ERROR if flags & PADDED else ErrorCode.FRAME_SIZE_ERROR
                raise Http2Error(code, "HEADERS is too short for its priority")
            payload = payload[5:]
        if flags & END_HEADERS:
            take_block(self, stream_id, payload, flags & END_STREAM != 0)
        else:
            self._block = _OpenBlock(stream_id, flags & END_STREAM != 0, [payload])

    def _read_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        block = self._block
        if block is None:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        block.pieces.append(payload)
        if len(block.pieces) > _MAX_CONTINUATIONS or sum(map(len, block.pieces)) > self.limits.max_header_bytes:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "the header fields are too long")
        if flags & END_HEADERS:
            self._block = None
            take_block(self, stream_id, b"".join(block.pieces), block.ends_stream)


def _without_padding(payload: bytes) -> bytes:
    """Section 6.1: the first byte is the number of padding bytes at the end."""
    if not payload or payload[0] >= len(payload):
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the padding is as long as the frame")
    return payload[1 : len(payload) - payload[0]]

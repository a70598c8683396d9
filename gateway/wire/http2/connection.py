"""One side of an HTTP/2 connection: bytes in, calls to the streams' receivers; bytes out in `out` (RFC 9113)."""

from __future__ import annotations

from gateway.wire.http2 import frames
from gateway.wire.http2.frame_reader import FrameReader
from gateway.wire.http2.frames import PREFACE, STREAM_MASK, ErrorCode, Http2Error, Setting
from gateway.wire.http2.interfaces import ConnectionOwner, Http2Limits
from gateway.wire.http2.state import ConnectionState
from gateway.wire.http2.stream import Stream, StreamReceiver

__all__ = ["ConnectionOwner", "Http2Connection", "Http2Limits"]

# A connection's window would let one slow stream stop all others, so it is as good as open; each stream's own is small.
_CONNECTION_WINDOW = 1 << 30


class Http2Connection(ConnectionState):
    """Frames of one connection, read and written. It never raises: what the peer does wrong is answered as the RFC
    says, and `failed` is set once the connection is over."""

    __slots__ = ("_reader",)

    def __init__(
        self, owner: ConnectionOwner, limits: Http2Limits, *, is_client: bool, volatile: frozenset[bytes] = frozenset()
    ) -> None:
        """`volatile` names fields that the peer sends with another value each time, see `FieldDecoder`."""
        super().__init__(owner, limits, is_client=is_client, volatile=volatile)
        self._reader = FrameReader(self)

    def start(self) -> None:
        """Open the connection."""
        limits = self.limits
        told = {
            Setting.MAX_FRAME_SIZE: limits.max_frame_bytes,
            Setting.INITIAL_WINDOW_SIZE: self.window,
            Setting.MAX_HEADER_LIST_SIZE: limits.max_header_bytes,
        }
        if self.is_client:
            told[Setting.ENABLE_PUSH] = 0
        else:
            told[Setting.MAX_CONCURRENT_STREAMS] = limits.max_streams
        opening = PREFACE if self.is_client else b""
        more = _CONNECTION_WINDOW - frames.DEFAULT_WINDOW
        self.emit(opening + frames.settings(told) + frames.window_update(0, more))

    @property
    def awaits_opening(self) -> bool:
        """Whether the peer has yet to send its preface or its SETTINGS."""
        return self._reader.awaits_settings

    @property
    def can_open(self) -> bool:
        """Whether this side may open a stream now."""
        return len(self.streams) < self.peer_max_streams and not self.is_leaving and self.failed is None

    def open_stream(self, receiver: StreamReceiver) -> Stream:
        """A new stream of this side; its headers must be the next thing sent."""
        stream = Stream(self, self.next_id, receiver, self.peer_window, self.window)
        self.streams[stream.id] = stream
        self.next_id += 2
        if self.next_id > STREAM_MASK - 2:
            self.is_leaving = True  # the numbers are used up
        return stream

    def feed(self, data: bytes) -> None:
        """Read what came; whatever follows from it has happened when this returns."""
        if self.failed is None:
            try:
                self._reader.read(data)
            except Http2Error as error:
                self.fail(error)

    def leave(self, *, last_id: int | None = None) -> None:
        """Take no new streams; those under way go on. With the highest `last_id` first, streams already on their way
        are still taken, until it is called again (section 6.8)."""
        if self.failed is None:
            self.is_leaving = True
            if self.last_taken is not None:  # what was told may not be taken back
                last_id = self.last_taken
            elif last_id is None:
                last_id = self.last_taken = self.last_id
            self.emit(frames.goaway(last_id, ErrorCode.NO_ERROR))

    def tick(self) -> None:
        """Called about once a second: what the peer has wasted is forgotten by and by."""
        self.patience.tick(self.granted - self.send_window)

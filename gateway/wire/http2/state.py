"""A connection's streams, windows and limits, and how errors end them (RFC 9113 sections 5.1, 5.4, 10.5)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gateway.wire.http2 import frames
from gateway.wire.http2.field_decoder import FieldDecoder, OwnNames
from gateway.wire.http2.fields import Block
from gateway.wire.http2.frames import ErrorCode, Http2Error
from gateway.wire.http2.hpack import FieldEncoder
from gateway.wire.http2.stream import Channel, ConnectionOwner, Stream


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """The resources that the peer may use."""

    max_streams: int = 1000  # at the same time
    window_bytes: int = 256 * 1024  # that may arrive on one stream before they are consumed
    max_frame_bytes: int = 64 * 1024
    max_header_bytes: int = 64 * 1024
    # Streams broken off in a burst, and a twentieth of it each second for good (CVE-2023-44487); None: any number
    max_resets: int | None = 2000


class NullReceiver:
    """The receiver of streams without another one."""

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None: ...

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None: ...

    def trailers_received(self, stream: Stream, block: Block) -> None: ...

    def stream_reset(self, stream: Stream, code: int, why: str) -> None: ...

    def drained(self, stream: Stream) -> None: ...


NO_RECEIVER = NullReceiver()


# Frames that cause work and carry no message, per second.
_MAX_IDLE_FRAMES = 10_000
# A peer that reads much acknowledges much, each message on its stream and on the connection: one more frame is allowed
# for each of these bytes of data sent to it, since the smallest message has five.
_SENT_BYTES_A_FRAME = 2
# A change of settings visits all streams.
SETTINGS_COST = 20


class FloodGuard:
    """Counts frames that cost this side more than the peer; the counts decay."""

    __slots__ = ("_max_resets", "_num_idle", "_num_resets", "_sent_before")

    def __init__(self, max_resets: int | None) -> None:
        """`max_resets` None: the peer may reset any number of streams."""
        self._max_resets = max_resets
        self._num_idle = 0
        self._num_resets = 0
        self._sent_before = 0

    def count_idle_frame(self, sent_bytes: int, cost: int = 1) -> None:
        """The peer sent a frame without a message; `sent_bytes` is the data sent to it so far. Raises: Http2Error
        (ENHANCE_YOUR_CALM)."""
        self._num_idle += cost
        if self._num_idle > _MAX_IDLE_FRAMES:
            allowed = _MAX_IDLE_FRAMES + (sent_bytes - self._sent_before) // _SENT_BYTES_A_FRAME
            if self._num_idle > allowed:
                raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that bring nothing")

    def count_reset(self) -> None:
        """A stream was reset, by the peer or for its error. Raises: Http2Error (ENHANCE_YOUR_CALM)."""
        self._num_resets += 1
        if self._max_resets is not None and self._num_resets > self._max_resets:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many streams are broken off")

    def tick(self, sent_bytes: int) -> None:
        """Called about once a second."""
        self._num_idle = 0
        self._sent_before = sent_bytes
        self._num_resets = max(0, self._num_resets - max(1, (self._max_resets or 0) // 20))


# Streams that this side has reset, which the peer may not know yet.
_REMEMBERED_RESETS = 1024


class ConnectionState(Channel):
    """What the readers of frames and the streams share; the channel of its streams."""

    __slots__ = (
        "_resets",
        "_resets_in_order",
        "decoder",
        "failed",
        "flood_guard",
        "granted",
        "is_client",
        "is_leaving",
        "last_id",
        "last_taken",
        "limits",
        "next_id",
        "owed",
        "peer_goaway",
        "peer_max_streams",
        "peer_window",
        "streams",
        "window",
    )

    def __init__(
        self, owner: ConnectionOwner, limits: Http2Limits, *, is_client: bool, own_names: OwnNames | None = None
    ) -> None:
        self.owner = owner
        self.limits = limits
        self.is_client = is_client
        self.out: list[bytes] = []
        self.streams: dict[int, Stream] = {}
        self.waiting: dict[Stream, None] = {}
        self.encoder = FieldEncoder()
        self.decoder = FieldDecoder(limits.max_header_bytes, own_names)
        self.is_blocked = False
        self.is_leaving = False  # this side, or the peer, opens no new streams
        self.failed: Http2Error | None = None
        self.peer_goaway: tuple[int, bytes] | None = None  # the code and debug data of the peer's last one
        # The peer's limits
        self.send_window = frames.DEFAULT_WINDOW
        self.granted = frames.DEFAULT_WINDOW  # the sum of the connection's window so far
        self.send_frame_bytes = frames.MIN_MAX_FRAME_BYTES
        self.peer_max_streams = frames.MAX_WINDOW
        self.peer_window = frames.DEFAULT_WINDOW
        # What the peer may send
        self.window = max(limits.window_bytes, frames.DEFAULT_WINDOW)  # the default holds until SETTINGS arrives
        self.owed = 0  # of the connection's window
        self.flood_guard = FloodGuard(None if is_client else limits.max_resets)  # engines may reset any number
        self.last_id = 0  # the last stream that the peer opened
        self.last_taken: int | None = None  # the last of these that is served, after GOAWAY
        self.next_id = 1 if is_client else 2
        self._resets: set[int] = set()
        self._resets_in_order: deque[int] = deque()

    # Called by its streams

    def emit(self, data: bytes) -> None:
        out = self.out
        out.append(data)
        if len(out) == 1:
            self.owner.has_output()

    def stream_ended(self, stream: Stream) -> None:
        # The receiver mostly refers to the stream: a cycle that only the garbage collector would free.
        stream.receiver = NO_RECEIVER
        if self.streams.pop(stream.id, None) is not None:
            self.owner.stream_closed()

    def drop(self, stream: Stream, code: ErrorCode) -> None:
        stream.receiver = NO_RECEIVER
        if self.streams.pop(stream.id, None) is not None:
            self._send_reset(stream.id, code)
            self.owner.stream_closed()

    def unblock(self) -> None:
        """The transport takes output again: waiting streams send a frame each, in turns."""
        self.is_blocked = False
        while self.waiting and self.send_window > 0 and not self.is_blocked:
            stream = next(iter(self.waiting))
            del self.waiting[stream]
            if stream.push_frame() and stream.is_waiting:
                self.waiting[stream] = None

    # Ends

    def fail(self, error: Http2Error) -> None:
        """End the connection with GOAWAY and all its streams."""
        if self.failed is None:
            self.failed = error
            last = self.last_id if self.last_taken is None else self.last_taken
            self.emit(frames.goaway(last, error.code, error.message.encode()[:256]))
            self.lose(error.message)

    def lose(self, why: str) -> None:
        """The connection is gone."""
        self.is_leaving = True
        streams, self.streams = self.streams, {}
        self.notify_reset(list(streams.values()), ErrorCode.INTERNAL_ERROR, why)

    def end(self, stream_id: int, code: int, why: str) -> None:
        """A stream is over before its end, where there is one."""
        stream = self.streams.pop(stream_id, None)
        if stream is not None:
            self.notify_reset([stream], code, why)
            self.owner.stream_closed()

    def notify_reset(self, streams: list[Stream], code: int, why: str) -> None:
        """Stop streams that are out of the table, then notify their receivers."""
        for stream in streams:
            stream.stop()
        for stream in streams:
            receiver, stream.receiver = stream.receiver, NO_RECEIVER
            receiver.stream_reset(stream, code, why)

    # Errors of the peer

    def fault(self, stream_id: int, code: ErrorCode, why: str) -> None:
        """End one stream for an error of the peer. Raises: Http2Error where it does so too often."""
        if code == ErrorCode.REFUSED_STREAM:
            self.count_idle_frame()
        else:
            self.flood_guard.count_reset()
        self._send_reset(stream_id, code)
        self.end(stream_id, code, why)

    def count_idle_frame(self, cost: int = 1) -> None:
        """The peer sent a frame without a message. Raises: Http2Error where it does so too often."""
        self.flood_guard.count_idle_frame(self.granted - self.send_window, cost)

    def is_ours(self, stream_id: int) -> bool:
        return bool(stream_id & 1) is self.is_client

    def refuse_idle(self, stream_id: int, kind: str) -> None:
        """Refuse a frame of a stream that was never opened. Raises: Http2Error."""
        opened = self.next_id - 2 if self.is_ours(stream_id) else self.last_id
        if not stream_id or stream_id > opened:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"{kind} on stream {stream_id}, which is not open")

    def refuse_closed(self, stream_id: int, kind: str) -> None:
        """A frame of a stream that is over: ignored where the peer may not know yet, else an error of the connection.
        Raises: Http2Error."""
        self.refuse_idle(stream_id, kind)
        is_untaken = self.last_taken is not None and stream_id > self.last_taken and not self.is_ours(stream_id)
        if not is_untaken and stream_id not in self._resets:
            raise Http2Error(ErrorCode.STREAM_CLOSED, f"{kind} on stream {stream_id}, which is closed")
        self.count_idle_frame()

    def _send_reset(self, stream_id: int, code: ErrorCode) -> None:
        self.emit(frames.rst_stream(stream_id, code))
        if stream_id not in self._resets:
            self._resets.add(stream_id)
            self._resets_in_order.append(stream_id)
            if len(self._resets_in_order) > _REMEMBERED_RESETS:
                self._resets.discard(self._resets_in_order.popleft())

"""A connection's streams, windows and limits, and how errors end them (RFC 9113 sections 5.1, 5.4, 10.5)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from gateway.wire.http2 import frames
from gateway.wire.http2.field_decoder import FieldDecoder
from gateway.wire.http2.fields import Block
from gateway.wire.http2.frames import ErrorCode, Http2Error
from gateway.wire.http2.hpack import FieldEncoder
from gateway.wire.http2.stream import Stream


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """What the peer may use up."""

    max_streams: int = 1000  # at the same time
    window_bytes: int = 256 * 1024  # what may come on one stream before somebody has taken it
    max_frame_bytes: int = 64 * 1024
    max_header_bytes: int = 64 * 1024
    max_resets: int = 2000  # streams broken off in a burst; a twentieth of it each second for good (CVE-2023-44487)


class ConnectionOwner(Protocol):
    """Whoever has the socket."""

    def stream_opened(self, stream: Stream, block: Block, ended: bool) -> None:
        """The peer asks something: a server sets the stream's receiver."""
        ...

    def stream_closed(self) -> None:
        """There is room for one more stream."""
        ...

    def settings_changed(self) -> None:
        """The peer has told how many streams it takes, for the first time or anew."""
        ...

    def peer_is_leaving(self) -> None:
        """The peer takes no new streams (GOAWAY)."""
        ...

    def has_output(self) -> None:
        """`out` is no longer empty."""
        ...

    def has_relayed(self) -> None:
        """See `Outlet`."""
        ...


class NullOwner:
    """The receiver of streams that nobody has taken yet."""

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None: ...

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None: ...

    def trailers_received(self, stream: Stream, block: Block) -> None: ...

    def stream_reset(self, stream: Stream, code: int, why: str) -> None: ...

    def drained(self, stream: Stream) -> None: ...


NOBODY = NullOwner()


# Frames that ask for work and bring nothing; counted anew each second.
_MAX_IDLE_FRAMES = 10_000
# Who reads much has much to acknowledge, a message on its stream and again on the connection: one more frame for each
# so many bytes of data sent to it, since the smallest message has five.
_SENT_BYTES_A_FRAME = 2
# A change of settings goes through all streams.
SETTINGS_COST = 20


class FloodGuard:
    """Counts what costs this side more than the peer, and forgets it by and by."""

    __slots__ = ("_max_resets", "_num_idle", "_num_resets", "_sent_before")

    def __init__(self, max_resets: int | None) -> None:
        """`max_resets` None: the peer may break off what it likes."""
        self._max_resets = max_resets
        self._num_idle = 0
        self._num_resets = 0
        self._sent_before = 0

    def __repr__(self) -> str:
        return f"<FloodGuard {self._num_idle} idle frames, {self._num_resets} resets>"

    def count_idle_frame(self, sent_bytes: int, cost: int = 1) -> None:
        """The peer sent a frame that brings nothing; `sent_bytes` is all the data that it was ever sent.

        Raises: Http2Error (ENHANCE_YOUR_CALM).
        """
        self._num_idle += cost
        if self._num_idle > _MAX_IDLE_FRAMES:
            allowed = _MAX_IDLE_FRAMES + (sent_bytes - self._sent_before) // _SENT_BYTES_A_FRAME
            if self._num_idle > allowed:
                raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that bring nothing")

    def count_reset(self) -> None:
        """A stream was broken off, by the peer or for what it did wrong.

        Raises: Http2Error (ENHANCE_YOUR_CALM).
        """
        self._num_resets += 1
        if self._max_resets is not None and self._num_resets > self._max_resets:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many streams are broken off")

    def tick(self, sent_bytes: int) -> None:
        """Called about once a second."""
        self._num_idle = 0
        self._sent_before = sent_bytes
        self._num_resets = max(0, self._num_resets - max(1, (self._max_resets or 0) // 20))


# Streams this side has reset, of which the peer may not know yet.
_REMEMBERED_RESETS = 1024


class ConnectionState:
    """What the readers of frames and the streams share; the channel of its streams."""

    __slots__ = (
        "_resets",
        "_resets_in_order",
        "decoder",
        "encoder",
        "failed",
        "granted",
        "is_blocked",
        "is_client",
        "is_leaving",
        "last_id",
        "last_taken",
        "limits",
        "next_id",
        "out",
        "owed",
        "owner",
        "patience",
        "peer_max_streams",
        "peer_window",
        "send_frame_bytes",
        "send_window",
        "streams",
        "waiting",
        "window",
    )

    def __init__(
        self, owner: ConnectionOwner, limits: Http2Limits, *, is_client: bool, volatile: frozenset[bytes] = frozenset()
    ) -> None:
        self.owner = owner
        self.limits = limits
        self.is_client = is_client
        self.out: list[bytes] = []
        self.streams: dict[int, Stream] = {}
        self.waiting: dict[Stream, None] = {}
        self.encoder = FieldEncoder()
        self.decoder = FieldDecoder(limits.max_header_bytes, volatile)
        self.is_blocked = False
        self.is_leaving = False  # this side, or the peer, opens no new streams
        self.failed: Http2Error | None = None
        # What the peer told of itself
        self.send_window = frames.DEFAULT_WINDOW
        self.granted = frames.DEFAULT_WINDOW  # all that the connection's window ever had
        self.send_frame_bytes = frames.MIN_MAX_FRAME_BYTES
        self.peer_max_streams = frames.MAX_WINDOW
        self.peer_window = frames.DEFAULT_WINDOW
        # What the peer may send
        self.window = max(limits.window_bytes, frames.DEFAULT_WINDOW)  # no less may come before SETTINGS has arrived
        self.owed = 0  # of the connection's window
        self.patience = FloodGuard(None if is_client else limits.max_resets)  # an engine breaks off what it likes
        self.last_id = 0  # the last stream that the peer opened
        self.last_taken: int | None = None  # the last of these that is served, once GOAWAY told so
        self.next_id = 1 if is_client else 2
        self._resets: set[int] = set()
        self._resets_in_order: deque[int] = deque()

    def __repr__(self) -> str:
        side = "client" if self.is_client else "server"
        leaving = ", leaving" if self.is_leaving else ""
        return f"<{type(self).__name__} {side}, {len(self.streams)} streams{leaving}>"

    # What its streams ask of it

    def emit(self, data: bytes) -> None:
        out = self.out
        out.append(data)
        if len(out) == 1:
            self.owner.has_output()

    def stream_ended(self, stream: Stream) -> None:
        # Whoever received it mostly has it, too: a circle that would be left to the garbage collector.
        stream.receiver = NOBODY
        if self.streams.pop(stream.id, None) is not None:
            self.owner.stream_closed()

    def drop(self, stream: Stream, code: ErrorCode) -> None:
        stream.receiver = NOBODY
        if self.streams.pop(stream.id, None) is not None:
            self._send_reset(stream.id, code)
            self.owner.stream_closed()

    def unblock(self) -> None:
        """Bytes are carried again: streams that wait send a frame each, in turns."""
        self.is_blocked = False
        while self.waiting and self.send_window > 0 and not self.is_blocked:
            stream = next(iter(self.waiting))
            del self.waiting[stream]
            if stream.push_frame() and stream.is_waiting:
                self.waiting[stream] = None

    # Ends

    def fail(self, error: Http2Error) -> None:
        """End the connection: the peer is told why, and every stream is over."""
        if self.failed is None:
            self.failed = error
            last = self.last_id if self.last_taken is None else self.last_taken
            self.emit(frames.goaway(last, error.code, error.message.encode()[:256]))
            self.lose(error.message)

    def lose(self, why: str) -> None:
        """The connection is gone."""
        self.is_leaving = True
        streams, self.streams = self.streams, {}
        self.tell(list(streams.values()), ErrorCode.INTERNAL_ERROR, why)

    def end(self, stream_id: int, code: int, why: str) -> None:
        """A stream is over before its end, where there is one."""
        stream = self.streams.pop(stream_id, None)
        if stream is not None:
            self.tell([stream], code, why)
            self.owner.stream_closed()

    def tell(self, streams: list[Stream], code: int, why: str) -> None:
        """Streams that are out of the table are over: first all of them, then their receivers hear of it."""
        for stream in streams:
            stream.stop()
        for stream in streams:
            receiver, stream.receiver = stream.receiver, NOBODY
            receiver.stream_reset(stream, code, why)

    # What the peer does wrong

    def fault(self, stream_id: int, code: ErrorCode, why: str) -> None:
        """End one stream for what the peer did wrong on it.

        Raises: Http2Error where it did too much of it.
        """
        if code == ErrorCode.REFUSED_STREAM:
            self.count_idle_frame()
        else:
            self.patience.count_reset()
        self._send_reset(stream_id, code)
        self.end(stream_id, code, why)

    def count_idle_frame(self, cost: int = 1) -> None:
        """The peer sent what brings nothing.

        Raises: Http2Error where it did too much of it.
        """
        self.patience.count_idle_frame(self.granted - self.send_window, cost)

    def is_ours(self, stream_id: int) -> bool:
        return bool(stream_id & 1) is self.is_client

    def refuse_idle(self, stream_id: int, kind: str) -> None:
        """Refuse a frame of a stream that was never opened.

        Raises: Http2Error.
        """
        opened = self.next_id - 2 if self.is_ours(stream_id) else self.last_id
        if not stream_id or stream_id > opened:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"{kind} on stream {stream_id}, which is not open")

    def refuse_closed(self, stream_id: int, kind: str) -> None:
        """A frame of a stream that is over: ignored where the peer may not know, else an error of the connection.

        Raises: Http2Error.
        """
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

"""One stream: what may be sent, what waits for the window, what the peer may send (RFC 9113 sections 5.1, 5.2)."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from gateway.wire.http2 import frames
from gateway.wire.http2.fields import Block
from gateway.wire.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS, ErrorCode, long_headers, pack_head
from gateway.wire.http2.hpack import CachedHeaders, FieldEncoder
from gateway.wire.http2.peer_state import ENDED, SILENT

# Up to here, copying a payload behind its head is cheaper than a piece of its own.
JOIN_BYTES = 4096


_HEADERS_AND_END = END_HEADERS | END_STREAM
# Shared by streams without waiting data; never modified.
_NOTHING: deque[bytes] = deque()


class StreamReceiver(Protocol):
    """Receives a stream. After `trailers_received` or `ended` only `stream_reset` may follow, while this side still
    sends; after that, nothing."""

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None:
        """The reply's fields; only where the stream was opened by this side."""
        ...

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        """Some of the body, split anywhere. `Stream.credit` returns the window of what is consumed."""
        ...

    def trailers_received(self, stream: Stream, block: Block) -> None: ...

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        """The stream is over before its end: the peer reset it, broke a rule, or the connection is gone."""
        ...

    def drained(self, stream: Stream) -> None:
        """All data that waited for the peer's window is sent."""
        ...


class WholeReplyReceiver(StreamReceiver, Protocol):
    """Receives the reply of a stream that `takes_whole_reply`: at once where it is there at once, else as others."""

    def reply_received(self, stream: Stream, block: Block, data: bytes, trailers: Block) -> None:
        """What `headers_received`, `data_received` and `trailers_received` do, one after another."""
        ...


class ConnectionOwner(Protocol):
    """The transport of a connection."""

    def stream_opened(self, stream: Stream, block: Block, ended: bool) -> None:
        """The peer has sent a request: a server sets the stream's receiver."""
        ...

    def stream_closed(self) -> None:
        """There is room for one more stream."""
        ...

    def settings_changed(self) -> None:
        """The peer's SETTINGS have come: the first, or a change."""
        ...

    def peer_is_leaving(self) -> None:
        """The peer takes no new streams (GOAWAY)."""
        ...

    def has_output(self) -> None:
        """`out` is no longer empty."""
        ...

    def has_relayed(self) -> None:
        """The same, by a message that is relayed while it is read: no more output follows soon."""
        ...


class Channel:
    """The connection, as its streams see it: a class and no protocol, since compiled code reads its attributes by their
    place, and those of a protocol by their names."""

    __slots__ = ("encoder", "is_blocked", "out", "owner", "send_frame_bytes", "send_window", "waiting")

    encoder: FieldEncoder
    is_blocked: bool  # the transport takes no more for now
    out: list[bytes]  # the output to write
    owner: ConnectionOwner
    send_frame_bytes: int  # the longest frame that the peer takes
    send_window: int
    waiting: dict[Stream, None]  # streams whose data waits for the connection, in the order of their turns

    def emit(self, data: bytes) -> None:
        raise NotImplementedError

    def stream_ended(self, stream: Stream) -> None:
        """Both sides have sent all."""
        raise NotImplementedError

    def drop(self, stream: Stream, code: ErrorCode) -> None:
        """This side ends the stream before its end."""
        raise NotImplementedError


class Stream:
    """Created by its connection. `send_...` never block: data that exceeds the windows waits here, and `drained`
    follows when it is sent; large senders check `is_waiting` first. On a stream that is over they do nothing."""

    __slots__ = (
        "_is_late",
        "_num_pushed",
        "_owed",
        "_sends_end",
        "_trailers",
        "channel",
        "expected_bytes",
        "id",
        "is_sent",
        "note",
        "num_waiting",
        "peer_state",
        "receive_window",
        "receiver",
        "send_window",
        "takes_whole_reply",
        "waiting",
        "window_bytes",
    )

    def __init__(
        self, channel: Channel, stream_id: int, receiver: StreamReceiver, send_window: int, window_bytes: int
    ) -> None:
        self.channel = channel
        self.id = stream_id
        self.receiver = receiver
        self.send_window = send_window
        self.window_bytes = window_bytes  # the whole of what the peer may send before it is given back
        self.receive_window = window_bytes
        self.expected_bytes: int | None = None  # still to come by the content-length; None without one
        self.peer_state = SILENT
        self.takes_whole_reply = False  # its receiver is a `WholeReplyReceiver`
        self.note: Any = None  # what the owner of the connection knows of the request
        self.is_sent = False  # all that this side sends, or the stream is over
        self.num_waiting = 0  # bytes
        self._owed = 0  # received, done with, and not yet given back
        self.waiting = _NOTHING  # data that the windows do not allow yet
        self._num_pushed = 0  # bytes of the first piece that waits
        self._is_late = False  # a sender has been left waiting: `drained` is due
        self._sends_end = False
        self._trailers: tuple[CachedHeaders, bytes] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether data waits for a window."""
        return bool(self.waiting)

    def send_headers(self, steady: CachedHeaders, passing: bytes = b"", *, ended: bool = False) -> None:
        """Send the first fields; see `FieldEncoder.encode`."""
        if self.is_sent:
            return
        channel = self.channel
        block = channel.encoder.encode(steady, passing)
        size = len(block)
        if size <= channel.send_frame_bytes:
            channel.emit(pack_head(size << 8 | HEADERS, _HEADERS_AND_END if ended else END_HEADERS, self.id) + block)
        else:
            channel.emit(long_headers(self.id, block, ended=ended, max_frame_bytes=channel.send_frame_bytes))
        if ended:
            self._sent()

    def send_data(self, data: bytes, ended: bool = False) -> None:
        """Send some of the body."""
        channel = self.channel
        size = len(data)
        if (
            0 < size <= self.send_window
            and size <= channel.send_window
            and size <= channel.send_frame_bytes
            and not self.waiting
            and not channel.is_blocked
            and not self.is_sent
        ):
            self.send_window -= size
            channel.send_window -= size
            head = pack_head(size << 8 | DATA, END_STREAM if ended else 0, self.id)
            if size <= JOIN_BYTES:
                out = channel.out
                out.append(head + data)
                if len(out) == 1:  # as `emit` does: a call less for each message
                    channel.owner.has_output()
            else:
                channel.emit(head)
                channel.emit(data)
            if ended:
                self._sent()
        elif (
            ended
            and not size
            and self.send_window >= 0
            and not self.waiting
            and not channel.is_blocked
            and not self.is_sent
        ):
            channel.emit(pack_head(DATA, END_STREAM, self.id))
            self._sent()
        elif not self.is_sent and (size or ended):
            self._send_later(data, ended)

    def send_whole(self, steady: CachedHeaders, passing: bytes, data: bytes) -> None:
        """Send fields and all data, and with that the end."""
        channel = self.channel
        size = len(data)
        if (
            0 < size <= JOIN_BYTES
            and size <= self.send_window
            and size <= channel.send_window
            and not channel.is_blocked
            and not self.is_sent
        ):
            self.send_window -= size
            channel.send_window -= size
            block = channel.encoder.encode(steady, passing)
            length, stream_id = len(block), self.id
            if length <= channel.send_frame_bytes:
                head = pack_head(length << 8 | HEADERS, END_HEADERS, stream_id)
                channel.emit(b"".join((head, block, pack_head(size << 8 | DATA, END_STREAM, stream_id), data)))
            else:
                channel.emit(long_headers(stream_id, block, ended=False, max_frame_bytes=channel.send_frame_bytes))
                channel.emit(pack_head(size << 8 | DATA, END_STREAM, stream_id) + data)
            self._sent()
        else:
            self.send_headers(steady, passing)
            self.send_data(data, True)

    def send_reply(self, steady: CachedHeaders, passing: bytes, data: bytes, trailers: CachedHeaders) -> None:
        """Send fields, all data, and trailers."""
        channel = self.channel
        size = len(data)
        if (
            0 < size <= JOIN_BYTES
            and size <= self.send_window
            and size <= channel.send_window
            and not self.waiting
            and not channel.is_blocked
            and not self.is_sent
        ):
            block, last = channel.encoder.encode(steady, passing), channel.encoder.encode(trailers)
            length, last_length, stream_id = len(block), len(last), self.id
            self.send_window -= size
            channel.send_window -= size
            longest = channel.send_frame_bytes
            if length <= longest and last_length <= longest:
                head = pack_head(length << 8 | HEADERS, END_HEADERS, stream_id)
                middle = pack_head(size << 8 | DATA, 0, stream_id)
                end = pack_head(last_length << 8 | HEADERS, _HEADERS_AND_END, stream_id)
                channel.emit(b"".join((head, block, middle, data, end, last)))
            else:
                channel.emit(long_headers(stream_id, block, ended=False, max_frame_bytes=longest))
                channel.emit(pack_head(size << 8 | DATA, 0, stream_id) + data)
                channel.emit(long_headers(stream_id, last, ended=True, max_frame_bytes=longest))
            self._sent()
        else:
            self.send_headers(steady, passing)
            self.send_data(data)
            self.send_trailers(trailers)

    def send_trailers(self, steady: CachedHeaders, passing: bytes = b"") -> None:
        """Send the last fields, after all data."""
        if self.waiting:
            self._trailers = (steady, passing)
        else:
            self.send_headers(steady, passing, ended=True)

    def push(self) -> None:
        """Send what waits, as far as the windows go."""
        while self.waiting and self.push_frame():
            pass

    def push_frame(self) -> bool:
        """Send one frame of what waits; False where nothing may be sent now."""
        channel, waiting = self.channel, self.waiting
        room = min(self.send_window, channel.send_window, channel.send_frame_bytes)
        # An end without data needs no window; yet peers (h2) refuse one when theirs is below nothing.
        if room <= 0 or channel.is_blocked if waiting[0] else self.send_window < 0:
            if self.send_window > 0:  # else it waits for its own window, not for its turn on the connection
                channel.waiting[self] = None
            return False
        start = self._num_pushed
        piece = waiting[0][start : start + room]
        size = len(piece)
        if start + size == len(waiting[0]):
            waiting.popleft()
            self._num_pushed = 0
        else:
            self._num_pushed += size
        self.num_waiting -= size
        self.send_window -= size
        channel.send_window -= size
        ended = self._sends_end and not waiting
        channel.emit(pack_head(size << 8 | DATA, END_STREAM if ended else 0, self.id))
        channel.emit(piece)
        if not waiting:
            self._all_pushed(ended)
        return True

    def reset(self, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """End the stream early; the receiver is not notified."""
        self.stop()
        self.channel.drop(self, code)

    def stop(self) -> None:
        """It is over: what is sent on it from now on is dropped."""
        self.is_sent = True
        self.peer_state = ENDED
        self.waiting = _NOTHING
        self._trailers = None
        self.num_waiting = 0
        self.channel.waiting.pop(self, None)

    def credit(self, size: int) -> None:
        """`size` bytes of the body are consumed: the peer may send as many more."""
        self._owed += size
        if self._owed * 2 >= self.window_bytes and self.peer_state is not ENDED:
            self.receive_window += self._owed
            self.channel.emit(frames.window_update(self.id, self._owed))
            self._owed = 0

    def _send_later(self, data: bytes, ended: bool) -> None:
        self._sends_end = ended
        if data or not self.waiting:
            if self.waiting is _NOTHING:
                self.waiting = deque()
            self.waiting.append(data)
            self.num_waiting += len(data)
            self.push()
            self._is_late = bool(self.waiting)

    def _all_pushed(self, ended: bool) -> None:
        receiver = self.receiver  # the end of the stream drops it
        self.channel.waiting.pop(self, None)
        if ended:
            self._sent()
        elif self._trailers is not None:
            (steady, passing), self._trailers = self._trailers, None
            self.send_headers(steady, passing, ended=True)
        if self._is_late:
            self._is_late = False
            receiver.drained(self)

    def _sent(self) -> None:
        self.is_sent = True
        if self.peer_state is ENDED:
            self.channel.stream_ended(self)

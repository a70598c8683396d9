"""One stream: what may be sent, what waits for the window, what the peer may send (RFC 9113 sections 5.1, 5.2)."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from gateway.wire.http2 import frames
from gateway.wire.http2.fields import Block
from gateway.wire.http2.frames import DATA, END_STREAM, HEAD, ErrorCode
from gateway.wire.http2.hpack import FieldEncoder, Steady

# Up to here, copying a payload behind its head is cheaper than a piece of its own.
_JOIN_BYTES = 4096


class Receiver(Protocol):
    """Whoever a stream is for. After `trailers_received`, an `ended`, or `stream_reset` no more comes."""

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None:
        """The reply's fields; only where the stream was opened by this side."""
        ...

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        """Some of the body, cut anywhere. What is done with gives its window back by `Stream.credit`."""
        ...

    def trailers_received(self, stream: Stream, block: Block) -> None: ...

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        """The stream is over before its end: the peer reset it, broke a rule, or the connection is gone."""
        ...

    def drained(self, stream: Stream) -> None:
        """What had waited for the peer's window is sent."""
        ...


class Channel(Protocol):
    """The connection, as its streams see it."""

    encoder: FieldEncoder
    is_blocked: bool  # whoever carries the bytes takes no more for now
    send_window: int
    send_frame_bytes: int  # how long a frame the peer takes
    waiting: dict[Stream, None]  # streams whose data waits for the connection, in the order of their turns

    def emit(self, data: bytes) -> None: ...

    def stream_ended(self, stream: Stream) -> None:
        """Both sides have sent all."""
        ...

    def drop(self, stream: Stream, code: ErrorCode) -> None:
        """This side ends the stream before its end."""
        ...


class Stream:
    """Made by its connection. `send_...` never block: what the windows do not allow waits here, and `drained` tells
    when it is gone; who sends much looks at `is_waiting` first."""

    __slots__ = (
        "_channel",
        "_num_waiting",
        "_owed",
        "_sends_end",
        "_trailers",
        "_waiting",
        "expected_bytes",
        "has_headers",
        "id",
        "is_received",
        "is_sent",
        "receive_window",
        "receiver",
        "send_window",
        "window_bytes",
    )

    def __init__(
        self, channel: Channel, stream_id: int, receiver: Receiver, send_window: int, window_bytes: int
    ) -> None:
        self._channel = channel
        self.id = stream_id
        self.receiver = receiver
        self.send_window = send_window
        self.window_bytes = window_bytes  # the whole of what the peer may send before it is given back
        self.receive_window = window_bytes
        self.expected_bytes = -1  # by its content-length; -1 where none was told
        self.has_headers = False  # the peer's first fields have come
        self.is_sent = False
        self.is_received = False
        self._owed = 0  # received, done with, and not yet given back
        self._waiting: deque[bytes] = deque()
        self._num_waiting = 0
        self._sends_end = False
        self._trailers: tuple[Steady, bytes] | None = None

    def __repr__(self) -> str:
        ends = ("sent " if self.is_sent else "") + ("received" if self.is_received else "")
        return f"<Stream {self.id} {ends or 'open'}, {self._num_waiting} bytes wait>"

    @property
    def is_waiting(self) -> bool:
        """Whether data waits for a window."""
        return bool(self._waiting)

    def send_headers(self, steady: Steady, passing: bytes = b"", *, ended: bool = False) -> None:
        """Send the first fields; see `FieldEncoder.encode`."""
        channel = self._channel
        block = channel.encoder.encode(steady, passing)
        channel.emit(frames.headers(self.id, block, ended=ended, max_frame_bytes=channel.send_frame_bytes))
        if ended:
            self._sent()

    def send_data(self, data: bytes, ended: bool = False) -> None:
        """Send some of the body."""
        channel = self._channel
        size = len(data)
        if (
            not self._waiting
            and size <= self.send_window
            and size <= channel.send_window
            and size <= channel.send_frame_bytes
            and not channel.is_blocked
        ):
            self.send_window -= size
            channel.send_window -= size
            head = HEAD.pack(size << 8 | DATA, END_STREAM if ended else 0, self.id)
            if size <= _JOIN_BYTES:
                channel.emit(head + data)
            else:
                channel.emit(head)
                channel.emit(data)
            if ended:
                self._sent()
            return
        if size or (ended and not self._waiting):
            self._waiting.append(data)
            self._num_waiting += size
        self._sends_end = ended
        self.push()

    def send_trailers(self, steady: Steady, passing: bytes = b"") -> None:
        """Send the last fields, after all data."""
        if self._waiting:
            self._trailers = (steady, passing)
        else:
            self.send_headers(steady, passing, ended=True)

    def push(self) -> None:
        """Send what waits, as far as the windows go."""
        channel = self._channel
        waiting = self._waiting
        while waiting and not channel.is_blocked:
            data = waiting[0]
            room = min(self.send_window, channel.send_window, channel.send_frame_bytes)
            size = len(data)
            if size > room:
                if room <= 0:
                    break
                piece, waiting[0] = data[:room], data[room:]
                size = room
            else:
                piece = data
                waiting.popleft()
            is_last = self._sends_end and not waiting
            self._num_waiting -= size
            self.send_window -= size
            channel.send_window -= size
            channel.emit(HEAD.pack(size << 8 | DATA, END_STREAM if is_last else 0, self.id))
            channel.emit(piece)
        if waiting:
            # A stream whose own window is shut waits for that; others for their turn on the connection.
            if self.send_window > 0 or not len(waiting[0]):
                channel.waiting[self] = None
            return
        channel.waiting.pop(self, None)
        if self._sends_end:
            self._sent()
        elif self._trailers is not None:
            (steady, passing), self._trailers = self._trailers, None
            self.send_headers(steady, passing, ended=True)
        self.receiver.drained(self)

    def reset(self, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """End it before its end; the receiver hears nothing of it."""
        self._waiting.clear()
        self._channel.waiting.pop(self, None)
        self._channel.drop(self, code)

    def credit(self, size: int) -> None:
        """`size` bytes of what came are done with: the peer may send as many more."""
        self._owed += size
        if self._owed * 2 >= self.window_bytes and not self.is_received:
            self.receive_window += self._owed
            self._channel.emit(frames.window_update(self.id, self._owed))
            self._owed = 0

    def _sent(self) -> None:
        self.is_sent = True
        if self.is_received:
            self._channel.stream_ended(self)

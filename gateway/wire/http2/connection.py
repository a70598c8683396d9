"""One side of an HTTP/2 connection: bytes in, calls to the streams' receivers; bytes out in `out` (RFC 9113)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.wire.http2 import frames
from gateway.wire.http2.fields import Block, reply_fault, request_fault, trailer_fault
from gateway.wire.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_MASK,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    ErrorCode,
    Http2Error,
    Setting,
)
from gateway.wire.http2.hpack import FieldDecoder, FieldEncoder
from gateway.wire.http2.stream import Receiver, Stream

# A connection's window would let one slow stream stop all others, so it is as good as open; each stream's own is small.
_CONNECTION_WINDOW = 1 << 30
_RETURN_AT = 1 << 20
# Frames that ask for work and bring nothing, before the peer is told to calm down; counted anew each second.
_MAX_IDLE_FRAMES = 10_000
# CONTINUATION frames of one block: a block of the longest allowed length needs far fewer.
_MAX_CONTINUATIONS = 64
# Streams this side has reset, of which the peer may not know yet.
_REMEMBERED_RESETS = 1024


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """What the peer may use up."""

    max_streams: int = 1000  # at the same time
    window_bytes: int = 256 * 1024  # what may come on one stream before somebody has taken it
    max_frame_bytes: int = 64 * 1024
    max_header_bytes: int = 64 * 1024
    max_resets: int = 2000  # streams broken off in a burst; a twentieth of it each second for good (CVE-2023-44487)


class Owner(Protocol):
    """Whoever has the socket."""

    def stream_opened(self, stream: Stream, block: Block, ended: bool) -> None:
        """The peer asks something: a server sets the stream's receiver."""
        ...

    def stream_closed(self) -> None:
        """There is room for one more stream."""
        ...

    def peer_is_leaving(self) -> None:
        """The peer takes no new streams (GOAWAY)."""
        ...

    def has_output(self) -> None:
        """`out` is no longer empty."""
        ...


class Nobody:
    """The receiver of streams that nobody has taken yet."""

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None: ...

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None: ...

    def trailers_received(self, stream: Stream, block: Block) -> None: ...

    def stream_reset(self, stream: Stream, code: int, why: str) -> None: ...

    def drained(self, stream: Stream) -> None: ...


NOBODY = Nobody()


class Http2Connection:
    """Frames of one connection, read and written. It never raises: what the peer does wrong is answered as the RFC
    says, and `failed` is set once the connection is over."""

    __slots__ = (
        "_awaits_preface",
        "_awaits_settings",
        "_block",
        "_block_count",
        "_block_flags",
        "_block_stream",
        "_buffer",
        "_decoder",
        "_idle_frames",
        "_last_taken",
        "_limits",
        "_num_resets",
        "_owed",
        "_owner",
        "_part",
        "_peer_window",
        "_resets",
        "_resets_in_order",
        "_window",
        "encoder",
        "failed",
        "is_blocked",
        "is_client",
        "is_leaving",
        "last_id",
        "next_id",
        "out",
        "peer_max_streams",
        "send_frame_bytes",
        "send_window",
        "streams",
        "waiting",
    )

    def __init__(self, owner: Owner, limits: Http2Limits, *, is_client: bool) -> None:
        self._owner = owner
        self._limits = limits
        self.is_client = is_client
        self.out: list[bytes] = []
        self.streams: dict[int, Stream] = {}
        self.waiting: dict[Stream, None] = {}
        self.encoder = FieldEncoder()
        self.is_blocked = False
        self.is_leaving = False  # this side, or the peer, opens no new streams
        self.failed: Http2Error | None = None
        # What the peer told of itself
        self.send_window = frames.DEFAULT_WINDOW
        self.send_frame_bytes = frames.MIN_MAX_FRAME_BYTES
        self.peer_max_streams = frames.MAX_WINDOW
        self._peer_window = frames.DEFAULT_WINDOW
        self._window = max(limits.window_bytes, frames.DEFAULT_WINDOW)  # no less may come before SETTINGS has arrived
        # Reading
        self._decoder = FieldDecoder(limits.max_header_bytes)
        self._buffer = b""
        self._awaits_preface = not is_client
        self._awaits_settings = True
        self._part: tuple[int, int, bool] | None = (
            None  # of a DATA frame under way: stream, bytes left, whether it ends
        )
        self._block: list[bytes] = []
        self._block_stream = 0
        self._block_flags = 0
        self._block_count = 0
        self._owed = 0
        self.last_id = 0  # the last stream that the peer opened
        self._last_taken: int | None = None  # the last of these that is served, once GOAWAY told so
        self.next_id = 1 if is_client else 2
        # Abuse
        self._idle_frames = 0
        self._num_resets = 0
        self._resets: set[int] = set()
        self._resets_in_order: deque[int] = deque()

    def __repr__(self) -> str:
        side = "client" if self.is_client else "server"
        return f"<Http2Connection {side}, {len(self.streams)} streams{', leaving' if self.is_leaving else ''}>"

    # What its owner asks of it

    def start(self) -> None:
        """Open the connection."""
        limits = self._limits
        told = {
            Setting.MAX_FRAME_SIZE: limits.max_frame_bytes,
            Setting.INITIAL_WINDOW_SIZE: self._window,
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
        return self._awaits_settings

    @property
    def can_open(self) -> bool:
        """Whether this side may open a stream now."""
        return len(self.streams) < self.peer_max_streams and not self.is_leaving and self.failed is None

    def open_stream(self, receiver: Receiver) -> Stream:
        """A new stream of this side; its headers must be the next thing sent."""
        stream = Stream(self, self.next_id, receiver, self._peer_window, self._window)
        self.streams[stream.id] = stream
        self.next_id += 2
        if self.next_id > STREAM_MASK - 2:
            self.is_leaving = True  # the numbers are used up
        return stream

    def feed(self, data: bytes) -> None:
        """Read what came; whatever follows from it has happened when this returns."""
        if self.failed is not None:
            return
        try:
            self._read(data)
        except Http2Error as error:
            if error.stream_id:
                raise AssertionError("errors of streams end in _fault") from error
            self.fail(error)

    def fail(self, error: Http2Error) -> None:
        """End the connection: the peer is told why, and every stream is over."""
        if self.failed is None:
            self.failed = error
            last = self.last_id if self._last_taken is None else self._last_taken
            self.emit(frames.goaway(last, error.code, error.message.encode()[:256]))
            self.lose(error.message)

    def lose(self, why: str) -> None:
        """The connection is gone."""
        self.is_leaving = True
        streams, self.streams = self.streams, {}
        self.waiting.clear()
        for stream in streams.values():
            stream.receiver.stream_reset(stream, ErrorCode.INTERNAL_ERROR, why)

    def leave(self, *, last_id: int | None = None) -> None:
        """Take no new streams; those under way go on. With the highest `last_id` first, streams already on their way
        are still taken, until it is called again (section 6.8)."""
        if self.failed is None:
            self._last_taken = None if last_id is not None else self.last_id
            self.is_leaving = True
            self.emit(frames.goaway(self.last_id if last_id is None else last_id, ErrorCode.NO_ERROR))

    def unblock(self) -> None:
        """Bytes are carried again: streams that wait send a frame's worth each, in turns."""
        self.is_blocked = False
        while self.waiting and self.send_window > 0 and not self.is_blocked:
            stream = next(iter(self.waiting))
            del self.waiting[stream]
            stream.push()

    def tick(self) -> None:
        """Called about once a second: what the peer has wasted is forgotten by and by."""
        self._idle_frames = 0
        self._num_resets = max(0, self._num_resets - max(1, self._limits.max_resets // 20))

    # What its streams ask of it

    def emit(self, data: bytes) -> None:
        out = self.out
        out.append(data)
        if len(out) == 1:
            self._owner.has_output()

    def stream_ended(self, stream: Stream) -> None:
        if self.streams.pop(stream.id, None) is not None:
            self._owner.stream_closed()

    def drop(self, stream: Stream, code: ErrorCode) -> None:
        if self.streams.pop(stream.id, None) is None:
            return
        self._remember_reset(stream.id)
        self.emit(frames.rst_stream(stream.id, code))
        self._owner.stream_closed()

    def _remember_reset(self, stream_id: int) -> None:
        self._resets.add(stream_id)
        self._resets_in_order.append(stream_id)
        if len(self._resets_in_order) > _REMEMBERED_RESETS:
            self._resets.discard(self._resets_in_order.popleft())

    # Reading frames

    def _read(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        at = 0
        end = len(data)
        if self._awaits_preface:
            if end < len(PREFACE):
                if not PREFACE.startswith(data):
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the connection does not start with HTTP/2's preface")
                self._buffer = data
                return
            if not data.startswith(PREFACE):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the connection does not start with HTTP/2's preface")
            self._awaits_preface = False
            at = len(PREFACE)
        if self._part is not None:
            at = self._read_part(data, at, end)
        limit = self._limits.max_frame_bytes
        while end - at >= HEAD_BYTES:
            kind, flags, stream_id = HEAD.unpack_from(data, at)
            length = kind >> 8
            kind &= 0xFF
            stream_id &= STREAM_MASK
            if length > limit:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"a frame is longer than {limit} bytes")
            start = at + HEAD_BYTES
            stop = start + length
            if kind == DATA and not self._awaits_settings and not self._block_stream:
                if stop <= end:
                    payload = data[start:stop]
                    size = length
                    if flags & PADDED:
                        payload = _without_padding(payload)
                    self._take_data(stream_id, payload, size, bool(flags & END_STREAM))
                elif flags & PADDED:
                    break
                else:  # no need to wait for the rest of it
                    self._part = (stream_id, length, bool(flags & END_STREAM))
                    at = self._read_part(data, start, end)
                    break
            elif stop > end:
                break
            else:
                self._read_frame(kind, flags, stream_id, data[start:stop])
            at = stop
        if at < end:
            self._buffer = data[at:] if at else data

    def _read_part(self, data: bytes, at: int, end: int) -> int:
        """Some more of a DATA frame; returns where it stops."""
        assert self._part is not None
        stream_id, left, ended = self._part
        size = min(left, end - at)
        if size == left:
            self._part = None
            self._take_data(stream_id, data[at : at + size], size, ended)
        elif size:
            self._part = (stream_id, left - size, ended)
            self._take_data(stream_id, data[at : at + size], size, False)
        return at + size

    def _read_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._awaits_settings:
            if kind != SETTINGS or flags & ACK:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._awaits_settings = False
        if self._block_stream and (kind != CONTINUATION or stream_id != self._block_stream):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a frame stands in the middle of a header block")
        read = _READERS.get(kind)
        if read is None:  # an extension: ignored (section 5.5)
            self._count_idle_frame()
        else:
            read(self, flags, stream_id, payload)

    def _read_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "HEADERS on stream 0")
        if flags & PADDED:
            payload = _without_padding(payload)
        if flags & WITH_PRIORITY:
            if len(payload) < 5:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "HEADERS is too short for its priority")
            payload = payload[5:]
        if flags & END_HEADERS:
            self._take_block(stream_id, payload, bool(flags & END_STREAM))
            return
        self._block_stream, self._block_flags, self._block_count = stream_id, flags, 0
        self._block = [payload]

    def _read_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not self._block_stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._block.append(payload)
        self._block_count += 1
        size = sum(map(len, self._block)) if self._block_count <= _MAX_CONTINUATIONS else 0
        if self._block_count > _MAX_CONTINUATIONS or size > self._limits.max_header_bytes:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "the header fields are too long")
        if flags & END_HEADERS:
            self._block_stream = 0
            self._take_block(stream_id, b"".join(self._block), bool(self._block_flags & END_STREAM))
            self._block = []

    def _read_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if len(payload) != 5:
            self._fault(stream_id, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY has not 5 bytes")
        self._count_idle_frame()

    def _read_rst_stream(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM has not 4 bytes")
        self._refuse_idle(stream_id, "RST_STREAM")
        self._count_reset()
        stream = self.streams.pop(stream_id, None)
        if stream is not None:
            self.waiting.pop(stream, None)
            stream.receiver.stream_reset(stream, frames.read_u32(payload), "the stream was reset")
            self._owner.stream_closed()

    def _read_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & ACK:
            if payload:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS has a payload")
            return
        self._count_idle_frame()
        for key, value in frames.read_settings(payload):
            if key == Setting.INITIAL_WINDOW_SIZE:
                self._resize_windows(value)
            elif key == Setting.MAX_FRAME_SIZE:
                if not frames.MIN_MAX_FRAME_BYTES <= value <= frames.MAX_MAX_FRAME_BYTES:
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE cannot be {value}")
                self.send_frame_bytes = value
            elif key == Setting.MAX_CONCURRENT_STREAMS:
                self.peer_max_streams = value
            elif key == Setting.HEADER_TABLE_SIZE:
                self.encoder.resize(value)
            elif key == Setting.ENABLE_PUSH and (value > 1 or (value == 1 and self.is_client)):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH cannot be {value}")
        self.emit(frames.frame(SETTINGS, ACK, 0))
        self.unblock_windows()

    def _resize_windows(self, value: int) -> None:
        if value > frames.MAX_WINDOW:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE cannot be {value}")
        more, self._peer_window = value - self._peer_window, value
        for stream in self.streams.values():
            stream.send_window += more
            if stream.send_window > frames.MAX_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window overflows by SETTINGS")

    def unblock_windows(self) -> None:
        """Windows have grown: send what fits by now."""
        for stream in [stream for stream in self.streams.values() if stream.is_waiting]:
            stream.push()

    def _read_push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE, which is not allowed here")

    def _read_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "PING has not 8 bytes")
        if not flags & ACK:
            self._count_idle_frame()
            self.emit(frames.frame(PING, ACK, 0, payload))

    def _read_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY has less than 8 bytes")
        self._count_idle_frame()
        self.is_leaving = True
        last = frames.read_u32(payload) & STREAM_MASK
        # What it has not taken up it never will: whoever asked may ask elsewhere.
        for stream in [stream for stream in self.streams.values() if stream.id > last and self._is_ours(stream.id)]:
            del self.streams[stream.id]
            self.waiting.pop(stream, None)
            stream.receiver.stream_reset(stream, ErrorCode.REFUSED_STREAM, "the peer is going away")
        self._owner.peer_is_leaving()

    def _read_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE has not 4 bytes")
        increment = frames.read_u32(payload) & frames.MAX_WINDOW
        if not stream_id:
            if not increment:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
            self.send_window += increment
            if self.send_window > frames.MAX_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window overflows")
            if self.waiting and not self.is_blocked:
                self.unblock()
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            self._refuse_idle(stream_id, "WINDOW_UPDATE")
            return
        if not increment:
            self._fault(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
            return
        stream.send_window += increment
        if stream.send_window > frames.MAX_WINDOW:
            self._fault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "the stream's window overflows")
        elif stream.is_waiting:
            stream.push()

    # Taking what frames carry

    def _take_data(self, stream_id: int, data: bytes, size: int, ended: bool) -> None:
        """`size` counts the padding too."""
        if not stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "DATA on stream 0")
        self._owed += size
        if self._owed >= _RETURN_AT:
            self.emit(frames.window_update(0, self._owed))
            self._owed = 0
        stream = self.streams.get(stream_id)
        if stream is None or stream.is_received:
            self._refuse_closed(stream_id, "DATA")
            return
        stream.receive_window -= size
        if stream.receive_window < 0:
            self._fault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "more came than the stream's window allows")
            return
        if not stream.has_headers:
            self._fault(stream_id, ErrorCode.PROTOCOL_ERROR, "DATA before the header fields")
            return
        if size != len(data):
            stream.credit(size - len(data))
        if stream.expected_bytes >= 0:
            stream.expected_bytes -= len(data)
            if stream.expected_bytes < 0 or (ended and stream.expected_bytes):
                self._fault(
                    stream_id, ErrorCode.PROTOCOL_ERROR, "the body has not the length that content-length tells"
                )
                return
        if not data and not ended:
            self._count_idle_frame()
            return
        if ended:
            stream.is_received = True
        stream.receiver.data_received(stream, data, ended)
        if ended and stream.is_sent:
            self.stream_ended(stream)

    def _take_block(self, stream_id: int, payload: bytes, ended: bool) -> None:
        if len(payload) > self._limits.max_header_bytes:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "the header fields are too long")
        block = self._decoder.decode(payload)  # whoever it is for: the table must follow
        stream = self.streams.get(stream_id)
        if stream is None:
            self._take_opening(stream_id, block, ended)
        elif stream.is_received:
            self._fault(stream_id, ErrorCode.STREAM_CLOSED, "HEADERS after the end of the stream")
        elif stream.has_headers:
            self._take_trailers(stream, block, ended)
        else:
            self._take_reply(stream, block, ended)

    def _take_opening(self, stream_id: int, block: Block, ended: bool) -> None:
        if self.is_client or self._is_ours(stream_id) or stream_id <= self.last_id:
            self._refuse_closed(stream_id, "HEADERS")
            return
        self.last_id = stream_id
        if self._last_taken is not None:
            return  # the peer was told that nobody would
        fault = block.error or request_fault(block)
        if fault is not None:
            self._fault(stream_id, ErrorCode.PROTOCOL_ERROR, fault)
            return
        if len(self.streams) >= self._limits.max_streams:
            self._fault(stream_id, ErrorCode.REFUSED_STREAM, "too many streams at the same time")
            return
        stream = Stream(self, stream_id, NOBODY, self._peer_window, self._window)
        stream.has_headers = True
        self.streams[stream_id] = stream
        if not self._expect_length(stream, block, ended):
            return
        stream.is_received = ended
        self._owner.stream_opened(stream, block, ended)

    def _take_reply(self, stream: Stream, block: Block, ended: bool) -> None:
        fault = block.error or reply_fault(block)
        if fault is not None:
            self._fault(stream.id, ErrorCode.PROTOCOL_ERROR, fault)
            return
        if block.fields[0][1].startswith(b"1"):  # an interim reply
            if ended:
                self._fault(stream.id, ErrorCode.PROTOCOL_ERROR, "an interim reply ends the stream")
            return
        if not self._expect_length(stream, block, ended):
            return
        stream.has_headers = True
        stream.is_received = ended
        stream.receiver.headers_received(stream, block, ended)
        if ended and stream.is_sent:
            self.stream_ended(stream)

    def _take_trailers(self, stream: Stream, block: Block, ended: bool) -> None:
        fault = block.error or trailer_fault(block)
        if not ended:
            fault = "trailers do not end the stream"
        elif stream.expected_bytes > 0:
            fault = "the body is shorter than its content-length"
        if fault is not None:
            self._fault(stream.id, ErrorCode.PROTOCOL_ERROR, fault)
            return
        stream.is_received = True
        stream.receiver.trailers_received(stream, block)
        if stream.is_sent:
            self.stream_ended(stream)

    def _expect_length(self, stream: Stream, block: Block, ended: bool) -> bool:
        """Note how much is to come; whether that is possible."""
        told = block.length
        if told is None or (self.is_client and ended):  # the reply to a HEAD tells a length and has no body
            return True
        stream.expected_bytes = told
        if ended and told:
            self._fault(stream.id, ErrorCode.PROTOCOL_ERROR, "there is no body, but a content-length")
            return False
        return True

    # What the peer does wrong

    def _is_ours(self, stream_id: int) -> bool:
        return bool(stream_id & 1) is self.is_client

    def _refuse_idle(self, stream_id: int, kind: str) -> None:
        """Refuse a frame of a stream that was never opened."""
        opened = self.next_id - 2 if self._is_ours(stream_id) else self.last_id
        if not stream_id or stream_id > opened:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"{kind} on stream {stream_id}, which is not open")

    def _refuse_closed(self, stream_id: int, kind: str) -> None:
        """A frame of a stream that is over: ignored where the peer may not know, else an error of the connection."""
        if kind == "HEADERS" and not self._is_ours(stream_id) and stream_id > self.last_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"HEADERS open stream {stream_id}, which is not theirs to open")
        self._refuse_idle(stream_id, kind)
        if self._last_taken is not None and stream_id > self._last_taken and not self._is_ours(stream_id):
            return
        if stream_id not in self._resets:
            raise Http2Error(ErrorCode.STREAM_CLOSED, f"{kind} on stream {stream_id}, which is closed")

    def _fault(self, stream_id: int, code: ErrorCode, why: str) -> None:
        """End one stream for what the peer did wrong on it."""
        if code != ErrorCode.REFUSED_STREAM:
            self._count_reset()
        self._remember_reset(stream_id)
        self.emit(frames.rst_stream(stream_id, code))
        stream = self.streams.pop(stream_id, None)
        if stream is not None:
            self.waiting.pop(stream, None)
            stream.receiver.stream_reset(stream, code, why)
            self._owner.stream_closed()

    def _count_reset(self) -> None:
        if self.is_client:  # an engine breaks off what it likes
            return
        self._num_resets += 1
        if self._num_resets > self._limits.max_resets:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many streams are broken off")

    def _count_idle_frame(self) -> None:
        self._idle_frames += 1
        if self._idle_frames > _MAX_IDLE_FRAMES:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that bring nothing")


def _without_padding(payload: bytes) -> bytes:
    """Section 6.1: the first byte tells how many at the end are padding."""
    if not payload or payload[0] >= len(payload):
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the padding is as long as the frame")
    return payload[1 : len(payload) - payload[0]]


_READERS: dict[int, Callable[[Http2Connection, int, int, bytes], None]] = {
    HEADERS: Http2Connection._read_headers,
    PRIORITY: Http2Connection._read_priority,
    RST_STREAM: Http2Connection._read_rst_stream,
    SETTINGS: Http2Connection._read_settings,
    PUSH_PROMISE: Http2Connection._read_push_promise,
    PING: Http2Connection._read_ping,
    GOAWAY: Http2Connection._read_goaway,
    WINDOW_UPDATE: Http2Connection._read_window_update,
    CONTINUATION: Http2Connection._read_continuation,
}

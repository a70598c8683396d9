"""The canned gRPC upstream: an engine that answers at once, so that a run measures the proxy before it.

Runs as a process of its own: `python -m bench.grpc_upstream --port P`. It works with HTTP/2 frames and uses nothing of
the gateway: header fields are not even decoded, a request is recognized by the length of its message. It keeps to the
peer's windows and frame size.

    the small request, the tensor        the reply of that length's exchange
    a stream's request                   MESSAGES_PER_STREAM messages, each sent on its own, --gap-milliseconds apart
    a message of any other length        INVALID_ARGUMENT
"""

import argparse
import asyncio
import time
from collections import deque
from typing import cast

import uvloop

from bench import grpc_messages as messages
from bench.grpc_frames import indexed, literal
from bench.grpc_messages import EXCHANGES, REPLY_FIELD, STREAM_PATH, TRAILER_FIELD, Exchange, framed_bytes
from bench.processes import raise_file_limit
from gateway.wire.grpc import framed
from gateway.wire.http2 import frames
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
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Setting,
)

# Whole tensors fit, so that no proxy waits for this side.
WINDOW_BYTES = 8 << 20
CONNECTION_WINDOW_BYTES = 1 << 30
RETURN_BYTES = 4 << 20  # received before a window is updated

INVALID = b"\x88" + b"".join(
    literal(field, is_inserted=False)
    for field in (REPLY_FIELD, (b"grpc-status", b"3"), (b"grpc-message", b"no message of this benchmark"))
)

EXCHANGE_OF_BYTES: dict[int, Exchange] = {framed_bytes(each.request): each for each in EXCHANGES.values()}
REPLIES = {name: framed(each.reply) for name, each in EXCHANGES.items() if each.reply is not None}
STREAM_REQUEST_BYTES = next(framed_bytes(each.request) for each in EXCHANGES.values() if each.path == STREAM_PATH)


class FieldBlocks:
    """The two header blocks of every reply, `:status` with the content type and the trailers.

    As real servers do, each field is inserted into the peer's table the first time and is a single byte after that.
    """

    def __init__(self) -> None:
        self._opening = b"\x88" + literal(REPLY_FIELD, is_inserted=True)  # 88: `:status 200`
        self._opening_later = b"\x88" + indexed(0)
        self._trailers = literal(TRAILER_FIELD, is_inserted=True)

    def opening(self) -> bytes:
        block, self._opening = self._opening, self._opening_later
        return block

    def trailers(self) -> bytes:
        block = self._trailers
        if block is not _KNOWN_TRAILERS:
            self._trailers = _KNOWN_TRAILERS
            self._opening = self._opening_later = b"\x88" + indexed(1)
        return block


_KNOWN_TRAILERS = indexed(0)


class Call:
    """One stream: the received part of its request, and the part of its reply that waits for the peer's windows."""

    __slots__ = ("expected", "is_ended", "is_reset", "left", "owed", "received", "send_window", "waiting")

    def __init__(self, send_window: int) -> None:
        self.send_window = send_window
        self.received = 0
        self.owed = 0  # received, without a window update yet
        self.waiting: deque[bytes] = deque()
        self.left = 0  # messages of a stream that are still to be sent
        self.is_ended = False  # the client sends no more
        self.is_reset = False


class CannedConnection(asyncio.Protocol):
    """One connection of a proxy or a client."""

    def __init__(self, gap_seconds: float) -> None:
        self._gap_seconds = gap_seconds
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._awaits_preface = True
        self._out: list[bytes] = []
        self._calls: dict[int, Call] = {}
        self._blocks = FieldBlocks()
        self._owed = 0
        self._send_window = frames.DEFAULT_WINDOW
        self._peer_window = frames.DEFAULT_WINDOW
        self._frame_bytes = frames.MIN_MAX_FRAME_BYTES

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop registers no such class
        told = {Setting.INITIAL_WINDOW_SIZE: WINDOW_BYTES, Setting.MAX_CONCURRENT_STREAMS: 10_000}
        more = CONNECTION_WINDOW_BYTES - frames.DEFAULT_WINDOW
        self._transport.write(frames.settings(told) + frames.window_update(0, more))

    def connection_lost(self, exc: Exception | None) -> None:
        for call in self._calls.values():
            call.is_reset = True
        self._calls.clear()

    # Reading

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        at, end = 0, len(data)
        if self._awaits_preface:
            if end < len(PREFACE):
                self._buffer = data
                return
            self._awaits_preface = False
            at = len(PREFACE)
        while end - at >= HEAD_BYTES:
            kind, flags, stream_id = HEAD.unpack_from(data, at)
            size, kind = kind >> 8, kind & 0xFF
            start = at + HEAD_BYTES
            if start + size > end:
                break
            at = start + size
            if kind == DATA:
                self._take_data(stream_id, flags, size)
            elif kind == HEADERS:
                if stream_id not in self._calls:
                    self._calls[stream_id] = Call(self._peer_window)
                if flags & END_STREAM:
                    self._take_data(stream_id, END_STREAM, 0)
            elif kind == CONTINUATION:
                pass
            else:
                self._take_control(kind, flags, stream_id, data[start:at])
        self._buffer = data[at:]
        self._flush()

    def _take_data(self, stream_id: int, flags: int, size: int) -> None:
        self._owed += size
        if self._owed >= RETURN_BYTES:
            self._out.append(frames.window_update(0, self._owed))
            self._owed = 0
        call = self._calls.get(stream_id)
        if call is None:  # it was reset
            return
        if flags & PADDED:
            raise ValueError("padding is not read here")
        call.received += size
        call.owed += size
        if flags & END_STREAM:
            call.is_ended = True
        elif call.owed >= RETURN_BYTES:
            self._out.append(frames.window_update(stream_id, call.owed))
            call.owed = 0
        if call.received == STREAM_REQUEST_BYTES and size:
            self._begin_stream(stream_id, call)
        elif call.is_ended:
            if call.received == STREAM_REQUEST_BYTES:
                self._end_stream_if_done(stream_id, call)
            else:
                self._answer(stream_id, call)

    def _take_control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == WINDOW_UPDATE:
            more = frames.read_u32(payload)
            if not stream_id:
                self._send_window += more
                for waiting_id in [each for each, call in self._calls.items() if call.waiting]:
                    self._push(waiting_id, self._calls[waiting_id])
            elif (call := self._calls.get(stream_id)) is not None:
                call.send_window += more
                self._push(stream_id, call)
        elif kind == SETTINGS and not flags & ACK:
            self._take_settings(payload)
        elif kind == PING and not flags & ACK:
            self._out.append(frames.frame(PING, ACK, 0, payload))
        elif kind == RST_STREAM:
            if (call := self._calls.pop(stream_id, None)) is not None:
                call.is_reset = True
        elif kind == GOAWAY:
            pass  # the peer closes when it is done

    def _take_settings(self, payload: bytes) -> None:
        for key, value in frames.read_settings(payload):
            if key == Setting.INITIAL_WINDOW_SIZE:
                more, self._peer_window = value - self._peer_window, value
                for stream_id, call in list(self._calls.items()):
                    call.send_window += more
                    self._push(stream_id, call)
            elif key == Setting.MAX_FRAME_SIZE:
                self._frame_bytes = min(value, 1 << 16)
            elif key == Setting.HEADER_TABLE_SIZE and value < frames.DEFAULT_WINDOW >> 4:
                raise ValueError(f"a header table of {value} bytes is too small for this upstream")
        self._out.append(frames.frame(SETTINGS, ACK, 0))

    # Answering

    def _answer(self, stream_id: int, call: Call) -> None:
        exchange = EXCHANGE_OF_BYTES.get(call.received)
        reply = REPLIES.get(exchange.model) if exchange is not None else None
        if reply is None:
            self._send_fields(stream_id, INVALID, END_STREAM)
            del self._calls[stream_id]
            return
        self._send_fields(stream_id, self._blocks.opening(), 0)
        call.waiting.append(reply)
        self._push(stream_id, call)

    def _begin_stream(self, stream_id: int, call: Call) -> None:
        call.left = messages.MESSAGES_PER_STREAM
        self._send_fields(stream_id, self._blocks.opening(), 0)
        self._send_message(self._loop.time(), stream_id, call)

    def _send_message(self, due: float, stream_id: int, call: Call) -> None:
        if call.is_reset:
            return
        call.left -= 1
        call.waiting.append(messages.streamed(time.monotonic_ns() // 1000))
        self._push(stream_id, call)
        self._flush()
        if call.left:
            self._loop.call_at(due + self._gap_seconds, self._send_message, due + self._gap_seconds, stream_id, call)

    def _end_stream_if_done(self, stream_id: int, call: Call) -> None:
        if call.is_ended and not call.left and not call.waiting:
            self._send_fields(stream_id, self._blocks.trailers(), END_STREAM)
            del self._calls[stream_id]

    def _send_fields(self, stream_id: int, block: bytes, flags: int) -> None:
        self._out.append(HEAD.pack(len(block) << 8 | HEADERS, END_HEADERS | flags, stream_id) + block)

    def _push(self, stream_id: int, call: Call) -> None:
        """Send the part of the reply that the windows allow, and its end after all of it."""
        waiting = call.waiting
        if not waiting:
            return
        while waiting:
            data = waiting[0]
            room = min(call.send_window, self._send_window, self._frame_bytes)
            if room <= 0:
                return
            if len(data) > room:
                waiting[0], data = data[room:], data[:room]
            else:
                waiting.popleft()
            size = len(data)
            call.send_window -= size
            self._send_window -= size
            self._out.append(HEAD.pack(size << 8 | DATA, 0, stream_id))
            self._out.append(data)
        self._end_stream_if_done(stream_id, call)

    def _flush(self) -> None:
        # No more is unsent than the calls of the load at a time, so nothing here waits for the socket.
        if self._out and not self._transport.is_closing():
            self._transport.write(b"".join(self._out))
        self._out.clear()


async def serve(port: int, gap_seconds: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: CannedConnection(gap_seconds), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--gap-milliseconds", type=float, default=10.0)
    options = parser.parse_args()
    raise_file_limit()
    uvloop.run(serve(options.port, options.gap_milliseconds / 1000))


if __name__ == "__main__":
    main()

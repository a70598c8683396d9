"""The connections of the load generator: each sends, checks the answer as it arrives, and sends again.

No answer is kept: heads are checked (status 200, the right length) and bodies counted. The first wrong answer ends the
run.
"""

import asyncio
import time
from collections.abc import Callable
from typing import cast

from bench import messages
from bench.closed_loop import Tally
from bench.messages import Exchange

READ_BUFFER_BYTES = 1 << 20


class WholeAnswers(asyncio.BufferedProtocol):
    """A connection whose answers have a Content-Length: the head is checked, the body counted."""

    _shared = memoryview(bytearray(READ_BUFFER_BYTES))

    def __init__(self, tally: Tally, exchange: Exchange, next_request: Callable[[], bytes]) -> None:
        self._tally = tally
        self._exchange = exchange
        self._next_request = next_request
        self._head = b""
        self._body_left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop registers no such class
        self._transport.set_write_buffer_limits(high=8 * READ_BUFFER_BYTES)
        self._send()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._next_request())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared

    def buffer_updated(self, nbytes: int) -> None:
        if not self._body_left:
            head = self._head + self._shared[: min(nbytes, 65_536)]
            end = head.find(b"\r\n\r\n")
            if end < 0:
                self._head = head
                return
            if wrong := wrong_head(head[:end], self._exchange):
                self._tally.fail(wrong)
                return
            body_seen = len(self._head) + nbytes - end - 4
            self._head = b""
            self._body_left = self._exchange.answer_bytes or 0
        else:
            body_seen = nbytes
        self._body_left -= body_seen
        if self._body_left < 0:
            self._tally.fail(f"{-self._body_left} bytes too many after an answer")
        elif self._body_left == 0:
            self._tally.units += 1
            self._tally.latencies_us.append((time.perf_counter() - self._sent_at) * 1e6)
            if not self._tally.is_over:
                self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        self._tally.fail(f"a connection was closed under load: {exc or 'end of stream'}")


class StreamedAnswers(asyncio.Protocol):
    """A connection whose answers are chunked token streams: the chunks are undone and the payload counted.

    A proxy may change the chunks, so tokens are counted by payload bytes; all events have the same size.
    """

    def __init__(self, tally: Tally, exchange: Exchange, next_request: Callable[[], bytes]) -> None:
        self._tally = tally
        self._exchange = exchange
        self._next_request = next_request
        self._pending = b""
        self._chunk_left = 0  # remaining bytes of the present chunk and of the line end after it
        self._payload = 0
        self._is_in_body = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop registers no such class
        self._transport.write(self._next_request())

    def data_received(self, data: bytes) -> None:
        if self._pending:
            data, self._pending = self._pending + data, b""
        at = 0
        if not self._is_in_body:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._pending = data
                return
            if wrong := wrong_head(data[:end], self._exchange):
                self._tally.fail(wrong)
                return
            self._is_in_body = True
            at = end + 4
        while at < len(data):
            if self._chunk_left:
                step = min(self._chunk_left, len(data) - at)
                self._chunk_left -= step
                at += step
                continue
            line_end = data.find(b"\r\n", at)
            size = int(data[at:line_end], 16) if line_end >= 0 else -1
            if size < 0 or (size == 0 and len(data) < line_end + 4):
                self._pending = data[at:]
                return
            at = line_end + 2
            if size == 0:
                self._finish()
                return
            self._count(data, at, size)
            self._chunk_left = size + 2

    def _count(self, data: bytes, at: int, size: int) -> None:
        begins_token = self._payload % messages.TOKEN_BYTES == 0
        self._payload += size
        self._tally.units += size / messages.TOKEN_BYTES
        stamp = data[at + messages.TOKEN_TIME.start : at + messages.TOKEN_TIME.stop]
        if begins_token and len(stamp) == 16:
            self._tally.latencies_us.append(time.monotonic_ns() / 1000 - int(stamp))

    def _finish(self) -> None:
        if self._payload != messages.STREAM_BYTES:
            self._tally.fail(f"a stream had {self._payload} bytes instead of {messages.STREAM_BYTES}")
            return
        self._payload = 0
        self._is_in_body = False
        if not self._tally.is_over:
            self._transport.write(self._next_request())

    def connection_lost(self, exc: Exception | None) -> None:
        self._tally.fail(f"a connection was closed under load: {exc or 'end of stream'}")


def wrong_head(head: bytes, exchange: Exchange) -> str | None:
    """Why this head cannot begin the right answer; None if it can."""
    if not head.startswith(b"HTTP/1.1 200 "):
        return f"{exchange.path} was answered {head.splitlines()[:1]}"
    if exchange.answer_bytes is None:
        return None if messages.is_chunked(head) else f"{exchange.path} was not answered in chunks"
    length = messages.content_length(head)
    return (
        None if length == exchange.answer_bytes else f"{exchange.path} has length {length}: {exchange.answer_bytes} due"
    )

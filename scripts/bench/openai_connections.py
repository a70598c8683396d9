"""The connections of the load on language models: whole answers compared byte for byte, streams token for token.

Proxies may send an answer with its length or in chunks, so both are read. The first wrong answer ends the run.
"""

import asyncio
import time
from collections.abc import Callable
from typing import cast

from bench.closed_loop import Tally
from bench.messages import TOKENS_PER_STREAM, content_length, is_chunked
from bench.openai_messages import DONE, FINISHED, TOKEN
from bench.processes import BenchError


class AnswerReader:
    """Reads one answer after another: the payload of each, as it arrives.

    Raises: BenchError at a head that cannot begin a right answer.
    """

    def __init__(self) -> None:
        self._pending = b""
        self._is_in_body = self._is_chunked = False
        self._left = 0  # remaining bytes of the body, or of the present chunk
        self._ends_chunk = False

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """The payload in these bytes, and whether the answer ends with them."""
        if self._pending:
            data, self._pending = self._pending + data, b""
        at = 0
        if not self._is_in_body:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._pending = data
                return b"", False
            self._begin(data[: end + 2])
            at = end + 4
        return self._chunks(data, at) if self._is_chunked else self._measured(data[at:])

    def _begin(self, head: bytes) -> None:
        if not head.startswith(b"HTTP/1.1 200 "):
            raise BenchError(f"the answer is {head.splitlines()[0]!r}")
        self._is_chunked = is_chunked(head)
        length = content_length(head)
        if not self._is_chunked and not length:
            raise BenchError("the answer has no body")
        self._is_in_body, self._left, self._ends_chunk = True, length or 0, False

    def _measured(self, payload: bytes) -> tuple[bytes, bool]:
        self._left -= len(payload)
        if self._left < 0:
            raise BenchError(f"{-self._left} bytes too many after an answer")
        self._is_in_body = self._left > 0
        return payload, not self._left

    def _chunks(self, data: bytes, at: int) -> tuple[bytes, bool]:
        payload, length = b"", len(data)
        while at < length:
            if self._left:
                piece = data[at : at + self._left]
                payload = payload + piece if payload else piece
                self._left -= len(piece)
                at += len(piece)
                continue
            if self._ends_chunk:
                if length < at + 2:
                    break
                at, self._ends_chunk = at + 2, False
                continue
            line_end = data.find(b"\r\n", at)
            size = int(data[at:line_end], 16) if line_end >= 0 else -1
            if size < 0 or (size == 0 and length < line_end + 4):
                break
            at = line_end + 2
            if size == 0:
                if length != at + 2:
                    raise BenchError(f"{length - at - 2} bytes too many after an answer")
                self._is_in_body = False
                return payload, True
            self._left, self._ends_chunk = size, True
        self._pending = data[at:]
        return payload, False


class Chats(asyncio.Protocol):
    """A connection that sends one request after another, and expects the body `right` each time."""

    def __init__(self, tally: Tally, next_request: Callable[[], bytes], right: bytes) -> None:
        self._tally = tally
        self._next_request = next_request
        self._right = right
        self._reader = AnswerReader()
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop registers no such class
        self._transport.set_write_buffer_limits(high=1 << 23)
        self._send()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._next_request())

    def data_received(self, data: bytes) -> None:
        try:
            payload, ended = self._reader.feed(data)
        except (BenchError, ValueError) as error:
            self._tally.fail(str(error))
            return
        self._body += payload
        if not ended:
            return
        if self._body != self._right:
            self._tally.fail(f"an answer of {len(self._body)} bytes is not the right one: {self._body[:200]!r}")
            return
        self._body = b""
        self._tally.units += 1
        self._tally.latencies_us.append((time.perf_counter() - self._sent_at) * 1e6)
        if not self._tally.is_over:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        self._tally.fail(f"a connection was closed under load: {exc or 'end of stream'}")


class Tokens:
    """The tokens of one stream, which must be complete, in order, and with an end as in OpenAI's API.

    Raises: BenchError if they are not.
    """

    def __init__(self) -> None:
        self.num_read = 0
        self._pending = b""
        self._has_finished = False
        self._is_done = False

    def feed(self, payload: bytes) -> list[int]:
        """The send time of each token that these bytes complete, in microseconds of the monotonic clock."""
        if self._pending:
            payload, self._pending = self._pending + payload, b""
        if not payload.endswith(b"\n\n"):
            end = payload.rfind(b"\n\n") + 2
            payload, self._pending = (payload[:end], payload[end:]) if end > 1 else (b"", payload)
        sent_at = []
        for token in TOKEN.finditer(payload):
            self.num_read += 1
            if int(token[2]) != self.num_read:
                raise BenchError(f"token {int(token[2])} of a stream came where {self.num_read} was due")
            sent_at.append(int(token[1]))
        if self.num_read == TOKENS_PER_STREAM:
            self._has_finished = self._has_finished or FINISHED.search(payload) is not None
            self._is_done = payload.endswith(DONE)
        return sent_at

    def end(self) -> None:
        if self._pending or self.num_read != TOKENS_PER_STREAM or not self._has_finished or not self._is_done:
            whether = f"{'a' if self._has_finished else 'no'} reason and {'an' if self._is_done else 'no'} end"
            raise BenchError(f"a stream had {self.num_read} tokens of {TOKENS_PER_STREAM}, {whether}")


class Streams(asyncio.Protocol):
    """A connection that requests one stream of tokens after another."""

    def __init__(self, tally: Tally, next_request: Callable[[], bytes]) -> None:
        self._tally = tally
        self._next_request = next_request
        self._reader = AnswerReader()
        self._tokens = Tokens()
        self.has_begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._next_request())

    def data_received(self, data: bytes) -> None:
        try:
            payload, ended = self._reader.feed(data)
            if payload:
                sent_at = self._tokens.feed(payload)
                now = time.monotonic_ns() / 1000
                self._tally.units += len(sent_at)
                self._tally.latencies_us += [now - each for each in sent_at]
                self.has_begun = self.has_begun or bool(sent_at)
            if ended:
                self._tokens.end()
        except (BenchError, ValueError) as error:
            self._tally.fail(str(error))
            return
        if ended:
            self._tokens = Tokens()
            if not self._tally.is_over:
                self._transport.write(self._next_request())

    def connection_lost(self, exc: Exception | None) -> None:
        self._tally.fail(f"a connection was closed under load: {exc or 'end of stream'}")

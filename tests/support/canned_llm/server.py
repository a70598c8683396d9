"""The canned engine's HTTP/1.1 server, which sends a token at a time and applies the faults."""

import asyncio
import itertools
import socket
import struct
from collections import deque
from collections.abc import Iterator

import httptools

from tests.support.canned_llm.engine import Answer, Engine, Generation, Request
from tests.support.canned_llm.reading import Frame

REASONS = {
    200: b"OK",
    400: b"Bad Request",
    404: b"Not Found",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}
RESET = struct.pack("ii", 1, 0)  # SO_LINGER value that makes a close send RST


class Connection(asyncio.Protocol):
    """One client connection; requests are answered in order."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Request] = deque()
        self._reply: Reply | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self._is_last = False  # the client wants the connection closed after this request
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._body, self._headers = b"", [], {}

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise  # an internal error, for the log
        except httptools.HttpParserError:
            self.transport.close()

    def connection_lost(self, failure: Exception | None) -> None:
        if self._reply is not None:
            self._reply.client_left()

    def pause_writing(self) -> None:
        if self._reply is not None:
            self._reply.pause()

    def resume_writing(self) -> None:
        if self._reply is not None:
            self._reply.resume()

    def on_message_begin(self) -> None:
        self._url, self._body, self._headers = b"", [], {}

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        if name.lower() == b"expect":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._is_last = not self._parser.should_keep_alive()
        method = self._parser.get_method().decode()
        self._waiting.append(Request(method, self._url.decode(), self._headers, b"".join(self._body)))
        if self._reply is None:
            self.next()

    def next(self) -> None:
        """Answer the next waiting requests."""
        self._reply = None
        while self._waiting and self._reply is None and not self.transport.is_closing():
            answer = self._engine.answer(self._waiting.popleft())
            if isinstance(answer, Answer):
                self.send_whole(answer)
            else:
                self._reply = Reply(self, answer, self._engine.interval_seconds)
                self._reply.start()
        if self._is_last and self._reply is None:
            self.transport.close()

    def send_whole(self, answer: Answer) -> None:
        head = b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"
        reason = REASONS.get(answer.status, b"Some")
        self.transport.write(
            head % (answer.status, reason, answer.content_type.encode(), len(answer.body)) + answer.body
        )

    def reset(self) -> None:
        """Close the connection with RST."""
        found = self.transport.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.transport.abort()


class Reply:
    """The reply to one generation, sent token by token."""

    def __init__(self, connection: Connection, generation: Generation, interval_seconds: float):
        self._connection = connection
        self._transport = connection.transport
        self._generation = generation
        self._faults = generation.faults
        self._interval = generation.faults.slow if generation.faults.slow is not None else interval_seconds
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._chunked = self._faults.unframed is None
        self._paused = False
        self._stalled = False
        self._over = False
        self._frames: Iterator[Frame] = iter(())
        # Token count -> the fault that acts then.
        self._turns = {
            number: act
            for number, act in [
                (self._faults.die, self._die),
                (self._faults.cut, self._cut),
                (self._faults.truncate, self._truncate),
                (self._faults.error, self._fail),
                (self._faults.stall, self._stall),
                (self._faults.garbage, self._babble),
            ]
            if number is not None
        }

    def start(self) -> None:
        if self._faults.close is not None:
            self._break()
            self._transport.close()
        elif self._faults.reset is not None:
            self._die()
        elif self._faults.hang is not None:
            self._stall()
        elif self._generation.job.streams:
            self._frames = self._generation.dialect.frames(self._generation.job)
            self._send_head(b"text/event-stream; charset=utf-8")
            self._meet_turn()
            self._soon()
        elif self._interval or self._turns:
            num_tokens = self._generation.job.completion_tokens
            self._frames = itertools.repeat(Frame(b"", is_token=True), num_tokens)
            self._meet_turn()
            self._soon()
        else:
            self._generation.sight.tokens = self._generation.job.completion_tokens
            self._end()

    def client_left(self) -> None:
        if not self._over:
            self._over = True
            self._generation.sight.state = "cancelled"
        if self._timer is not None:
            self._timer.cancel()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        if not self._over and self._timer is None:
            self._soon()

    def _soon(self) -> None:
        if not (self._over or self._stalled):
            later = self._loop.call_later(self._interval, self._step) if self._interval else None
            self._timer = later or self._loop.call_soon(self._step)

    def _step(self) -> None:
        """Send the next frame and apply the faults."""
        self._timer = None
        if self._over or self._paused:
            return
        frame = next(self._frames, None)
        while frame is not None and self._is_left_out(frame):
            frame = next(self._frames, None)
        if frame is None:
            self._end()
            return
        if frame.data:
            self._send(frame.data if self._faults.comments is None else b": keepalive\n\n" + frame.data)
        if frame.is_token:
            self._generation.sight.tokens += 1
            self._meet_turn()
        self._soon()

    def _meet_turn(self) -> None:
        if act := self._turns.pop(self._generation.sight.tokens, None):
            act()

    def _is_left_out(self, frame: Frame) -> bool:
        if self._faults.no_done is not None and frame.is_last:
            return True
        return self._faults.no_usage is not None and b'"choices":[],' in frame.data

    def _send_head(self, content_type: bytes) -> None:
        framing = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n" if self._chunked else b"HTTP/1.0 200 OK\r\n"
        self._transport.write(framing + b"cache-control: no-cache\r\ncontent-type: " + content_type + b"\r\n\r\n")

    def _send(self, data: bytes) -> None:
        size = self._faults.split or len(data)
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            self._transport.write(b"%x\r\n%s\r\n" % (len(piece), piece) if self._chunked else piece)

    def _end(self) -> None:
        """The generation is complete."""
        self._over = True
        if self._generation.sight.state == "running":
            self._generation.sight.state = "done"
        if not self._generation.job.streams:
            self._connection.send_whole(Answer(self._generation.dialect.whole(self._generation.job)))
        self._finish_body()

    def _finish_body(self) -> None:
        if self._generation.job.streams and self._chunked:
            self._transport.write(b"0\r\n\r\n")
        if not self._chunked:
            self._transport.close()
        self._connection.next()

    def _break(self) -> None:
        self._over = True
        self._generation.sight.state = "broken"

    def _die(self) -> None:
        self._break()
        self._loop.call_soon(self._connection.reset)  # after the writes of this turn of the loop

    def _cut(self) -> None:
        self._break()
        self._transport.close()

    def _truncate(self) -> None:
        self._break()
        if not self._generation.job.streams:
            self._connection.send_whole(Answer(b""))
        self._finish_body()

    def _fail(self) -> None:
        self._break()
        message = "EngineCore encountered an issue."
        if self._generation.job.streams:
            self._send(self._generation.dialect.error_event(message))
            self._finish_body()
        else:
            self._connection.send_whole(Answer(self._generation.dialect.error(message, 500), 500))
            self._connection.next()

    def _stall(self) -> None:
        """Send nothing more; a disconnect of the client is still detected."""
        self._stalled = True

    def _babble(self) -> None:
        if self._generation.job.streams:
            self._send(b'data: {"choices":[{"del\n\n')
        else:
            self._break()
            self._connection.send_whole(Answer(b"<html>no JSON</html>"))
            self._connection.next()

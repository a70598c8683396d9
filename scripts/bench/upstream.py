"""The canned upstream: an engine that answers at once, so that a run measures the proxy before it and not the engine.

Runs as a process of its own: `python -m bench.upstream --port P`. It reads each request whole (a body that is answered
before it was read would make a proxy close the connection) and answers by path:

    GET  anything                        200, empty (health checks)
    POST /v2/repository/index            the models of --models; 404 without
    POST /v2/models/simple/infer         a small JSON answer
    POST /v2/models/mixed-N/infer        the same
    POST /v2/models/tensor/infer         a JSON part and a 600 KB tensor
    POST /v2/models/huge/infer           --huge-bytes of zeros, with backpressure
    POST /v2/models/llm/generate_stream  tokens, each one chunk written on its own, --gap-milliseconds apart
"""

import argparse
import asyncio
import time
from collections.abc import Callable
from typing import cast

import uvloop

from bench import messages, mixed
from bench.processes import raise_file_limit

READ_BUFFER_BYTES = 1 << 20
MAX_HEAD_BYTES = 1 << 16
HUGE_PIECE = bytes(256 * 1024)


def answer(content_type: str, body: bytes, *headers: str) -> bytes:
    lines = ("HTTP/1.1 200 OK", f"Content-Type: {content_type}", f"Content-Length: {len(body)}", *headers)
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + body


ANSWERS = {
    messages.SMALL_PATH.encode(): answer("application/json", messages.SMALL_ANSWER),
    messages.TENSOR_PATH.encode(): answer(
        "application/octet-stream",
        messages.TENSOR_ANSWER,
        f"Inference-Header-Content-Length: {len(messages.TENSOR_ANSWER_JSON)}",
    ),
}
MIXED_PATHS = b"/v2/models/" + mixed.MODEL_PREFIX.encode()
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
TOKEN_CHUNK_HEAD = b"%x\r\n" % messages.TOKEN_BYTES


def token_chunk(serial: int) -> bytes:
    return TOKEN_CHUNK_HEAD + messages.token_event(time.monotonic_ns() // 1000) + b"\r\n"


class CannedConnection(asyncio.BufferedProtocol):
    """One connection: a head is read, its body is counted down, the answer is written, and so on until it closes."""

    MAX_KEPT_BODY_BYTES = 0  # a longer body is counted, and not read

    # Reading is synchronous from get_buffer to buffer_updated, so all connections share one buffer.
    _shared = memoryview(bytearray(READ_BUFFER_BYTES))

    def __init__(self, huge_bytes: int, gap_seconds: float) -> None:
        self._huge_bytes = huge_bytes
        self._gap_seconds = gap_seconds
        self._loop = asyncio.get_running_loop()
        self._head = b""  # the beginning of an incomplete head
        self._method = self._path = b""
        self._body = b""
        self._body_left = 0
        self._tail: bytes | None = None  # the last bytes that have come of a chunked body
        self._huge_left = 0
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop registers no such class
        self._transport.set_write_buffer_limits(high=2 * READ_BUFFER_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared

    def buffer_updated(self, nbytes: int) -> None:
        if self._tail is not None:
            self._chunked_updated(bytes(self._shared[max(0, nbytes - len(LAST_CHUNK)) : nbytes]))
            return
        if self._body_left:
            self._body_left -= nbytes
            if self._keeps_body:
                self._body += self._shared[:nbytes]
        else:
            head = self._head + self._shared[: min(nbytes, MAX_HEAD_BYTES)]
            end = head.find(b"\r\n\r\n")
            if end < 0:
                self._head = head
                return
            body_seen = len(self._head) + nbytes - end - 4
            self._head = b""
            self._method, self._path, _ = head[: head.find(b"\r\n")].split(b" ", 2)
            if messages.is_chunked(head[:end]):
                self._tail = b""
                last = min(body_seen, len(LAST_CHUNK), nbytes)
                self._chunked_updated(bytes(self._shared[nbytes - last : nbytes]))
                return
            length = messages.content_length(head[:end]) or 0
            self._body_left = length - body_seen
            self._keeps_body = 0 < length <= self.MAX_KEPT_BODY_BYTES
            self._body = head[end + 4 :] if self._keeps_body else b""
        if self._body_left < 0:
            self.refuse(b"400 Pipelined")
        elif self._body_left == 0:
            self.reply(self._method, self._path, self._body)

    def _chunked_updated(self, data: bytes) -> None:
        """The chunks of a body are not read: it ends where a read ends with the last one."""
        assert self._tail is not None
        self._tail = (self._tail + data)[-len(LAST_CHUNK) :]
        if self._tail == LAST_CHUNK:
            self._tail = None
            self.reply(self._method, self._path, b"")

    def refuse(self, status: bytes) -> None:
        self._transport.write(b"HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status)
        self._transport.close()

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def reply(self, method: bytes, path: bytes, body: bytes) -> None:
        """Answer a request; `body` is empty if it was only counted."""
        if whole := ANSWERS.get(path):
            self.write(whole)
        elif path.startswith(MIXED_PATHS):
            self.write(ANSWERS[messages.SMALL_PATH.encode()])
        elif method == b"GET":
            self.write(EMPTY)
        elif path == messages.STREAM_PATH.encode():
            self.write(STREAM_HEAD)
            self.stream(token_chunk)
        elif path == messages.HUGE_PATH.encode():
            self.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n"
                % self._huge_bytes
            )
            self._huge_left = self._huge_bytes
            self._write_huge()
        else:
            self.refuse(b"404 Not Found")

    def stream(self, chunk: Callable[[int], bytes], last: bytes = LAST_CHUNK) -> None:
        """Write the chunks 1 to TOKENS_PER_STREAM, each when it is due, and then the end of the body."""
        due = self._loop.time() + self._gap_seconds
        self._loop.call_at(due, self._write_token, due, 1, chunk, last)

    def _write_token(self, due: float, serial: int, chunk: Callable[[int], bytes], last: bytes) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(chunk(serial))
        if serial < messages.TOKENS_PER_STREAM:
            due += self._gap_seconds
            self._loop.call_at(due, self._write_token, due, serial + 1, chunk, last)
        else:
            # The end is a piece of its own, in the next turn of the loop, as engines send it.
            self._loop.call_soon(self._transport.write, last)

    def _write_huge(self) -> None:
        while self._huge_left and not self._is_paused and not self._transport.is_closing():
            piece = HUGE_PIECE[: self._huge_left]
            self._huge_left -= len(piece)
            self._transport.write(piece)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._write_huge()

    def connection_lost(self, exc: Exception | None) -> None:
        self._huge_left = 0


async def serve(port: int, make_connection: Callable[[], CannedConnection]) -> None:
    server = await asyncio.get_running_loop().create_server(make_connection, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--huge-bytes", type=int, default=2 << 30)
    parser.add_argument("--gap-milliseconds", type=float, default=10.0)
    parser.add_argument("--models", default="")
    options = parser.parse_args()
    if options.models:
        listed = [{"name": name, "version": "1", "state": "READY"} for name in options.models.split(",")]
        ANSWERS[b"/v2/repository/index"] = answer("application/json", messages.compact_json(listed))
    raise_file_limit()
    uvloop.run(serve(options.port, lambda: CannedConnection(options.huge_bytes, options.gap_milliseconds / 1000)))


if __name__ == "__main__":
    main()

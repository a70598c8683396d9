"""Load: a number of connections, each with one request under way at any time, over raw HTTP/1.1."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import ceil
from types import TracebackType
from typing import Self, cast
from urllib.parse import urlsplit

import httptools
import orjson

from engines.analyze.inputs import RequestBody
from engines.analyze.models import AnalyzeError, Latency

# The last windows that must agree, and by how much they may differ from their mean.
NUM_STEADY = 3
THROUGHPUT_TOLERANCE = 0.10
LATENCY_TOLERANCE = 0.25


@dataclass(frozen=True, slots=True)
class Window:
    """The replies in a span of time."""

    seconds: float
    latencies_ms: tuple[float, ...]  # of the good replies
    errors: tuple[str, ...] = ()

    @property
    def requests_per_second(self) -> float:
        return len(self.latencies_ms) / self.seconds


def is_steady(windows: Sequence[Window]) -> bool:
    """Whether the last windows agree in throughput and in mean latency."""
    last = windows[-NUM_STEADY:]
    if len(last) < NUM_STEADY or not all(window.latencies_ms for window in last):
        return False
    rates = [window.requests_per_second for window in last]
    means = [sum(window.latencies_ms) / len(window.latencies_ms) for window in last]
    return _agree(rates, THROUGHPUT_TOLERANCE) and _agree(means, LATENCY_TOLERANCE)


def latency_of(values: Sequence[float]) -> Latency:
    """The percentiles of latencies in milliseconds; 0 without latencies."""
    if not values:
        return Latency(0.0, 0.0, 0.0, 0.0, 0.0)
    ordered = sorted(values)
    p50, p90, p95, p99 = (ordered[ceil(share * len(ordered)) - 1] for share in (0.5, 0.9, 0.95, 0.99))
    return Latency(sum(ordered) / len(ordered), p50, p90, p95, p99)


def _agree(values: Sequence[float], tolerance: float) -> bool:
    mean = sum(values) / len(values)
    return all(abs(value - mean) <= tolerance * mean for value in values)


_CONNECT_SECONDS = 5.0
# A connection that broke is made again after this long: a server that is gone is not hammered.
_AGAIN_SECONDS = 0.1
_MAX_ERROR_CHARS = 200

# A reply's latency in seconds, and an error's text.
Record = tuple[float, str | None]


def request_bytes(url: str, path: str, body: RequestBody) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\ncontent-type: application/octet-stream\r\n"
        f"inference-header-content-length: {body.json_bytes}\r\ncontent-length: {len(body.data)}\r\n\r\n"
    )
    return head.encode("latin-1") + body.data


class ConcurrentLoad:
    """A constant number of requests under way, from entering to leaving; `window` gives what came back."""

    def __init__(self, url: str, requests: Sequence[bytes], concurrency: int) -> None:
        """`requests` are whole requests, sent in turn."""
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._requests = list(requests)
        self._concurrency = concurrency
        self._records: list[Record] = []
        self._opened: list[asyncio.Task[None]] = []
        self._is_over = False

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._opened = [loop.create_task(self._keep(number)) for number in range(self._concurrency)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Abort the requests in flight."""
        self._is_over = True
        for task in self._opened:
            task.cancel()
        await asyncio.gather(*self._opened, return_exceptions=True)

    async def window(self, seconds: float) -> Window:
        self._records.clear()
        begun = time.perf_counter()
        await asyncio.sleep(seconds)
        passed = time.perf_counter() - begun
        good = tuple(latency * 1000.0 for latency, error in self._records if error is None)
        return Window(passed, good, tuple(error for _, error in self._records if error is not None))

    async def _keep(self, number: int) -> None:
        """Keep one connection busy; where it breaks, another one."""
        loop = asyncio.get_running_loop()
        turn = cycle(self._requests[number % len(self._requests) :] + self._requests[: number % len(self._requests)])
        while True:
            begun = time.perf_counter()
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    transport, caller = await loop.create_connection(
                        lambda: _Caller(turn, self._records.append), self._host, self._port
                    )
            except OSError as error:  # a timeout too
                self._records.append((0.0, f"cannot connect: {error or 'no answer'}"))
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            try:
                await caller.closed
            finally:
                transport.abort()
            if time.perf_counter() - begun < _AGAIN_SECONDS:
                await asyncio.sleep(_AGAIN_SECONDS)


class _Caller(asyncio.Protocol):
    """One connection: a request, its reply, the next request."""

    def __init__(self, requests: Iterator[bytes], record: Callable[[Record], None]) -> None:
        self._requests = requests
        self._record = record
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._sent_at = 0.0
        self._body: list[bytes] = []
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is no subclass
        self._send_next()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._over(f"the reply is no HTTP: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self._over(f"the connection broke: {error or 'closed by the server'}")

    # httptools' callbacks

    def on_body(self, body: bytes) -> None:
        if self._parser.get_status_code() != 200:
            self._body.append(body)

    def on_message_complete(self) -> None:
        seconds = time.perf_counter() - self._sent_at
        status = self._parser.get_status_code()
        error = None if status == 200 else _error_text(status, b"".join(self._body))
        self._record((seconds, error))
        self._body.clear()
        if self._parser.should_keep_alive():
            self._send_next()
        elif not self.closed.done():
            self.closed.set_result(None)

    def _send_next(self) -> None:
        assert self._transport is not None
        self._sent_at = time.perf_counter()
        self._transport.write(next(self._requests))

    def _over(self, error: str) -> None:
        if not self.closed.done():
            self._record((0.0, error))
            self.closed.set_result(None)


def _error_text(status: int, body: bytes) -> str:
    try:
        text = str(orjson.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        text = body.decode(errors="replace")
    return f"{status} {text}"[:_MAX_ERROR_CHARS]


def check_url(url: str) -> None:
    """Raises: AnalyzeError for what load cannot be put on."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
        raise AnalyzeError(f"{url!r} is no address of a server: write http://HOST:PORT (its REST port, without a path)")

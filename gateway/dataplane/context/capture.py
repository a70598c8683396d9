"""Captures: requests with their replies, and the socket by which a worker sends them to the shadow process.

The output that waits for the socket is bounded: captures beyond it are dropped and counted, so that no request is
delayed. The shadow process confirms each capture that it is done with by a line with the route; a route with too many
unconfirmed ones is not captured.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import orjson

_SIZES = struct.Struct(">III")  # of the facts, the request, the answer


@dataclass(frozen=True, slots=True)
class CapturedFacts:
    """The facts of a request beside its bytes; times are seconds."""

    route: str
    engine: str  # that answered, or was chosen
    model: str | None  # the engine's name for it, where the route sets one
    request_id: str
    head: str  # Latin-1; of REST the request's line and fields, ready to be sent; of gRPC the fields, one a line
    is_call: bool  # by gRPC: request and answer are protobuf messages
    answer_encoding: str  # of gRPC
    status: int  # HTTP's, or gRPC's
    seconds: float  # until the end of the answer
    first_seconds: float  # until it began
    traceparent: str = ""  # of the gateway's span for the request, where it is traced


@dataclass(frozen=True, slots=True)
class Capture:
    """`answer` is all that the client was sent: of REST with head and framing, of gRPC its framed messages."""

    facts: CapturedFacts
    request: bytes
    answer: bytes


def encode(facts: CapturedFacts, request: Sequence[bytes], answer: Sequence[bytes]) -> list[bytes]:
    """A capture as it goes over the socket, in pieces that are not joined."""
    facts_json = orjson.dumps([getattr(facts, name) for name in CapturedFacts.__slots__])
    sizes = _SIZES.pack(len(facts_json), sum(map(len, request)), sum(map(len, answer)))
    return [sizes, facts_json, *request, *answer]


class CaptureReader:
    """Cuts what comes over a socket into captures."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Capture]:
        buffer = self._buffer
        buffer += data
        found: list[Capture] = []
        while len(buffer) >= _SIZES.size:
            facts_json, request, answer = _SIZES.unpack_from(buffer)
            begin = _SIZES.size + facts_json
            end = begin + request + answer
            if len(buffer) < end:
                break
            with memoryview(buffer) as view:  # released before the buffer shrinks
                facts = CapturedFacts(*orjson.loads(view[_SIZES.size : begin]))
                request, answered = bytes(view[begin : begin + request]), bytes(view[begin + request : end])
            found.append(Capture(facts, request, answered))
            del buffer[:end]
        return found


class BoundedCopy:
    """A copy of a body of up to `max_bytes`; of a longer one, nothing is kept."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.pieces: list[bytes] = []
        self.size = 0
        self.is_whole = True

    def add(self, data: bytes) -> None:
        self.size += len(data)
        if self.size <= self._max_bytes:
            self.pieces.append(data)
        elif self.is_whole:
            self.is_whole = False
            self.pieces.clear()


CAPTURED = "captured"

# Beside one capture, which may be longer.
_MAX_WAITING_BYTES = 4 * 1024 * 1024
_RETRY_SECONDS = 0.25
# Captures go together: each write costs a call of the system, and wakes the other process up.
_GATHER_SECONDS = 0.002


class Tap(asyncio.Protocol):
    """`path` is the socket on which the shadow process listens, "" where there is none."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: str) -> None:
        self._loop = loop
        self._path = path
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._under_way: Counter[str] = Counter()  # by route: unconfirmed captures
        self._partial_line = b""  # a confirmation whose end has not come
        self._gathered: list[bytes] = []
        self._num_gathered_bytes = 0
        self.counts: Counter[tuple[str, str]] = Counter()  # by route, and CAPTURED or the reason of a drop

    def open(self) -> None:
        """Connect, and reconnect whenever the connection is lost: some route is mirrored."""
        if self._path and self._connecting is None and self._transport is None:
            self._connecting = self._loop.create_task(self._connect())

    def close(self) -> None:
        self._path = ""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.close()

    def is_open_for(self, route: str, max_in_flight: int) -> bool:
        """Whether a request of this route can be captured now; counted where not."""
        transport = self._transport
        if transport is None:
            self.drop(route, "no_parity_process")
        elif transport.get_write_buffer_size() + self._num_gathered_bytes > _MAX_WAITING_BYTES:
            self.drop(route, "busy")
        elif self._under_way[route] >= max_in_flight:
            self.drop(route, "max_in_flight")
        else:
            return True
        return False

    def give(self, facts: CapturedFacts, request: Sequence[bytes], answer: Sequence[bytes], max_in_flight: int) -> None:
        """Send a capture, where the route still may."""
        if self.is_open_for(facts.route, max_in_flight):
            self.counts[facts.route, CAPTURED] += 1
            self._under_way[facts.route] += 1
            if not self._gathered:
                self._loop.call_later(_GATHER_SECONDS, self._write)
            pieces = encode(facts, request, answer)
            self._gathered += pieces
            self._num_gathered_bytes += sum(map(len, pieces))

    def drop(self, route: str, reason: str) -> None:
        self.counts[route, reason] += 1

    def _write(self) -> None:
        """Write what was gathered; it is lost where the process has died meanwhile."""
        if self._transport is not None:
            self._transport.writelines(self._gathered)
        self._gathered = []
        self._num_gathered_bytes = 0

    async def _connect(self) -> None:
        while self._path:
            try:
                await self._loop.create_unix_connection(lambda: self, self._path)
                break
            except OSError:  # the process is not up
                await asyncio.sleep(_RETRY_SECONDS)
        self._connecting = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        *routes, self._partial_line = (self._partial_line + data).split(b"\n")
        for route in routes:
            self._under_way[route.decode()] -= 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._under_way.clear()
        self._partial_line = b""
        self._connecting = None
        self.open()

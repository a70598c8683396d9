"""A worker's socket to the shadow process, which never delays a request.

The output that waits for the socket is bounded: captures beyond it are dropped and counted. The shadow process confirms
each capture that it is done with by a line with the route; a route with too many unconfirmed ones is not captured.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import cast

from gateway.dataplane.context.capture import CapturedFacts, encode

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

"""The connections of health probes: a bounded number for all endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol


class Connected(Protocol):
    """What holds the connections to one endpoint."""

    @property
    def num_connections(self) -> int: ...

    def disconnect(self) -> None:
        """Close them."""
        ...


class ProbeConnections:
    """Half of the endpoints that fit keep their connections between probes; all others take turns with the other half.

    Turns among all would be worse: with more endpoints than connections, each endpoint's turn is over when its next
    probe comes.
    """

    def __init__(self, limit: int) -> None:
        self._free = asyncio.Semaphore(limit)
        self._most_kept = limit // 2
        self._kept: set[Connected] = set()

    @asynccontextmanager
    async def of(self, endpoint: Connected) -> AsyncIterator[None]:
        """Lend a connection for a probe, as soon as there is one."""
        if endpoint not in self._kept:
            await self._free.acquire()
        try:
            yield
        finally:
            if endpoint.num_connections and (endpoint in self._kept or len(self._kept) < self._most_kept):
                self._kept.add(endpoint)
            else:
                endpoint.disconnect()
                self._kept.discard(endpoint)
                self._free.release()

    def forget(self, endpoint: Connected) -> None:
        """An endpoint is not probed any more, and has no connection."""
        if endpoint in self._kept:
            self._kept.remove(endpoint)
            self._free.release()

"""A listening server: it sweeps its connections once a second, and drains them before it stops."""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from gateway.net.sockets import BACKLOG, bind

_POLL_SECONDS = 0.02
_SWEEP_SECONDS = 1.0


class ServerConnection(Protocol):
    """A client's connection, as its server sees it. It enters and leaves `ConnectionServer.connections` by itself."""

    def sweep(self, now: float) -> None:
        """Called about once a second; `now` is of `time.monotonic`."""
        ...

    def drain(self) -> None:
        """Close as soon as no request is under way."""
        ...

    def abort(self) -> None: ...


class ConnectionServer(ABC):
    """Listens in the running event loop. It handles no signals."""

    def __init__(self) -> None:
        self.connections: set[ServerConnection] = set()
        self.is_draining = False
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None

    @abstractmethod
    def new_connection(self) -> asyncio.Protocol: ...

    async def start(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> int:
        """Listen; port 0 is a free one. Returns the port. Raises: OSError where the address is taken."""
        return await self.serve(bind(host, port), tls=tls)

    async def serve(self, listener: socket.socket, *, tls: ssl.SSLContext | None = None) -> int:
        """Listen on a bound socket, which belongs to this server from now on. Returns the port. Raises: OSError where
        another process listens on the address by now."""
        listener.listen(BACKLOG)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self.new_connection, sock=listener, backlog=BACKLOG, ssl=tls)
        self._sweep = loop.call_later(_SWEEP_SECONDS, self._sweep_connections)
        port: int = listener.getsockname()[1]
        return port

    async def stop(self, grace_seconds: float = 30.0) -> None:
        """Accept nothing more, let requests end for `grace_seconds`, then abort the connections that are left."""
        server, self._server = self._server, None
        if server is None:
            return
        self.is_draining = True
        server.close()
        for connection in list(self.connections):
            connection.drain()
        deadline = monotonic() + grace_seconds
        while self.connections and monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
        for connection in list(self.connections):
            connection.abort()
        if self._sweep is not None:
            self._sweep.cancel()

    def _sweep_connections(self) -> None:
        now = monotonic()
        for connection in list(self.connections):
            connection.sweep(now)
        self._sweep = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._sweep_connections)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop of all processes: uvloop where it is installed, else None for asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory

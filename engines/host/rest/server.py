"""An ASGI application on the gateway's own HTTP/1.1; what it answers directly has neither task nor messages."""

from __future__ import annotations

import asyncio
import socket
import ssl
from time import monotonic

from engines.host.asgi_exchange import Application
from engines.host.client_limits import ClientLimits
from engines.host.rest.connection import HttpConnection
from engines.host.rest.server_context import RestFront
from gateway.net.sockets import BACKLOG, bind

_POLL_SECONDS = 0.02
_SWEEP_SECONDS = 1.0
# How long idle connections stay open when the server stops: a request that is on its way already is answered, with a
# word that it was the last one, where a connection closed under it would look to its client like a crash.
_IDLE_SECONDS = 0.25


class RestServer:
    """Listens in the running event loop; signals are somebody else's."""

    def __init__(
        self, app: Application, limits: ClientLimits | None = None, *, keepalive_seconds: float = 75.0
    ) -> None:
        self._application = app
        self._limits = limits or ClientLimits()
        self._keepalive_seconds = keepalive_seconds
        self._front: RestFront | None = None
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<RestServer {self._front if self._server is not None else 'stopped'}>"

    async def start(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> int:
        """Listen; port 0 is a free one. Returns the port.

        Raises: OSError where the address is taken.
        """
        return await self.serve(bind(host, port), tls=tls)

    async def serve(self, listener: socket.socket, *, tls: ssl.SSLContext | None = None) -> int:
        """Listen on a socket that is bound, which is this server's from now on. Returns the port.

        Raises: OSError where another listens there by now.
        """
        listener.listen(BACKLOG)
        loop = asyncio.get_running_loop()
        front = self._front = RestFront(self._application, self._limits, loop, self._keepalive_seconds)
        self._server = await loop.create_server(lambda: HttpConnection(front), sock=listener, backlog=BACKLOG, ssl=tls)
        self._sweep = loop.call_later(_SWEEP_SECONDS, self._sweep_connections, front)
        bound: int = listener.getsockname()[1]
        return bound

    async def stop(self, grace_seconds: float = 30.0) -> None:
        """Take nothing new, let requests end for so long, and break off what is left."""
        server, self._server = self._server, None
        front = self._front
        if server is None or front is None:
            return
        front.is_draining = True
        server.close()
        for connection in list(front.connections):
            connection.drain()
        begun_at = monotonic()
        while front.connections and (waited := monotonic() - begun_at) < grace_seconds:
            if waited >= _IDLE_SECONDS:
                for connection in list(front.connections):
                    connection.close_if_idle()
            await asyncio.sleep(_POLL_SECONDS)
        for connection in list(front.connections):
            connection.abort()
        while front.tasks:
            for task in list(front.tasks):
                task.cancel()
            await asyncio.sleep(_POLL_SECONDS)
        if self._sweep is not None:
            self._sweep.cancel()

    def _sweep_connections(self, front: RestFront) -> None:
        now = monotonic()
        for connection in list(front.connections):
            connection.sweep(now)
        self._sweep = front.loop.call_later(_SWEEP_SECONDS, self._sweep_connections, front)

"""The gRPC server: it listens, sweeps its connections, and lets calls end before it stops."""

from __future__ import annotations

import asyncio
import socket
import ssl
from time import monotonic

from engines.host.client_limits import ClientLimits
from engines.host.grpc.connection import GrpcConnection
from engines.host.grpc.server_context import GrpcFront
from engines.host.service import Service
from gateway.net.sockets import BACKLOG, bind

_SWEEP_SECONDS = 1.0
_POLL_SECONDS = 0.02


class GrpcServer:
    """Serves Triton's GRPCInferenceService, grpc.health.v1 and reflection."""

    def __init__(self, service: Service, limits: ClientLimits | None = None) -> None:
        self._service = service
        self._limits = limits or ClientLimits()
        self._front: GrpcFront | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[GrpcConnection] = set()
        self._sweep: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<GrpcServer {len(self._connections)} connections>"

    @property
    def port(self) -> int:
        """Where it listens; it was started."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> int:
        """Listen; port 0 is a free one. Returns the port. `tls` must offer "h2" by ALPN.

        Raises: OSError where the address is taken.
        """
        return await self.serve(bind(host, port), tls=tls)

    async def serve(self, listener: socket.socket, *, tls: ssl.SSLContext | None = None) -> int:
        """Listen on a socket that is bound, which is this server's from now on. Returns the port.

        Raises: OSError where another listens there by now.
        """
        listener.listen(BACKLOG)
        loop = asyncio.get_running_loop()
        front = self._front = GrpcFront(self._service, self._limits, loop)
        self._server = await loop.create_server(
            lambda: GrpcConnection(front, self._connections), sock=listener, backlog=BACKLOG, ssl=tls
        )
        self._sweep = loop.call_later(_SWEEP_SECONDS, self._sweep_connections)
        return self.port

    async def stop(self, grace_seconds: float = 30.0) -> None:
        """Take nothing new, let calls end for so long, and break off what is left."""
        if self._server is None or self._front is None:
            return
        self._front.is_draining = True
        self._server.close()
        for connection in list(self._connections):
            connection.drain()
        deadline = monotonic() + grace_seconds
        while self._connections and monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
        for connection in list(self._connections):
            connection.abort()
        if self._sweep is not None:
            self._sweep.cancel()

    def _sweep_connections(self) -> None:
        now = monotonic()
        for connection in list(self._connections):
            connection.sweep(now)
        self._sweep = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._sweep_connections)

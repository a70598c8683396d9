"""An ASGI application on uvicorn, with what it does not need turned off."""

from __future__ import annotations

import asyncio
import socket
import ssl

import uvicorn

from engines.host.rest.exchange import Application

_BACKLOG = 2048
_POLL_SECONDS = 0.02


class RestServer:
    """Listens in the running event loop; signals are somebody else's."""

    def __init__(self, app: Application, *, keepalive_seconds: int = 75) -> None:
        self._config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=keepalive_seconds,
        )
        self._server: uvicorn.Server | None = None
        self._socket: socket.socket | None = None

    def __repr__(self) -> str:
        return f"<RestServer {'listening' if self._socket is not None else 'stopped'}>"

    async def start(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> int:
        """Listen; port 0 is a free one. Returns the port.

        Raises: OSError where the address is taken.
        """
        self._socket = socket.create_server((host, port), backlog=_BACKLOG, reuse_port=False)
        self._config.load()
        self._config.ssl = tls
        server = self._server = uvicorn.Server(self._config)
        server.lifespan = self._config.lifespan_class(self._config)
        await server.startup([self._socket])
        bound: int = self._socket.getsockname()[1]
        return bound

    async def stop(self, grace_seconds: float = 30.0) -> None:
        """Take nothing new, let requests end for so long, and break off what is left."""
        server, self._server = self._server, None
        if server is None:
            return
        self._config.timeout_graceful_shutdown = max(1, int(grace_seconds))
        await server.shutdown([self._socket] if self._socket is not None else [])
        for connection in list(server.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()
        while server.server_state.tasks:
            for task in list(server.server_state.tasks):
                task.cancel()
            await asyncio.sleep(_POLL_SECONDS)
        self._socket = None

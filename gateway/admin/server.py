"""The HTTP server of the admin API in the control process, with bounds on connections, heads and bodies."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import contextmanager
from email.utils import formatdate
from typing import Any

import orjson
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.routing import APIRoute
from starlette.convertors import StringConvertor, register_url_convertor
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.net.sockets import BACKLOG

# Before the next connection is accepted, where one could not be.
_ACCEPT_SECONDS = 0.1
# For a request's head to arrive, and for the first request to begin.
_HEAD_SECONDS = 10.0
# The longest bodies are rule files: a few seconds on a slow line.
_BODY_SECONDS = 30.0
# Pages, scrapers and command lines; the other descriptors of the process are for its workers.
_MAX_CONNECTIONS = 500
_MAX_HEAD_BYTES = 64 * 1024


class _SessionConvertor(StringConvertor):
    """A session's name in a path, which may contain slashes and line ends."""

    regex = r"[\s\S]*"


register_url_convertor("session", _SessionConvertor())


class _Request(Request):
    async def body(self) -> bytes:
        """Raises: HTTPException where it does not arrive in time."""
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                return await super().body()
        except TimeoutError as error:
            raise HTTPException(408, f"the body has not come within {_BODY_SECONDS:g} s") from error

    async def json(self) -> Any:
        """Strict JSON, without lone surrogates and NaN, so that it can be written again. Raises:
        json.JSONDecodeError."""
        return orjson.loads(await self.body())


class JsonRoute(APIRoute):
    """An endpoint whose body is read in time and strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return handled


class _Connection(H11Protocol):
    """A connection that is closed when a request's head is late; uvicorn's other protocol has no such timeout."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        listener = transport.get_extra_info("socket")
        if listener is not None and listener.family == socket.AF_UNIX:
            self.app_state = {**self.app_state, "is_private": True}
        if len(self.connections) > _MAX_CONNECTIONS:
            transport.abort()
        else:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        now = formatdate(usegmt=True).encode()
        self.server_state.default_headers = [(b"date", now), *self.config.encoded_headers]
        super().data_received(data)
        if self._has_request:
            self._stop_timer()
        elif self._timer is None:
            self._start_timer()

    @property
    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(_HEAD_SECONDS, self._close_if_idle)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_if_idle(self) -> None:
        self._timer = None
        if not self._has_request:
            self.transport.close()


class AdminServer(uvicorn.Server):
    """Leaves signals to the supervisor, which drains before it stops. uvicorn's own main loop wakes up ten times a
    second for the `date` of replies, which connections set here instead: an idle gateway uses no processor time."""

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(config)
        self._tls = tls
        self._is_stopping = asyncio.Event()
        self._accepting: set[asyncio.Task[None]] = set()
        self._handshakes: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Unix sockets are served without TLS."""
        await super().startup([])
        loop = asyncio.get_running_loop()
        for listener in sockets or ():
            if listener.family == socket.AF_UNIX:
                server = await loop.create_unix_server(self._connection, sock=listener)
            elif self._tls is not None:
                self._keep(self._accepting, self._accept(listener, self._tls))
                continue
            else:
                server = await loop.create_server(self._connection, sock=listener)
            self.servers.append(server)

    async def _accept(self, listener: socket.socket, tls: ssl.SSLContext) -> None:
        """Accept connections with TLS, which count from here on, before their handshake."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        listener.listen(BACKLOG)
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError:  # the client has left, or there are no descriptors
                await asyncio.sleep(_ACCEPT_SECONDS)
                continue
            if len(self._handshakes) + len(self.server_state.connections) >= _MAX_CONNECTIONS:
                accepted.close()
            else:
                self._keep(self._handshakes, self._handshake(accepted, tls))

    async def _handshake(self, accepted: socket.socket, tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(self._connection, accepted, ssl=tls, ssl_handshake_timeout=_HEAD_SECONDS)
        except OSError:  # ssl.SSLError and the timeout are
            accepted.close()

    def _keep(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _connection(self) -> _Connection:
        return _Connection(self.config, self.server_state, self.lifespan.state)

    @contextmanager
    def capture_signals(self) -> Any:
        yield

    async def main_loop(self) -> None:
        await self._is_stopping.wait()

    def stop(self) -> None:
        """Have `serve` return once the requests under way have ended."""
        self.should_exit = True
        for task in (*self._accepting, *self._handshakes):
            task.cancel()
        self._is_stopping.set()


def admin_server(app: FastAPI, tls: ssl.SSLContext | None = None) -> AdminServer:
    """A server for the supervisor's loop: `serve([listening socket])`."""
    config = uvicorn.Config(
        app,
        http=_Connection,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        ws="none",
        access_log=False,
        proxy_headers=False,  # uvicorn would believe x-forwarded-for of everybody on this host
        log_level="warning",
        log_config=None,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    return AdminServer(config, tls)

"""The HTTP server of the admin API in the control process, with bounds on connections and heads."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Coroutine
from contextlib import contextmanager
from email.utils import formatdate
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from gateway.admin.connection_places import Place, Places, Standing
from gateway.net.sockets import BACKLOG

# Before the next connection is accepted, where one could not be.
_ACCEPT_SECONDS = 0.1
# For a request's head to arrive, and for the first request to begin.
_HEAD_SECONDS = 10.0
# Pages, scrapers and command lines by TCP; the other descriptors of the process are for its workers.
_MAX_CONNECTIONS = 500
_MAX_OF_ADDRESS = 250
_MAX_HEAD_BYTES = 64 * 1024


class _Connection(H11Protocol):
    """A connection that is closed when a request's head is late; uvicorn's other protocol has no such timeout."""

    _timer: asyncio.TimerHandle | None = None

    def __init__(
        self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any], place: Place | None = None
    ) -> None:
        """`place` is None by the Unix socket, which only this gateway's user can open."""
        super().__init__(config, server_state, app_state)
        self._place = place
        self.app_state = {**app_state, "admitted": self._admitted}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        accepted = transport.get_extra_info("socket")
        if accepted is not None and accepted.family == socket.AF_UNIX:
            self.app_state["is_private"] = True
        if self._place is not None:
            self._place.close = transport.abort
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._place is not None:
            self._place.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        now = formatdate(usegmt=True).encode()
        self.server_state.default_headers = [(b"date", now), *self.config.encoded_headers]
        super().data_received(data)
        if self._has_request:
            self._stop_timer()
            self._rise(Standing.REQUESTED)
        elif self._timer is None:
            self._start_timer()

    def _admitted(self) -> None:
        self._rise(Standing.ADMITTED)

    def _rise(self, standing: Standing) -> None:
        if self._place is not None:
            self._place.rise(standing)

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
        self._places = Places(_MAX_CONNECTIONS, _MAX_OF_ADDRESS)
        self._accepting: set[asyncio.Task[None]] = set()
        self._handshakes: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Unix sockets are served without TLS, and their connections do not count."""
        await super().startup([])
        loop = asyncio.get_running_loop()
        for listener in sockets or ():
            if listener.family == socket.AF_UNIX:
                self.servers.append(await loop.create_unix_server(self._connection, sock=listener))
            else:
                self._keep(self._accepting, self._accept(listener))

    async def _accept(self, listener: socket.socket) -> None:
        """Accept connections, which count from here on, before their handshake."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        listener.listen(BACKLOG)
        while True:
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError:  # the client has left, or there are no descriptors
                await asyncio.sleep(_ACCEPT_SECONDS)
                continue
            place = self._places.take(address[0], accepted.close)
            if place is None:
                accepted.close()
            else:
                place.close = self._keep(self._handshakes, self._handshake(accepted, place)).cancel
            await asyncio.sleep(0)  # the task begins, and so do others: `sock_accept` may not wait

    async def _handshake(self, accepted: socket.socket, place: Place) -> None:
        seconds = _HEAD_SECONDS if self._tls is not None else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._connection(place), accepted, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except BaseException as error:
            place.leave()
            accepted.close()
            if not isinstance(error, OSError):  # ssl.SSLError and the timeout are
                raise

    def _keep(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    def _connection(self, place: Place | None = None) -> _Connection:
        return _Connection(self.config, self.server_state, self.lifespan.state, place)

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


def admin_server(app: ASGIApp, tls: ssl.SSLContext | None = None) -> AdminServer:
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

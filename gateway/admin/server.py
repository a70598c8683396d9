"""The server of the admin API, as the control process runs it: whoever reaches the port, it takes no more of the
process than it has to spare."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from email.utils import formatdate
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

# For a request's head to come, and for the first one to begin.
_HEAD_SECONDS = 10.0
# Pages, scrapers and command lines; the rest of the process' descriptors is for its workers.
_MAX_CONNECTIONS = 500
_MAX_HEAD_BYTES = 64 * 1024


class _Connection(H11Protocol):
    """One caller's; without a key, and without a request even, one can only hold it for a while. The other protocol
    that uvicorn has knows no end of a head."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > _MAX_CONNECTIONS:
            transport.abort()
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        now = formatdate(usegmt=True).encode()
        self.server_state.default_headers = [(b"date", now), *self.config.encoded_headers]
        super().data_received(data)
        if self._has_request:
            self._wait_no_more()
        elif self._waiting is None:
            self._wait()

    @property
    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(_HEAD_SECONDS, self._give_up)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
        if not self._has_request:
            self.transport.close()


class AdminServer(uvicorn.Server):
    """Leaves signals to the supervisor, which drains before it stops. uvicorn's own wakes up ten times a second, for
    the `date` of replies, which connections tell here: a gateway without work is to leave the machine alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._is_stopping = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Any:
        yield

    async def main_loop(self) -> None:
        await self._is_stopping.wait()

    def stop(self) -> None:
        """Have `serve` return, once requests under way have ended."""
        self.should_exit = True
        self._is_stopping.set()


def admin_server(app: FastAPI) -> AdminServer:
    """A server to be run in the supervisor's loop by `serve([listening socket])`."""
    config = uvicorn.Config(
        app,
        http=_Connection,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        ws="none",
        access_log=False,
        log_level="warning",
        log_config=None,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    return AdminServer(config)

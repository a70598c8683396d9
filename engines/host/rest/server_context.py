"""What the connections of one REST server share."""

from __future__ import annotations

import asyncio
from typing import Protocol

from engines.host.asgi_exchange import Application
from engines.host.client_limits import ClientLimits
from engines.host.rest.request_head import PreparedRequest
from gateway.wire.memo import Memo


class ClientConnection(Protocol):
    """A client's connection, as its server sees it."""

    def sweep(self, now: float) -> None: ...
    def drain(self) -> None: ...

    def close_if_idle(self) -> None: ...
    def abort(self) -> None: ...


class RestFront:
    """Made once for each server; `idle_seconds` a client may be silent between two requests."""

    def __init__(
        self, application: Application, limits: ClientLimits, loop: asyncio.AbstractEventLoop, idle_seconds: float
    ) -> None:
        self.application = application
        self.limits = limits
        self.loop = loop
        self.idle_seconds = idle_seconds
        self.read: Memo[PreparedRequest] = Memo(lambda head: PreparedRequest(head, application))
        self.connections: set[ClientConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_draining = False

    def __repr__(self) -> str:
        return f"<RestFront: {len(self.connections)} connections, {len(self.tasks)} tasks>"

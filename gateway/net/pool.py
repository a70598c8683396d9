"""Connection pools of one worker to one endpoint: what the pools of HTTP/1.1 and HTTP/2 connections have in common."""

from __future__ import annotations

import asyncio
import random
import ssl
import sys
from abc import ABC, abstractmethod
from collections import deque
from itertools import islice
from math import inf
from typing import Generic, Protocol, TypeVar

from gateway.net.http2_keepalive import KeepaliveLimits
from gateway.net.sockets import keep_alive
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.local_network import local_network_hint

# Of `max_age`: connections that were made together do not end together.
_AGE_JITTER = 0.2

AnyConnection = TypeVar("AnyConnection", bound=asyncio.Protocol)
Wanted = TypeVar("Wanted", contravariant=True)


class Waiter(Protocol[Wanted]):
    """A request that waits for a connection. It gets exactly one of these calls, unless it leaves the queue before."""

    def connected(self, connection: Wanted) -> None:
        """A connection with room for one request, which must be sent now."""
        ...

    def connect_failed(self, error: GatewayError) -> None: ...


class PoolLimits(KeepaliveLimits, Protocol):
    """Times are in seconds; `gateway.config.engine_specs.ConnectionSpec` documents each."""

    @property
    def max_connections(self) -> int: ...
    @property
    def max_pending(self) -> int: ...
    @property
    def max_client_share(self) -> float: ...
    @property
    def idle_timeout(self) -> float: ...
    @property
    def connect_timeout(self) -> float: ...
    @property
    def max_streams(self) -> int: ...
    @property
    def window_bytes(self) -> int: ...
    @property
    def max_age(self) -> float: ...


class Pool(ABC, Generic[AnyConnection]):
    """A queue of waiters, and the connection attempts made for them. An attempt serves those first in the queue when it
    succeeds and fails them when it does not, so no waiter depends on an attempt that is over."""

    __slots__ = (
        "_connections",
        "_idle",
        "_idle_timeout",
        "_limits",
        "_num_connecting",
        "_server_name",
        "_tasks",
        "_tls",
        "_waiting",
        "host",
        "port",
    )

    def __init__(
        self,
        host: str,
        port: int,
        limits: PoolLimits,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self._limits = limits
        self._idle_timeout = limits.idle_timeout
        self._tls = tls
        self._server_name = server_name
        self._connections: dict[AnyConnection, None] = {}  # the established ones, in order
        self._idle: list[AnyConnection] = []  # those without a request, the latest last; of HTTP/1.1 alone
        self._waiting: deque[Waiter[AnyConnection]] = deque()
        self._num_connecting = 0
        self._tasks: set[asyncio.Task[None]] = set()  # the attempts: the event loop holds tasks by weak references

    @property
    def _requests_each(self) -> int:
        """How many requests one connection serves at a time: as many waiters one attempt is made for."""
        return 1

    # Whether a peer that reads nothing for long is gone. An HTTP/1.1 server may leave a request unread for as long as
    # it has others; an HTTP/2 server always reads.
    _ends_unread = False

    @property
    def size(self) -> int:
        """Connections, including those being established."""
        return len(self._connections) + self._num_connecting

    @abstractmethod
    def acquire(self, waiter: Waiter[AnyConnection], now: float = inf) -> AnyConnection | None:
        """A connection with room for a request; None: the waiter is queued until there is one. `now` is a
        monotonic time. Raises: GatewayError(OVERLOADED) when the queue is full."""

    def forget(self, waiter: Waiter[AnyConnection]) -> None:
        """Remove a waiter from the queue, if it is there."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)

    def discard(self, connection: AnyConnection) -> None:
        """A connection is closed, or takes no more requests."""
        self._connections.pop(connection, None)
        self._connect_for_waiters()

    @abstractmethod
    def close_idle(self, idle_before: float = float("inf")) -> None:
        """Close the connections that have been idle since before `idle_before` (seconds of `monotonic`)."""

    @abstractmethod
    def renew(self, now: float = inf) -> None:
        """The connections that are too old by `now` take no further request, and close once they have none; without
        `now` all of them."""

    @abstractmethod
    def timed_out(self, sent_at: float) -> None:
        """A request that was sent at `sent_at` has had no reply in time: connections that have brought nothing since
        may be dead, and take no further request."""

    def close_stale(self, now: float) -> None:
        """Close what has been idle for longer than the limit, or is too old; called about once a second."""
        self.close_idle(now - self._idle_timeout)
        self.renew(now)

    def _retires_at(self, now: float) -> float:
        """When a connection that is made now takes no further request."""
        max_age = self._limits.max_age
        return now + max_age * random.uniform(1 - _AGE_JITTER, 1) if max_age else inf

    def retire(self) -> None:
        """The rules no longer name this address: requests in flight end, and no connection is kept for later."""
        self._idle_timeout = 0.0
        self.close_idle()

    def _refuse(self, state: str) -> GatewayError:
        what = f"all {self.size} connections are {state}, {len(self._waiting)} requests wait already"
        return GatewayError(ErrorKind.OVERLOADED, what)

    def _connect_for_waiters(self) -> None:
        """Start the attempts that the queue needs beyond those under way, as far as the limit allows."""
        needed = -(-len(self._waiting) // self._requests_each)
        while self._num_connecting < needed and self.size < self._limits.max_connections:
            self._num_connecting += 1
            task = asyncio.get_running_loop().create_task(self._connect())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> None:
        connection = self._new_connection()
        try:
            transport = await connect(
                connection, self.host, self.port, self._limits.connect_timeout, self._tls, self._server_name
            )
        except (OSError, UnicodeError) as error:
            self._num_connecting -= 1
            failed = connect_error(error, self.host, self.port, self._limits.connect_timeout)
            for waiter in list(islice(self._waiting, self._requests_each)):
                if waiter in self._waiting:  # else the failure of another one has removed it
                    self._waiting.remove(waiter)
                    waiter.connect_failed(failed)
            self._connect_for_waiters()
            return
        self._num_connecting -= 1
        if interval := self._limits.keepalive_interval:
            keep_alive(transport, interval, self._limits.keepalive_timeout, ends_unread=self._ends_unread)
        self._add(connection)

    @abstractmethod
    def _new_connection(self) -> AnyConnection: ...

    @abstractmethod
    def _add(self, connection: AnyConnection) -> None:
        """A connection is established."""


async def connect(
    protocol: asyncio.Protocol,
    host: str,
    port: int,
    timeout: float,
    tls: ssl.SSLContext | None,
    server_name: str | None,
) -> asyncio.Transport:
    """Connect a protocol; `timeout` is in seconds, 0 for none. Raises: OSError, which includes TLS errors and timeouts;
    UnicodeError for a name that cannot be resolved."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout or None):
        made = await loop.create_connection(lambda: protocol, host, port, ssl=tls, server_hostname=server_name)
    return made[0]


def connect_error(error: Exception, host: str, port: int, timeout: float) -> GatewayError:
    """What `connect` raised, as the caller may read it."""
    if isinstance(error, TimeoutError):
        why = f"it did not answer within {timeout:g} s"
    elif isinstance(error, ssl.SSLError):
        why = f"the TLS handshake failed: {error.reason or error}"
    else:
        why = str(error)
        if hint := local_network_hint(error, host, sys.platform):
            why = f"{why}: {hint}"
    return GatewayError(ErrorKind.UPSTREAM_CONNECT, f"cannot connect to {host}:{port}: {why}")

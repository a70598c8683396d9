"""HTTP/2 connections to an endpoint, each with many streams, and their pool."""

from __future__ import annotations

import logging
import ssl
from dataclasses import replace
from math import inf
from time import monotonic

from gateway.net.http2_keepalive import TOO_MANY_PINGS, Keepalive, KeepaliveAction
from gateway.net.http2_transport import Http2Transport
from gateway.net.pool import Pool, PoolLimits, Waiter
from gateway.wire.http2.frames import ErrorCode
from gateway.wire.http2.state import Http2Limits
from gateway.wire.http2.stream import Stream, StreamReceiver

_log = logging.getLogger(__name__)

# Engines send large header blocks at times, and may reset as many streams as they like.
_LIMITS = Http2Limits(max_header_bytes=256 * 1024)


class Http2ClientConnection(Http2Transport):
    """Opens streams for the waiters of its pool."""

    __slots__ = ("_pool", "has_settings", "idle_since", "keepalive", "retires_at")

    def __init__(self, pool: Http2Pool, limits: Http2Limits, keepalive: Keepalive, retires_at: float) -> None:
        super().__init__(limits, is_client=True)
        self._pool = pool
        self.keepalive = keepalive
        self.retires_at = retires_at  # by `time.monotonic`
        self.idle_since = 0.0
        self.has_settings = False  # the endpoint's SETTINGS have come, which limit its streams

    def open_stream(self, receiver: StreamReceiver) -> Stream:
        return self.http2.open_stream(receiver)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.discard(self)
        super().connection_lost(exc)

    def stream_closed(self) -> None:
        if self.http2.is_leaving and not self.http2.streams:
            self.close()
        else:
            self._pool.has_room(self)

    def settings_changed(self) -> None:
        self.has_settings = True
        if not self.http2.is_leaving:
            self._pool.has_room(self)

    def peer_is_leaving(self) -> None:
        self._pool.peer_is_leaving(self)
        if not self.http2.streams:
            self.close()


class Http2Pool(Pool[Http2ClientConnection]):
    """Fills a connection up to `max_streams` before it opens another one."""

    __slots__ = ("_leaving", "_ping_factor")
    _ends_unread = True

    def __init__(
        self,
        host: str,
        port: int,
        limits: PoolLimits,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> None:
        super().__init__(host, port, limits, tls, server_name)
        self._leaving: dict[Http2ClientConnection, None] = {}  # those with streams that take no further ones
        self._ping_factor = 1  # of the interval between PINGs, doubled where the peer has had too many

    @property
    def _requests_each(self) -> int:
        return self._limits.max_streams

    def __repr__(self) -> str:
        address = f"{self.host}:{self.port}"
        connections = f"{len(self._connections)} connections, {self.num_streams} streams"
        return f"<Http2Pool {address} {connections}, {len(self._waiting)} wait>"

    @property
    def num_streams(self) -> int:
        return sum(len(connection.http2.streams) for connection in self._connections)

    def acquire(self, waiter: Waiter[Http2ClientConnection], now: float = inf) -> Http2ClientConnection | None:
        connection = self._with_room()
        if connection is not None:
            return connection
        if len(self._waiting) >= self._limits.max_pending:
            raise self._refuse("full")
        self._waiting.append(waiter)
        self._connect_for_waiters()
        return None

    def has_room(self, connection: Http2ClientConnection) -> None:
        """A stream of a connection has ended, or the endpoint has sent how many it takes."""
        if self._waiting:
            self._serve_waiters()
            self._connect_for_waiters()
        if not connection.http2.streams:
            self._rest(connection)

    def close_idle(self, idle_before: float = float("inf")) -> None:
        for connection in list(self._connections):
            if not connection.http2.streams and connection.idle_since < idle_before:
                self._close(connection)

    def retire(self) -> None:
        super().retire()
        for connection in self._connections:
            connection.http2.leave()

    def discard(self, connection: Http2ClientConnection) -> None:
        self._leaving.pop(connection, None)
        super().discard(connection)

    def renew(self, now: float = inf) -> None:
        for connection in [each for each in self._connections if each.retires_at <= now]:
            self._leave(connection)

    def timed_out(self, sent_at: float) -> None:
        for connection in [each for each in self._connections if each.read_at < sent_at]:
            self._leave(connection)

    def close_stale(self, now: float) -> None:
        for connection in [*self._connections, *self._leaving]:
            connection.http2.tick()
            self._check_silence(connection, now)
        super().close_stale(now)

    def peer_is_leaving(self, connection: Http2ClientConnection) -> None:
        """A connection has brought GOAWAY."""
        if connection.http2.peer_goaway == (ErrorCode.ENHANCE_YOUR_CALM, TOO_MANY_PINGS):
            self._ping_factor *= 2
            seconds = self._limits.keepalive_interval * self._ping_factor
            _log.warning("%s:%d has closed a connection for its PINGs: from now on every %g s", *self._address, seconds)
        self._set_aside(connection)

    @property
    def _address(self) -> tuple[str, int]:
        return self.host, self.port

    def _check_silence(self, connection: Http2ClientConnection, now: float) -> None:
        """Send a PING where one is due; give up a connection that has not answered one: its calls are reset."""
        http2 = connection.http2
        action = connection.keepalive.check(
            now, connection.read_at, http2.owed, is_busy=bool(http2.streams), factor=self._ping_factor
        )
        if action is KeepaliveAction.PING:
            http2.ping()
        elif action is KeepaliveAction.DEAD:
            limits = self._limits
            _log.warning("%s:%d is silent on a connection, which is closed", *self._address)
            self.discard(connection)
            http2.lose(f"it has not answered a PING within {limits.keepalive_timeout:g} s")
            connection.abort()

    def _leave(self, connection: Http2ClientConnection) -> None:
        """A connection takes no further streams, and closes once it has none."""
        if connection.http2.streams:
            connection.http2.leave()
            self._set_aside(connection)
        else:
            self._close(connection)

    def _set_aside(self, connection: Http2ClientConnection) -> None:
        self.discard(connection)
        if connection.http2.streams:
            self._leaving[connection] = None

    def _rest(self, connection: Http2ClientConnection) -> None:
        """A connection has no stream."""
        connection.idle_since = monotonic()
        if not self._idle_timeout and connection in self._connections:
            self._close(connection)

    def _close(self, connection: Http2ClientConnection) -> None:
        del self._connections[connection]
        connection.http2.leave()
        connection.close()

    def _with_room(self) -> Http2ClientConnection | None:
        limit = self._limits.max_streams
        for connection in self._connections:
            http2 = connection.http2
            num_streams = len(http2.streams)
            if num_streams and not connection.has_settings:
                continue  # before SETTINGS come, one stream may be tried
            if num_streams < limit and num_streams < http2.peer_max_streams and not http2.is_leaving:
                return connection
        return None

    def _serve_waiters(self) -> None:
        while self._waiting:
            connection = self._with_room()
            if connection is None:
                return
            self._waiting.popleft().connected(connection)

    def _connect_for_waiters(self) -> None:
        """Until all endpoints' SETTINGS have come, those connections may have room for all waiters."""
        if all(connection.has_settings for connection in self._connections):
            super()._connect_for_waiters()

    def _new_connection(self) -> Http2ClientConnection:
        limits = self._limits
        http2_limits = replace(_LIMITS, window_bytes=limits.window_bytes)
        return Http2ClientConnection(self, http2_limits, Keepalive(limits), self._retires_at(monotonic()))

    def _add(self, connection: Http2ClientConnection) -> None:
        if connection.is_closing:
            self._connect_for_waiters()
            return
        self._connections[connection] = None
        self._serve_waiters()
        self._connect_for_waiters()
        if not connection.http2.streams:  # the waiters have left
            self._rest(connection)

"""A new connection: its first bytes, or ALPN, select HTTP/1.1 or HTTP/2."""

from __future__ import annotations

import asyncio
import ssl
from time import monotonic
from typing import cast

from gateway.dataplane.context.active_requests import ActiveRequest
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.http1_server import Http1ServerConnection
from gateway.dataplane.http2_server import Http2ServerConnection
from gateway.wire.http2.frames import PREFACE


class ProtocolDetector(asyncio.Protocol):
    """Waits until it is clear whether HTTP/2's preface comes (RFC 9113 section 3.4), then steps aside.

    Under TLS, ALPN selects it; a client that offered nothing is detected by its first bytes too.
    """

    __slots__ = ("_buffer", "_plane", "_since", "_transport", "peer")

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self.peer = "-"
        self._buffer = b""
        self._since = monotonic()
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)  # set before anything else happens

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        plane = self._plane
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if address else "-"
        full = plane.too_many_connections(self.peer)
        tls = transport.get_extra_info("ssl_object")
        chosen = tls.selected_alpn_protocol() if isinstance(tls, ssl.SSLObject) else None
        if chosen == "h2":
            client = Http2ServerConnection(plane)
            self._become(client)
            if full is not None:
                client.refuse(full)
        elif chosen is not None or full is not None:
            self._become(Http1ServerConnection(plane))
        else:
            plane.connections.add(self)

    def data_received(self, data: bytes) -> None:
        data = self._buffer + data if self._buffer else data
        if data.startswith(PREFACE):
            self._become(Http2ServerConnection(self._plane), data)
        elif PREFACE.startswith(data):
            self._buffer = data
        else:
            self._become(Http1ServerConnection(self._plane), data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._plane.connections.discard(self)

    def drain(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def live(self) -> list[ActiveRequest]:
        """Nothing has come."""
        return []

    def sweep(self, now: float) -> None:
        """Nothing has come: what an HTTP/1.1 connection may do for as long as it is idle."""
        limits = self._plane.settings.limits
        if now - self._since > (limits.header_timeout if self._buffer else limits.idle_timeout):
            self._transport.close()

    def _become(self, protocol: Http1ServerConnection | Http2ServerConnection, data: bytes = b"") -> None:
        self._plane.connections.discard(self)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if data:
            protocol.data_received(data)

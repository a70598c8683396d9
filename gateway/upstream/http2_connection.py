"""One HTTP/2 connection to an endpoint: many requests at a time, each a stream."""

from __future__ import annotations

from typing import Protocol

from gateway.upstream.http2_transport import Http2Transport
from gateway.wire.http2.connection import Http2Limits
from gateway.wire.http2.stream import Stream, StreamReceiver


class StreamHome(Protocol):
    """Where a connection belongs."""

    def has_room(self, connection: StreamConnection) -> None:
        """A stream of it has ended."""
        ...

    def discard(self, connection: StreamConnection) -> None:
        """It takes no more streams, or is closed."""
        ...


class StreamConnection(Http2Transport):
    """Opens streams for whoever its pool sends."""

    __slots__ = ("_home", "has_settings", "idle_since")

    def __init__(self, home: StreamHome, limits: Http2Limits) -> None:
        super().__init__(limits, is_client=True)
        self._home = home
        self.idle_since = 0.0
        self.has_settings = False  # the endpoint has told how many streams it takes

    def __repr__(self) -> str:
        return f"<StreamConnection {self.http2!r}>"

    @property
    def num_streams(self) -> int:
        return len(self.http2.streams)

    def open_stream(self, receiver: StreamReceiver) -> Stream:
        return self.http2.open_stream(receiver)

    def connection_lost(self, exc: Exception | None) -> None:
        self._home.discard(self)
        super().connection_lost(exc)

    def stream_closed(self) -> None:
        if self.http2.is_leaving and not self.http2.streams:
            self.close()
        else:
            self._home.has_room(self)

    def settings_changed(self) -> None:
        self.has_settings = True
        if not self.http2.is_leaving:
            self._home.has_room(self)

    def peer_is_leaving(self) -> None:
        self._home.discard(self)
        if not self.http2.streams:
            self.close()

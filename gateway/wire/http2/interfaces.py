"""What a connection and whoever has its socket are to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gateway.wire.http2.fields import Block
from gateway.wire.http2.stream import Stream


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """What the peer may use up."""

    max_streams: int = 1000  # at the same time
    window_bytes: int = 256 * 1024  # what may come on one stream before somebody has taken it
    max_frame_bytes: int = 64 * 1024
    max_header_bytes: int = 64 * 1024
    max_resets: int = 2000  # streams broken off in a burst; a twentieth of it each second for good (CVE-2023-44487)


class ConnectionOwner(Protocol):
    """Whoever has the socket."""

    def stream_opened(self, stream: Stream, block: Block, ended: bool) -> None:
        """The peer asks something: a server sets the stream's receiver."""
        ...

    def stream_closed(self) -> None:
        """There is room for one more stream."""
        ...

    def settings_changed(self) -> None:
        """The peer has told how many streams it takes, for the first time or anew."""
        ...

    def peer_is_leaving(self) -> None:
        """The peer takes no new streams (GOAWAY)."""
        ...

    def has_output(self) -> None:
        """`out` is no longer empty."""
        ...

    def has_relayed(self) -> None:
        """See `Outlet`."""
        ...


class NullOwner:
    """The receiver of streams that nobody has taken yet."""

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None: ...

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None: ...

    def trailers_received(self, stream: Stream, block: Block) -> None: ...

    def stream_reset(self, stream: Stream, code: int, why: str) -> None: ...

    def drained(self, stream: Stream) -> None: ...


NOBODY = NullOwner()

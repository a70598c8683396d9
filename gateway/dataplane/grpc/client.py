"""Between a client's HTTP/2 connection and whoever answers its calls: what each may ask of the other."""

from __future__ import annotations

from typing import Protocol

from gateway.dataplane.context.active_request import Progress
from gateway.dataplane.context.data_plane import DataPlane
from gateway.protocol.errors import GatewayError
from gateway.wire.http2.stream import Stream, StreamReceiver


class CallClient(Protocol):
    """A client's connection, as a call sees it. `passing` are the fields that tell engines of the client, encoded."""

    plane: DataPlane
    peer: str
    is_tls: bool
    passing: bytes

    def call_ended(self, stream: Stream) -> None:
        """The reply is sent, or waits for the client to read it; what of the request still comes is not wanted."""
        ...


class CallHandler(StreamReceiver, Protocol):
    """Whoever answers a call; it ends by the client's `call_ended`, or by `stream_reset` of its stream."""

    def sweep(self, now: float) -> None:
        """Called about once a second; `now` is of `time.monotonic`."""
        ...

    def progress(self) -> Progress | None:
        """How far it is; None where it is over."""
        ...

    def cancel(self, error: GatewayError) -> None:
        """End it with this error: the engine is told at once, and so is the client."""
        ...

"""A call as an engine gets it: the fields that go with it, on a stream of a connection to the endpoint."""

from __future__ import annotations

from gateway.dataplane.context.call_head import CallHead, Way
from gateway.dataplane.grpc.client import CallClient
from gateway.dataplane.grpc.reply_headers import request_id_literal, timeout_literal
from gateway.net.http2_client import Http2ClientConnection
from gateway.upstream.endpoint import Endpoint
from gateway.wire.http2.stream import Stream, StreamReceiver


class UpstreamCall:
    """What every stream opened for one call carries. `expires_at` is the client's deadline, by `time.monotonic`; 0
    where it has none."""

    __slots__ = ("_passing", "expires_at")

    def __init__(self, client: CallClient, head: CallHead, request_id: bytes, started_at: float) -> None:
        self._passing = b"".join((client.passing, head.passing, request_id_literal(request_id)))
        self.expires_at = started_at + head.timeout if head.timeout is not None else 0.0

    def open(
        self, connection: Http2ClientConnection, receiver: StreamReceiver, way: Way, endpoint: Endpoint, now: float
    ) -> Stream:
        """Open a stream, and send the call's fields; what is left until the deadline is told."""
        stream = connection.open_stream(receiver)
        passing = self._passing
        if self.expires_at:
            passing += timeout_literal(self.expires_at - now)
        stream.send_headers(way.head(endpoint), passing)
        return stream

"""One client's HTTP/2 connection: calls come and go on its streams."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from gateway.dataplane.context.active_requests import ActiveRequest
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.reply_fields import reason_fields
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.dispatch.http2 import handler_of_stream
from gateway.dataplane.grpc.interfaces import OpenCall
from gateway.dataplane.grpc.reply_headers import send_status, status_fields
from gateway.dataplane.protocol_bridge.rest_over_http2 import RestOverHttp2
from gateway.net.client_certificate import ClientCertificate, certificate_of
from gateway.net.http2_transport import Http2Server, Http2Timeouts
from gateway.net.transfer_rate import TransferRate
from gateway.protocol.errors import GatewayError
from gateway.wire.http2.fields import Block, Field
from gateway.wire.http2.frames import ErrorCode, Http2Error
from gateway.wire.http2.hpack import literals
from gateway.wire.http2.state import NO_RECEIVER, Http2Limits
from gateway.wire.http2.stream import Stream


class Http2ServerConnection(Http2Server):
    """The front of HTTP/2: hands each stream to a handler."""

    __slots__ = ("_rates", "_unread", "certificate", "forwarded", "is_tls", "passing", "peer", "plane")

    def __init__(self, plane: DataPlane) -> None:
        limits = plane.settings.limits
        super().__init__(
            Http2Limits(
                max_streams=limits.max_streams,
                window_bytes=limits.window_bytes,
                max_header_bytes=limits.max_header_bytes,
                max_resets=limits.max_resets,
            ),
            Http2Timeouts(opening=limits.header_timeout, read=limits.body_timeout, idle=limits.idle_timeout),
            plane.read_call.own_names,
        )
        self.plane = plane
        self._rates: dict[Stream, TransferRate] = {}  # of those that wait
        self._unread: dict[Stream, tuple[int, float]] = {}  # how much waits on a stream, and since when just as much
        self.peer = "-"
        self.is_tls = False
        self.certificate: ClientCertificate | None = None
        self.forwarded: Sequence[Field] = ()
        self.passing = b""

    # Events of the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if address else "-"
        self.is_tls = transport.get_extra_info("sslcontext") is not None
        self.certificate = certificate_of(transport) if self.is_tls else None
        self.forwarded = [
            (b"x-forwarded-for", self.peer.encode("ascii", "replace")),
            (b"x-forwarded-proto", b"https" if self.is_tls else b"http"),
        ]
        self.passing = literals(self.forwarded)
        super().connection_made(transport)
        self.plane.connections.add(self)
        if self.plane.is_draining:
            self.drain()

    def connection_lost(self, exc: Exception | None) -> None:
        self.plane.connections.discard(self)
        super().connection_lost(exc)

    # Events of the HTTP/2 connection

    def stream_opened(self, stream: Stream, block: Block, ended: bool) -> None:
        stream.receiver = call = handler_of_stream(self, stream, block)
        if ended:
            call.data_received(stream, b"", True)

    # What calls require: see `CallClient`

    def call_failed(
        self,
        stream: Stream,
        error: GatewayError,
        request_id: bytes,
        route_target: RouteTarget | None,
        *,
        begun: bool,
        code: int | None,
    ) -> None:
        fields = status_fields(error.status.grpc if code is None else code, error.message) + reason_fields(error)
        send_status(stream, fields, request_id, route_target, begun=begun)

    def live(self) -> list[ActiveRequest]:
        calls = [cast(OpenCall, stream.receiver) for stream in self.http2.streams.values()]
        return [
            ActiveRequest(progress, id(call), call.cancel)
            for call in calls
            if (progress := call.progress()) is not None
        ]

    # Closing

    def refuse(self, error: GatewayError) -> None:
        """Serve nothing on this connection."""
        self.plane.metrics.unrouted.count_error(error.kind.value)
        self.http2.fail(Http2Error(ErrorCode.ENHANCE_YOUR_CALM, error.message))
        self.close()

    def _drop_unread(self, now: float) -> None:
        """Break off streams whose client has read nothing of what waits for too long, and replies of REST, which keep
        an engine's connection, that it reads below the least rate."""
        waiting = {stream: stream.num_waiting for stream in self.http2.streams.values() if stream.num_waiting}
        before, self._unread = self._unread, {}
        rates, self._rates = self._rates, {}
        limits = self.plane.settings.limits
        for stream, size in waiting.items():
            since = before[stream][1] if stream in before and before[stream][0] == size else now
            is_late = now - since > limits.body_timeout
            if isinstance(stream.receiver, RestOverHttp2):
                self._rates[stream] = rate = rates.get(stream) or TransferRate(stream, size, now)
                is_late = is_late or rate.is_below(limits.min_rate, size, now)
            if is_late:
                receiver = stream.receiver
                stream.reset(ErrorCode.CANCEL)
                receiver.stream_reset(stream, ErrorCode.CANCEL, "the client does not read")
            else:
                self._unread[stream] = (size, since)

    def sweep(self, now: float) -> None:
        for stream in list(self.http2.streams.values()):
            if stream.receiver is not NO_RECEIVER:  # the end of one may have ended another
                cast(OpenCall, stream.receiver).sweep(now)
        self._drop_unread(now)
        if self.certificate is not None and self.certificate.is_over:
            self.drain()
        super().sweep(now)

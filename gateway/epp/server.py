"""The gRPC server: Envoy's `ExternalProcessor` and grpc.health.v1, on the HTTP/2 of the gateway."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gateway.epp.endpoint_picker import EndpointPicker
from gateway.epp.proxy_request import ProxyRequest
from gateway.net.http2_transport import Http2Server, Http2Timeouts
from gateway.net.server import ConnectionServer
from gateway.protocol import ext_proc, grpc_services
from gateway.protocol.errors import GatewayError
from gateway.protocol.grpc_status import INTERNAL, INVALID_ARGUMENT, UNAVAILABLE, UNIMPLEMENTED, write_message
from gateway.wire.grpc import MessageReader, decompress, framed
from gateway.wire.http2 import frames
from gateway.wire.http2.connection import Opening
from gateway.wire.http2.field_decoder import OwnNames
from gateway.wire.http2.fields import GRPC, Block
from gateway.wire.http2.hpack import CachedHeaders
from gateway.wire.http2.state import Http2Limits
from gateway.wire.http2.stream import Stream

_log = logging.getLogger("pointsman.epp")

_OPENING = CachedHeaders([(b":status", b"200"), (b"content-type", b"application/grpc")])
_OK = CachedHeaders([(b"grpc-status", b"0")])
_NOT_GRPC = CachedHeaders([(b":status", b"415")])
_NOT_FOUND = 5
_OPENING_SECONDS = 20.0
# A proxy that is gone without a word leaves its requests: it is asked for a sign of life.
_KEEPALIVE_SECONDS = 30.0
_KEEPALIVE_TIMEOUT_SECONDS = 20.0
_READ_SECONDS = 60.0
# Fields of a request and what stands around them, beside a piece of a body.
_MESSAGE_BYTES = 256 * 1024
_HEALTH_BYTES = 4096
_ALIVE = "liveness"  # of the endpoint picker protocol: whether the process answers at all
# The services that health checks may ask about; the empty name is the whole server.
_SERVICES = frozenset({"", _ALIVE, "readiness", ext_proc.SERVICE, grpc_services.HEALTH_SERVICE})


class PickerServer(ConnectionServer):
    """Serves proxies until it is stopped; `is_leaving`: health says no already."""

    def __init__(self, picker: EndpointPicker) -> None:
        super().__init__()
        self.picker = picker
        self.is_leaving = False
        settings = picker.settings
        # Envoy ends the stream of each request by a reset
        self.http2_limits = Http2Limits(
            max_streams=settings.max_streams, window_bytes=settings.window_bytes, max_resets=None
        )
        self.message_bytes = settings.max_body_bytes + _MESSAGE_BYTES

    def new_connection(self) -> PickerConnection:
        return PickerConnection(self)

    async def stop(self, grace_seconds: float = 30.0) -> None:
        self.is_leaving = True
        await super().stop(grace_seconds)

    def is_serving(self, service: str) -> bool:
        return service == _ALIVE or (not self.is_leaving and self.picker.is_ready)


class PickerConnection(Http2Server):
    """A proxy's connection: each stream is a call."""

    __slots__ = ("_pinged_at", "server")

    def __init__(self, server: PickerServer) -> None:
        self.server = server
        timeouts = Http2Timeouts(opening=_OPENING_SECONDS, read=_READ_SECONDS, idle=None)
        super().__init__(server.http2_limits, timeouts, OwnNames(lambda name: True))
        self._pinged_at = 0.0

    def connection_made(self, transport: object) -> None:
        self.server.connections.add(self)
        super().connection_made(transport)  # type: ignore[arg-type]
        if self.server.is_draining:
            self.drain()

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.discard(self)
        super().connection_lost(exc)

    def stream_opened(self, stream: Stream, block: Block, ended: bool) -> None:
        if not (block.value(b"content-type") or b"").startswith(GRPC):
            stream.send_headers(_NOT_GRPC, ended=True)
            self.call_ended(stream)
            return
        make = _CALLS.get(block.value(b":path") or b"", UnknownCall)
        stream.receiver = call = make(self, stream, block)
        if ended:
            call.data_received(stream, b"", True)

    def sweep(self, now: float) -> None:
        for stream in list(self.http2.streams.values()):
            if isinstance(stream.receiver, PickerCall):
                stream.receiver.sweep(now)
        super().sweep(now)
        if self.http2.opening is not Opening.DONE:
            return
        if self._pinged_at > self.read_at:
            if now - self._pinged_at > _KEEPALIVE_TIMEOUT_SECONDS:
                self.abort()
        elif now - self.read_at > _KEEPALIVE_SECONDS:
            self._pinged_at = now
            self.http2.emit(frames.frame(frames.PING, 0, 0, bytes(8)))


class PickerCall:
    """A call of a proxy, or of who checks the picker's health."""

    __slots__ = ("_connection", "_encoding", "_has_begun", "_is_over", "_owed", "_reader", "stream")

    def __init__(self, connection: PickerConnection, stream: Stream, block: Block, max_bytes: int = _HEALTH_BYTES):
        self._connection = connection
        self._encoding = block.value(b"grpc-encoding") or b"identity"
        self._reader = MessageReader(max_bytes)
        self._has_begun = self._is_over = False
        self._owed = 0  # of the window, while the proxy does not read
        self.stream = stream

    # Events of the stream

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None:
        """Not called: a client's headers open the stream."""

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        if self._is_over:
            return
        try:
            for is_compressed, message in self._reader.feed(data):
                if is_compressed:
                    message = decompress(message, self._encoding, self._connection.server.message_bytes)
                self.received(message)
                if self._is_over:
                    return
        except (GatewayError, ValueError) as error:
            self.fail(INVALID_ARGUMENT, str(error))
            return
        except Exception:
            _log.exception("a call of a proxy fails")
            self.fail(INTERNAL, "internal error")
            return
        if ended:
            self.half_closed()
        elif stream.num_waiting > self._connection.server.picker.settings.high_water_bytes:
            self._owed += len(data)
        else:
            stream.credit(len(data))

    def trailers_received(self, stream: Stream, block: Block) -> None:
        self.data_received(stream, b"", True)

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        if not self._is_over:
            self._is_over = True
            self.ended()

    def drained(self, stream: Stream) -> None:
        if self._is_over:
            self._connection.call_ended(stream)
        elif self._owed:
            owed, self._owed = self._owed, 0
            stream.credit(owed)

    # Of subclasses

    def received(self, message: bytes) -> None:
        """A message has come. Raises: ValueError, GatewayError where it is malformed."""
        raise NotImplementedError

    def half_closed(self) -> None:
        """The client sends nothing more."""
        self.succeed()

    def ended(self) -> None:
        """The call is over, however it ends."""

    def sweep(self, now: float) -> None:
        """Called about once a second."""

    # For subclasses

    def send(self, message: bytes) -> None:
        if self._is_over:
            return
        if not self._has_begun:
            self._has_begun = True
            self.stream.send_headers(_OPENING)
        self.stream.send_data(framed(message))

    def succeed(self) -> None:
        self._finish(_OK)

    def fail(self, code: int, message: str) -> None:
        self._finish(CachedHeaders([(b"grpc-status", b"%d" % code), (b"grpc-message", write_message(message))]))

    def _finish(self, trailers: CachedHeaders) -> None:
        if self._is_over:
            return
        self._is_over = True
        if not self._has_begun:
            self.stream.send_headers(_OPENING)
        self.stream.send_trailers(trailers)
        self.ended()
        self._connection.call_ended(self.stream)


class ProcessCall(PickerCall):
    """`Process`: one request of the proxy."""

    __slots__ = ("_request",)

    def __init__(self, connection: PickerConnection, stream: Stream, block: Block) -> None:
        super().__init__(connection, stream, block, connection.server.message_bytes)
        self._request = ProxyRequest(connection.server.picker, self.send)

    def received(self, message: bytes) -> None:
        self._request.receive(ext_proc.read_request(message))

    def ended(self) -> None:
        self._request.end()

    def sweep(self, now: float) -> None:
        self._request.sweep(now)


class HealthCheck(PickerCall):
    """`Check` of grpc.health.v1: answers once."""

    __slots__ = ("_service",)

    def __init__(self, connection: PickerConnection, stream: Stream, block: Block) -> None:
        super().__init__(connection, stream, block)
        self._service: str | None = None

    def received(self, message: bytes) -> None:
        self._service = grpc_services.read_service(message)

    def half_closed(self) -> None:
        if self._service is None:
            self.fail(INVALID_ARGUMENT, "the call has no message")
        elif self._service not in _SERVICES:
            self.fail(_NOT_FOUND, grpc_services.unknown_service(self._service).message)
        else:
            self.send(grpc_services.write_status(self._connection.server.is_serving(self._service)))
            self.succeed()


class HealthWatch(PickerCall):
    """`Watch`: answers whenever the answer has changed."""

    __slots__ = ("_last", "_service")

    def __init__(self, connection: PickerConnection, stream: Stream, block: Block) -> None:
        super().__init__(connection, stream, block)
        self._service: str | None = None
        self._last: bytes | None = None

    def received(self, message: bytes) -> None:
        self._service = grpc_services.read_service(message)
        self.sweep(0.0)

    def half_closed(self) -> None:
        """It goes on."""

    def sweep(self, now: float) -> None:
        server = self._connection.server
        if server.is_draining:
            self.fail(UNAVAILABLE, "the picker stops")
            return
        if self._service is None:
            return
        status = grpc_services.SERVICE_UNKNOWN
        if self._service in _SERVICES:
            status = grpc_services.write_status(server.is_serving(self._service))
        if status != self._last:
            self._last = status
            self.send(status)


class UnknownCall(PickerCall):
    """A method that is not here."""

    __slots__ = ()

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        self.fail(UNIMPLEMENTED, "unknown method")


_CALLS: dict[bytes, Callable[[PickerConnection, Stream, Block], PickerCall]] = {
    ext_proc.PROCESS_PATH: ProcessCall,
    grpc_services.CHECK_PATH: HealthCheck,
    grpc_services.WATCH_PATH: HealthWatch,
}

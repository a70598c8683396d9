"""The gRPC server: connections and their streams to calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from engines.core.errors import unavailable
from engines.host.client_limits import ClientLimits
from engines.host.grpc.call import BaseCall, CallOwner, GrpcFront
from engines.host.grpc.call_head import Head
from engines.host.grpc.infer_calls import InferCall, StreamInferCall
from engines.host.grpc.replies import NOT_GRPC, StatusError
from engines.host.grpc.service_calls import ControlCall, HealthCall, ReflectionCall
from engines.host.service import Service
from gateway.net.http2_transport import Http2Server, Http2Timeouts
from gateway.net.server import ConnectionServer
from gateway.protocol import grpc_services
from gateway.protocol.grpc_methods import RPCS_BY_PATH
from gateway.protocol.grpc_status import UNIMPLEMENTED
from gateway.protocol.operations import Operation
from gateway.wire.http2 import frames
from gateway.wire.http2.connection import Opening
from gateway.wire.http2.fields import Block
from gateway.wire.http2.state import Http2Limits
from gateway.wire.http2.stream import Stream

# How long a client has to send its preface.
_OPENING_SECONDS = 20.0


_CALLS: dict[bytes, tuple[Operation, Callable[[CallOwner, Stream, Head], BaseCall]]] = {
    path: (rpc.operation, ControlCall) for path, rpc in RPCS_BY_PATH.items()
}
_CALLS |= {
    b"/inference.GRPCInferenceService/ModelInfer": (Operation.INFER, InferCall),
    b"/inference.GRPCInferenceService/ModelStreamInfer": (Operation.INFER, StreamInferCall),
    grpc_services.CHECK_PATH: (Operation.SERVER_READY, HealthCall),
    grpc_services.WATCH_PATH: (Operation.SERVER_READY, HealthCall),
}
_CALLS |= dict.fromkeys(grpc_services.PATHS, (Operation.SERVER_METADATA, ReflectionCall))


class GrpcServer(ConnectionServer):
    """Serves Triton's GRPCInferenceService, grpc.health.v1 and reflection. With TLS, ALPN must offer "h2"."""

    def __init__(self, service: Service, limits: ClientLimits | None = None) -> None:
        super().__init__()
        self.front = GrpcFront(service, limits or ClientLimits())

    async def stop(self, grace_seconds: float = 30.0) -> None:
        self.front.is_draining = True
        await super().stop(grace_seconds)

    def new_connection(self) -> GrpcConnection:
        return GrpcConnection(self)


class GrpcConnection(Http2Server):
    """The front of gRPC: hands each stream to a call."""

    __slots__ = ("_alive_at", "_pinged_at", "front", "server")

    def __init__(self, server: GrpcServer) -> None:
        self.server = server
        self.front = server.front
        limits = self.front.limits
        super().__init__(
            Http2Limits(max_streams=limits.max_streams, window_bytes=limits.window_bytes),
            Http2Timeouts(opening=_OPENING_SECONDS, read=limits.send_seconds, idle=limits.max_idle_seconds),
            self.front.read_head.own_names,
        )
        self._alive_at = self._connected_at
        self._pinged_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.server.connections.add(self)
        super().connection_made(transport)
        if self.server.is_draining:
            self.drain()

    def data_received(self, data: bytes) -> None:
        self._alive_at = 0.0  # the next sweep sets it
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.discard(self)
        super().connection_lost(exc)

    def stream_opened(self, stream: Stream, block: Block, ended: bool) -> None:
        head = self.front.read_head(block)
        if not head.plan.is_grpc:
            stream.send_headers(NOT_GRPC, ended=True)
            self.call_ended(stream)
            return
        call = self._call(stream, head)
        stream.receiver = call
        if ended:
            call.data_received(stream, b"", True)

    def sweep(self, now: float) -> None:
        limits, http2 = self.front.limits, self.http2
        if not self._alive_at:
            self._alive_at, self._pinged_at = now, 0.0
        for call in self._calls():
            call.sweep(now)
        super().sweep(now)
        if http2.opening is not Opening.DONE:
            return
        if self._pinged_at:
            if now - self._pinged_at > limits.keepalive_timeout_seconds:
                self.abort()
        elif limits.keepalive_seconds is not None and now - self._alive_at > limits.keepalive_seconds:
            self._pinged_at = now
            http2.emit(frames.frame(frames.PING, 0, 0, bytes(8)))
        if limits.max_connection_seconds is not None and now - self._connected_at > limits.max_connection_seconds:
            self.drain()

    def _leave(self) -> None:
        if self.server.is_draining:
            for call in self._calls():
                call.leave()
        super()._leave()

    def _calls(self) -> list[BaseCall]:
        return [stream.receiver for stream in self.http2.streams.values() if isinstance(stream.receiver, BaseCall)]

    def _call(self, stream: Stream, head: Head) -> BaseCall:
        operation, make = _CALLS.get(head.plan.path, (None, ControlCall))
        call, restrictions = make(self, stream, head), self.front.restrictions
        if operation is None:
            call.fail(StatusError(UNIMPLEMENTED, ""))
        elif restrictions and (header := restrictions.missing_header(operation, head.plan.values)):
            call.fail(unavailable(f"This protocol is restricted, expecting header '{header}'"))
        return call

"""One client's connection: bytes of a socket to HTTP/2, its streams to calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import cast

from engines.core.errors import EngineError
from engines.host.grpc.call import BaseCall, RefusedCall
from engines.host.grpc.call_head import Head
from engines.host.grpc.infer_calls import InferCall, StreamInferCall
from engines.host.grpc.replies import UNIMPLEMENTED, StatusError
from engines.host.grpc.server_context import CallOwner, GrpcFront, ServerCall
from engines.host.grpc.service_calls import ControlCall, HealthCall, ReflectionCall
from gateway.protocol import grpc_health, grpc_reflection
from gateway.protocol.grpc_methods import RPCS_BY_PATH
from gateway.protocol.operations import Operation
from gateway.wire.http2 import frames
from gateway.wire.http2.connection import Http2Connection, Http2Limits
from gateway.wire.http2.fields import Block
from gateway.wire.http2.frames import MAX_WINDOW, ErrorCode
from gateway.wire.http2.hpack import Steady
from gateway.wire.http2.state import NOBODY
from gateway.wire.http2.stream import Stream

# What a peer that does not read may make us hold: acknowledgements it asks for, beyond what windows bound.
_MAX_UNSENT_BYTES = 4 * 1024 * 1024
# From here on, pieces are handed to the socket as they are instead of being copied into one.
_JOIN_BYTES = 64 * 1024
# How long a client has to send its preface, and to hear that the connection closes.
_OPENING_SECONDS = 20.0
_LEAVE_SECONDS = 1.0

_NO_GRPC = Steady([(b":status", b"415"), (b"content-length", b"0")])

_CALLS: dict[bytes, tuple[Operation, Callable[[CallOwner, Stream, Head], ServerCall]]] = {
    path: (rpc.operation, ControlCall) for path, rpc in RPCS_BY_PATH.items()
}
_CALLS |= {
    b"/inference.GRPCInferenceService/ModelInfer": (Operation.INFER, InferCall),
    b"/inference.GRPCInferenceService/ModelStreamInfer": (Operation.INFER, StreamInferCall),
    grpc_health.CHECK_PATH: (Operation.SERVER_READY, HealthCall),
    grpc_health.WATCH_PATH: (Operation.SERVER_READY, HealthCall),
}
_CALLS |= dict.fromkeys(grpc_reflection.PATHS, (Operation.SERVER_METADATA, ReflectionCall))


class GrpcConnection(asyncio.Protocol):
    """What a read brings is written when it is done with; what comes otherwise, once a turn of the event loop."""

    __slots__ = (
        "_alive_at",
        "_connected_at",
        "_idle_since",
        "_is_feeding",
        "_leaves_at",
        "_pinged_at",
        "_transport",
        "_unasked_bytes",
        "_unsent_bytes",
        "_unsent_since",
        "connections",
        "front",
        "http2",
    )

    def __init__(self, front: GrpcFront, connections: set[GrpcConnection]) -> None:
        limits = front.limits
        self.front = front
        self.connections = connections
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)  # set before anything else happens
        self._is_feeding = False
        self._unasked_bytes = 0  # written while the peer takes nothing
        self._connected_at = self._alive_at = self._idle_since = monotonic()
        self._pinged_at = 0.0
        self._leaves_at = 0.0
        self._unsent_bytes, self._unsent_since = 0, 0.0  # at the last sweep
        self.http2 = Http2Connection(
            self,
            Http2Limits(max_streams=limits.max_streams, window_bytes=limits.window_bytes),
            is_client=False,
            volatile=front.volatile,
        )

    def __repr__(self) -> str:
        return f"<GrpcConnection {self.http2!r}>"

    # What the event loop tells it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        is_tls = transport.get_extra_info("sslcontext") is not None
        # Zero: what the kernel does not take at once stops us; under TLS a mark of zero would stop us for ever.
        self._transport.set_write_buffer_limits(high=_JOIN_BYTES if is_tls else 0)
        self.connections.add(self)
        self.http2.start()
        if self.front.is_draining:
            self.drain()

    def data_received(self, data: bytes) -> None:
        self._is_feeding = True
        try:
            self.http2.feed(data)
        finally:
            self._is_feeding = False
            self._alive_at = 0.0  # seen at the next sweep
            if self.http2.out:
                self.flush()
        if self.http2.failed is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        self.http2.is_blocked = True

    def resume_writing(self) -> None:
        self._unasked_bytes = 0
        self.http2.unblock()

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        self.http2.lose("the connection was lost")

    # What the HTTP/2 connection tells it

    def stream_opened(self, stream: Stream, block: Block, ended: bool) -> None:
        stream.is_received = ended
        head = self.front.read_head(block)
        if not head.plan.is_grpc:
            stream.send_headers(_NO_GRPC, ended=True)
            self.call_ended(stream)
            return
        call = self._call(stream, head)
        stream.receiver = call
        if ended:
            call.data_received(stream, b"", True)

    def stream_closed(self) -> None:
        if not self.http2.streams:
            self._idle_since = 0.0  # seen at the next sweep
            if self._leaves_at:
                self.front.loop.call_soon(self._close_if_idle)

    def settings_changed(self) -> None:
        """The peer takes another number of streams; a server opens none."""

    def peer_is_leaving(self) -> None:
        """The peer takes no new streams; a server opens none."""

    def has_output(self) -> None:
        if not self._is_feeding:
            self.front.loop.call_soon(self.flush)

    def has_relayed(self) -> None:
        """A host relays nothing."""

    # What calls ask of it

    def call_ended(self, stream: Stream) -> None:
        if not stream.is_sent:
            return
        if not stream.is_received:
            stream.reset(ErrorCode.NO_ERROR)
        stream.receiver = NOBODY  # a call and its stream that held each other would wait for the garbage collector

    # Writing

    def flush(self) -> None:
        """Write what there is."""
        out = self.http2.out
        if not out:
            return
        self.http2.out = []
        if self._transport.is_closing():
            return
        if self.http2.is_blocked:  # streams send nothing now: this is what the peer asks for without end
            self._unasked_bytes += sum(map(len, out))
            if self._unasked_bytes > _MAX_UNSENT_BYTES:
                self._transport.abort()
                return
        if len(out) == 1:
            self._transport.write(out[0])
        elif len(out) < 8 or sum(map(len, out)) < _JOIN_BYTES:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)

    # Closing

    def drain(self) -> None:
        """Tell the client to open no more streams; close once those under way have ended (RFC 9113 section 6.8)."""
        if not self._leaves_at:
            self._leaves_at = monotonic()
            self.http2.leave(last_id=MAX_WINDOW)
            self.front.loop.call_later(_LEAVE_SECONDS if self.http2.streams else 0.05, self._leave)

    def abort(self) -> None:
        self._transport.abort()

    def sweep(self, now: float) -> None:
        """Called about once a second."""
        limits, http2 = self.front.limits, self.http2
        http2.tick()
        if not self._alive_at:
            self._alive_at, self._pinged_at = now, 0.0
        if http2.streams or not self._idle_since:
            self._idle_since = now
        for call in self._calls():
            call.sweep(now)
        self._sweep_output(now)
        if http2.awaits_opening:
            if now - self._connected_at > _OPENING_SECONDS:
                self._transport.abort()
            return
        if self._pinged_at:
            if now - self._pinged_at > limits.keepalive_timeout_seconds:
                self._transport.abort()
        elif limits.keepalive_seconds is not None and now - self._alive_at > limits.keepalive_seconds:
            self._pinged_at = now
            http2.emit(frames.frame(frames.PING, 0, 0, bytes(8)))
        is_old = limits.max_connection_seconds is not None and now - self._connected_at > limits.max_connection_seconds
        is_idle = limits.max_idle_seconds is not None and now - self._idle_since > limits.max_idle_seconds
        if is_old or is_idle:
            self.drain()

    def _sweep_output(self, now: float) -> None:
        """Give up a client that takes nothing of what waits for it."""
        limit = self.front.limits.send_seconds
        unsent = self._transport.get_write_buffer_size() if self.http2.is_blocked else 0
        if unsent == 0 or unsent != self._unsent_bytes:
            self._unsent_bytes, self._unsent_since = unsent, now
        elif limit is not None and now - self._unsent_since > limit:
            self._transport.abort()

    def _leave(self) -> None:
        if not self._transport.is_closing():
            self.http2.leave()
            if self.front.is_draining:
                for call in self._calls():
                    call.leave()
            self._close_if_idle()

    def _calls(self) -> list[BaseCall]:
        return [stream.receiver for stream in self.http2.streams.values() if isinstance(stream.receiver, BaseCall)]

    def _close_if_idle(self) -> None:
        if not self.http2.streams and not self._transport.is_closing():
            self.flush()
            self._transport.close()

    def _call(self, stream: Stream, head: Head) -> ServerCall:
        known = _CALLS.get(head.plan.path)
        if known is None:
            return RefusedCall(self, stream, head, StatusError(UNIMPLEMENTED, ""))
        operation, call = known
        try:
            self.front.check_restriction(operation, head.plan.values)
        except EngineError as error:
            return RefusedCall(self, stream, head, error)
        return call(self, stream, head)

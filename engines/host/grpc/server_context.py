"""What the calls of one gRPC server share: the service, the limits, and what was learnt of its clients' messages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from engines.host.client_limits import ClientLimits
from engines.host.grpc.call_head import VOLATILE, HeadReader
from engines.host.grpc.replies import restricted
from engines.host.grpc.requests import RequestReader
from engines.host.grpc.responses import GrpcResponseWriter
from engines.host.model import HostedModel
from engines.host.service import Service
from gateway.protocol.operations import Operation
from gateway.wire.http2.stream import Stream, StreamReceiver


class GrpcFront:
    """Made once for each server."""

    def __init__(self, service: Service, limits: ClientLimits, loop: asyncio.AbstractEventLoop) -> None:
        self.service = service
        self.limits = limits
        self.loop = loop
        self.is_draining = False
        self.read_head = HeadReader(limits.forwards("grpc"))
        self.read_request = RequestReader()
        forward = limits.forwards("grpc")
        self.volatile = frozenset(name for name in VOLATILE if not forward.matches(name))
        self._writers: dict[tuple[str, str], GrpcResponseWriter] = {}
        self._restrictions = service.restrictions["grpc"]

    def __repr__(self) -> str:
        return f"<GrpcFront{', draining' if self.is_draining else ''}>"

    def writer(self, model: HostedModel) -> GrpcResponseWriter:
        """The writer of a model's answers."""
        key = (model.name, model.version)
        found = self._writers.get(key)
        if found is None or found.model is not model:  # it was loaded anew
            found = self._writers[key] = GrpcResponseWriter(model)
        return found

    def check_restriction(self, operation: Operation, values: Mapping[bytes, bytes]) -> None:
        """Raises: EngineError(UNAVAILABLE) where a call's fields lack the header that guards the operation."""
        if self._restrictions and (header := self._restrictions.missing_header(operation, values)):
            raise restricted(header)


class CallOwner(Protocol):
    """A client's connection, as a call sees it."""

    front: GrpcFront

    def call_ended(self, stream: Stream) -> None:
        """The answer is sent, or waits for the client to read it; what the client still sends is not wanted."""
        ...


class ServerCall(StreamReceiver, Protocol):
    """Whoever answers a call. It ends by the owner's `call_ended`, or by `stream_reset` of its stream."""

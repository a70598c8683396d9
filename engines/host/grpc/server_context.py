"""Shared by the calls of one gRPC server: the service, the limits, and cached layouts of messages."""

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
from gateway.wire.http2.stream import Stream


class GrpcFront:
    """The state of one server."""

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
        return f"<GrpcFront {len(self._writers)} models>"

    def writer(self, model: HostedModel) -> GrpcResponseWriter:
        """The writer of a model's responses."""
        key = (model.name, model.version)
        writer = self._writers.get(key)
        if writer is None or writer.model is not model:  # the model was loaded again
            writer = self._writers[key] = GrpcResponseWriter(model)
        return writer

    def check_restriction(self, operation: Operation, values: Mapping[bytes, bytes]) -> None:
        """Raises: EngineError(UNAVAILABLE) where a call's fields lack the header that guards the operation."""
        if self._restrictions and (header := self._restrictions.missing_header(operation, values)):
            raise restricted(header)


class CallOwner(Protocol):
    """A client's connection, as a call sees it."""

    front: GrpcFront

    def call_ended(self, stream: Stream) -> None:
        """The reply is sent or buffered; further data of the client is dropped."""
        ...

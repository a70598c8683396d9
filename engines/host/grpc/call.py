"""The base of all calls: from the first fields to the status."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Protocol

from engines.core.errors import internal
from engines.core.messages import Raw
from engines.host.client_limits import ClientLimits
from engines.host.grpc.call_head import Head, HeadReader
from engines.host.grpc.replies import (
    COMPRESSED_OPENINGS,
    OK,
    OPENING,
    RESOURCE_EXHAUSTED,
    StatusError,
    send_status,
    status_of,
)
from engines.host.grpc.requests import RequestReader
from engines.host.grpc.responses import framed
from engines.host.service import Service
from gateway.protocol.grpc_status import DEADLINE_EXCEEDED, INTERNAL, read_timeout
from gateway.wire.grpc import PREFIX, PREFIX_BYTES, decompress
from gateway.wire.http2.fields import Block
from gateway.wire.http2.peer_state import PeerState
from gateway.wire.http2.stream import Stream


class GrpcFront:
    """What the calls of one server share."""

    def __init__(self, service: Service, limits: ClientLimits) -> None:
        self.service = service
        self.limits = limits
        self.is_draining = False
        forward = limits.forwards("grpc")
        self.restrictions = service.restrictions["grpc"]
        self.read_head = HeadReader(forward, limits.compression_level, self.restrictions.headers)
        self.read_request = RequestReader()


class CallOwner(Protocol):
    """A client's connection, as a call sees it."""

    front: GrpcFront

    def call_ended(self, stream: Stream) -> None:
        """The reply is sent or buffered; further data of the client is dropped."""
        ...


class BaseCall(ABC):
    """A client's call. It ends once: by `succeed`, `fail`, its deadline, or the client's reset."""

    is_over = False
    _has_begun = False
    _owed_bytes: int | None = None  # at the last sweep
    _owed_since = 0.0
    _timer: asyncio.TimerHandle | None = None

    def __init__(self, owner: CallOwner, stream: Stream, head: Head) -> None:
        self.owner = owner
        self.front = owner.front
        self.stream = stream
        self.head = head
        if head.timeout is not None:
            seconds = read_timeout(head.timeout)
            if seconds is None:
                self.fail(StatusError(INTERNAL, f"Bad grpc-timeout: {head.timeout.decode('latin-1')}"))
            else:
                self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    # Called by the stream

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None:  # noqa: B027
        """Not called: a client's headers open the stream."""

    @abstractmethod
    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None: ...

    def trailers_received(self, stream: Stream, block: Block) -> None:
        self.data_received(stream, b"", True)

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        if self._end():
            self.abandon()

    def drained(self, stream: Stream) -> None:  # noqa: B027
        """All data of the stream is written."""

    def sweep(self, now: float) -> None:
        """Fail the call where a message stays incomplete too long. Called about once a second."""
        limit = self.front.limits.receive_seconds
        received = None if self.is_over else self.num_received
        if received is None or received != self._owed_bytes:
            self._owed_bytes, self._owed_since = received, now
        elif limit is not None and now - self._owed_since > limit:
            self.abort(StatusError(DEADLINE_EXCEEDED, f"the request is not whole after {limit:g} seconds"))

    # For subclasses

    def leave(self) -> None:  # noqa: B027
        """The host stops: do not wait for further messages of the client."""

    @property
    def num_received(self) -> int | None:
        """The bytes received while a message is incomplete, else None."""
        return None

    @abstractmethod
    def abandon(self) -> None:
        """Cancel the work: its result is not needed."""

    # Replies

    def write(self, pieces: list[Raw]) -> None:
        """Send a message; a call with too much unsent data fails instead.

        Raises: EngineError where the message is longer than gRPC allows.
        """
        data = framed(pieces, self.head.plan.compression)
        if self.stream.num_waiting > self.front.limits.max_unsent_bytes:
            self.abort(StatusError(RESOURCE_EXHAUSTED, "the client does not read its answers"))
            return
        self._begin()
        for piece in data:
            self.stream.send_data(piece)

    def succeed(self) -> None:
        if self._end():
            self._begin()
            self.stream.send_trailers(OK)
            self.owner.call_ended(self.stream)

    def fail(self, error: Exception) -> None:
        """End the call with the status of an error."""
        if self._end():
            code, message = status_of(error)
            send_status(self.stream, code, message, has_begun=self._has_begun)
            self.owner.call_ended(self.stream)

    def abort(self, error: Exception) -> None:
        """Fail it, and cancel its work."""
        self.fail(error)
        self.abandon()

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            compression = self.head.plan.compression
            self.stream.send_headers(OPENING if compression is None else COMPRESSED_OPENINGS[compression[0]])

    def _end(self) -> bool:
        """Mark the call as over; False where it was already."""
        if self.is_over:
            return False
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
        return True

    def _expire(self) -> None:
        self.abort(StatusError(DEADLINE_EXCEEDED, "Deadline Exceeded"))


class UnaryCall(BaseCall):
    """A call with one request message, answered when the client has sent everything."""

    _pieces: list[bytes] | None = None
    _num_bytes = 0
    _needed = PREFIX_BYTES

    @property
    def num_received(self) -> int | None:
        return None if self.stream.peer_state is PeerState.ENDED else self._num_bytes

    @abstractmethod
    def answer(self, data: bytes, at: int, end: int) -> None:
        """Answer the message in `data[at:end]`; an error ends the call."""

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        if self.is_over:
            return
        try:
            if self._pieces is not None or not ended:
                data = self._collect(data, ended)
                if not ended:
                    return
            self._answer_to(data)
        except Exception as error:
            self.fail(error)

    def _collect(self, data: bytes, ended: bool) -> bytes:
        """Collect the bytes of the message; returns all of them at the end."""
        pieces = self._pieces = self._pieces or []
        if self._num_bytes < self._needed:
            pieces.append(data)
        has_size = self._num_bytes >= PREFIX_BYTES
        self._num_bytes += len(data)
        if not has_size and self._num_bytes >= PREFIX_BYTES:
            start = b"".join(pieces)
            pieces[:] = [start]
            size = PREFIX.unpack_from(start)[1]
            self._check_size(size)
            self._needed = PREFIX_BYTES + size
        if not ended:
            self.stream.credit(len(data))
            return b""
        self._pieces = None
        return b"".join(pieces)

    def _answer_to(self, data: bytes) -> None:
        """Answer the first message, as gRPC's servers do."""
        if len(data) < PREFIX_BYTES:
            raise internal("Unable to parse request")
        is_compressed, size = PREFIX.unpack_from(data)
        end = PREFIX_BYTES + size
        if end > len(data):
            raise internal("Unable to parse request")
        self._check_size(size)
        if is_compressed:
            limit = self.front.limits.max_message_bytes
            content = decompress(data[PREFIX_BYTES:end], self.head.plan.encoding, limit)
            self.answer(content, 0, len(content))
        else:
            self.answer(data, PREFIX_BYTES, end)

    def _check_size(self, size: int) -> None:
        limit = self.front.limits.max_message_bytes
        if size > limit:
            raise StatusError(RESOURCE_EXHAUSTED, f"SERVER: Received message larger than max ({size} vs. {limit})")

"""A call that its client makes, from its first fields to its status; what each kind of call does with it is its own."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from engines.core.errors import internal
from engines.core.messages import Raw
from engines.host.grpc.call_head import Head
from engines.host.grpc.replies import (
    COMPRESSED_OPENINGS,
    DEADLINE_EXCEEDED,
    INTERNAL,
    OK,
    OPENING,
    RESOURCE_EXHAUSTED,
    StatusError,
    status_of,
    tell_status,
    too_large,
)
from engines.host.grpc.responses import framed
from engines.host.grpc.server_context import CallOwner
from gateway.protocol.grpc_status import read_timeout
from gateway.wire.grpc import PREFIX, PREFIX_BYTES, decompress
from gateway.wire.http2.fields import Block
from gateway.wire.http2.stream import Stream


class BaseCall(ABC):
    """Ends once: by `succeed`, `fail`, its deadline, or the client's leaving."""

    __slots__ = (
        "_compression",
        "_has_begun",
        "_owed_bytes",
        "_owed_since",
        "_timer",
        "front",
        "head",
        "is_over",
        "owner",
        "stream",
    )

    def __init__(self, owner: CallOwner, stream: Stream, head: Head) -> None:
        self.owner = owner
        self.front = owner.front
        self.stream = stream
        self.head = head
        self.is_over = False
        self._has_begun = False
        self._owed_bytes: int | None = None  # at the last sweep
        self._owed_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        level = self.front.limits.compression_level
        encoding = head.plan.compression if level is not None else None
        self._compression = (encoding, level) if encoding is not None and level is not None else None
        if head.timeout is not None:
            seconds = read_timeout(head.timeout)
            if seconds is None:
                self.fail(StatusError(INTERNAL, f"Bad grpc-timeout: {head.timeout.decode('latin-1')}"))
            else:
                self._timer = self.front.loop.call_later(seconds, self._expire)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.head.plan.path!r}{' over' if self.is_over else ''}>"

    # What the stream tells it

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None:  # noqa: B027
        """Never of a client's stream."""

    @abstractmethod
    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None: ...

    def trailers_received(self, stream: Stream, block: Block) -> None:
        self.data_received(stream, b"", True)

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        if self._leave():
            self.abandon()

    def drained(self, stream: Stream) -> None:  # noqa: B027
        """Nothing waits any more."""

    def sweep(self, now: float) -> None:
        """Called about once a second: a message that does not become whole ends the call."""
        limit = self.front.limits.receive_seconds
        come = None if self.is_over else self.num_come
        if come is None or come != self._owed_bytes:
            self._owed_bytes, self._owed_since = come, now
        elif limit is not None and now - self._owed_since > limit:
            self.fail(StatusError(DEADLINE_EXCEEDED, f"the request is not whole after {limit:g} seconds"))
            self.abandon()

    # What a kind of call does

    def leave(self) -> None:  # noqa: B027
        """The host stops: who waits for the client to send more waits no longer."""

    @property
    def num_come(self) -> int | None:
        """The bytes that have come, where the client owes the rest of a message; None where it does not."""
        return None

    @abstractmethod
    def abandon(self) -> None:
        """Nobody wants the answer any more."""

    # Telling

    def write(self, pieces: list[Raw]) -> None:
        """Send a message, unless too much waits already: then the call ends.

        Raises: EngineError where it is longer than gRPC allows.
        """
        data = framed(pieces, self._compression)
        if self.stream.num_waiting > self.front.limits.max_unsent_bytes:
            self.fail(StatusError(RESOURCE_EXHAUSTED, "the client does not read its answers"))
            self.abandon()
            return
        self._begin()
        for piece in data:
            self.stream.send_data(piece)

    def succeed(self) -> None:
        if self._leave():
            self._begin()
            self.stream.send_trailers(OK)
            self.owner.call_ended(self.stream)

    def fail(self, error: Exception) -> None:
        """End it with the status of an error."""
        if self._leave():
            code, message = status_of(error)
            tell_status(self.stream, code, message, has_begun=self._has_begun)
            self.owner.call_ended(self.stream)

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            compression = self._compression
            self.stream.send_headers(OPENING if compression is None else COMPRESSED_OPENINGS[compression[0]])

    def _leave(self) -> bool:
        """Nothing more is to happen; whether that is new."""
        if self.is_over:
            return False
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return True

    def _expire(self) -> None:
        self._timer = None
        self.fail(StatusError(DEADLINE_EXCEEDED, "Deadline Exceeded"))
        self.abandon()


class UnaryCall(BaseCall):
    """A call that takes one message, and answers once the client has sent all."""

    __slots__ = ("_needed", "_num_bytes", "_pieces")

    def __init__(self, owner: CallOwner, stream: Stream, head: Head) -> None:
        self._pieces: list[bytes] | None = None
        self._num_bytes = 0
        self._needed = PREFIX_BYTES
        super().__init__(owner, stream, head)

    @property
    def num_come(self) -> int | None:
        return None if self.stream.is_received else self._num_bytes

    @abstractmethod
    def answer(self, data: bytes, at: int, end: int) -> None:
        """The message stands there; what this raises ends the call."""

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
        """Keep what belongs to the message; all of that, once the client has sent all."""
        if self._pieces is None:
            self._pieces = []
        pieces = self._pieces
        if self._num_bytes < self._needed:
            pieces.append(data)
        known = self._num_bytes >= PREFIX_BYTES
        self._num_bytes += len(data)
        if not known and self._num_bytes >= PREFIX_BYTES:
            start = b"".join(pieces)
            pieces[:] = [start]
            size = PREFIX.unpack_from(start)[1]
            self._check_size(size)
            self._needed = PREFIX_BYTES + size
        if not ended:
            self.stream.credit(len(data))
            return b""
        self._pieces = None
        return b"".join(pieces) if len(pieces) > 1 else pieces[0]

    def _answer_to(self, data: bytes) -> None:
        """Of several messages, gRPC's servers read the first."""
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
            raise too_large(size, limit)


class RefusedCall(UnaryCall):
    """A call that nobody answers: the client is told at once."""

    __slots__ = ()

    def __init__(self, owner: CallOwner, stream: Stream, head: Head, error: Exception) -> None:
        super().__init__(owner, stream, head)
        self.fail(error)

    def answer(self, data: bytes, at: int, end: int) -> None:
        """It was told already."""

    def abandon(self) -> None:
        """There is nothing under way."""

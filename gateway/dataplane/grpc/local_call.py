"""A call that no engine's stream answers: the client's messages read, its deadline kept, the reply written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from time import monotonic

from gateway.dataplane.context.active_request import Progress, Stage
from gateway.dataplane.context.call_head import CallHead
from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.grpc.client import CallClient
from gateway.dataplane.grpc.reply_headers import (
    OPENING,
    TRAILERS_OK,
    deadline_passed,
    fell_silent,
    request_id_literal,
    tell_error,
)
from gateway.net.timer_wheel import Slot
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.wire.grpc import MessageReader, decompress, framed
from gateway.wire.http1.head import Field
from gateway.wire.http2.fields import Block
from gateway.wire.http2.hpack import Steady, literals
from gateway.wire.http2.stream import Stream


class LocalCall(ABC):
    """Collects the client's messages for a subclass, which answers; it ends by `_succeed`, `_fail` or the client's
    leaving. A client that does not read the answers is not read either."""

    __slots__ = (
        "_active_at",
        "_client",
        "_has_begun",
        "_has_ended",
        "_head",
        "_is_over",
        "_message",
        "_owed",
        "_reader",
        "_request_id",
        "_slot",
        "_started_at",
        "_stream",
    )

    def __init__(self, client: CallClient, stream: Stream, head: CallHead) -> None:
        self._client = client
        self._stream = stream
        self._head = head
        self._started_at = self._active_at = monotonic()
        self._request_id = head.id or client.plane.new_request_id()
        self._reader = MessageReader(client.plane.settings.limits.max_body_bytes)
        self._message: bytes | None = None  # of a call that takes one
        self._owed = 0  # bytes whose window is not given back
        self._has_begun = False
        self._has_ended = False  # the client sends no more
        self._is_over = False
        self._slot: Slot | None = None
        if head.timeout is not None:
            self._slot = client.plane.wheel.add(self, self._started_at + head.timeout)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._head.plan!r}>"

    # What a subclass does in its own way

    def _take(self, message: bytes) -> None:
        """A message has come, decompressed.

        Raises: GatewayError(BAD_REQUEST) where no more is taken.
        """
        if self._message is not None:
            raise self._not_one("more than one")
        self._message = message

    @abstractmethod
    def _requests_ended(self) -> None:
        """The client has sent all.

        Raises: GatewayError, which ends the call.
        """

    def _only_message(self) -> bytes:
        """The message of a call that takes one.

        Raises: GatewayError(BAD_REQUEST).
        """
        message, self._message = self._message, b""
        if message is None:
            raise self._not_one("none")
        return message

    def _not_one(self, number: str) -> GatewayError:
        path = self._head.plan.path.decode("latin-1")
        return GatewayError(ErrorKind.BAD_REQUEST, f"{path} takes one message: {number} came")

    # What the client's stream tells it

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None:  # noqa: B027
        """Never of a client's stream."""

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        if self._is_over:
            return
        self._active_at = monotonic()
        limit = self._client.plane.settings.limits.max_body_bytes
        try:
            for is_compressed, message in self._reader.feed(data):
                self._take(decompress(message, self._head.plan.encoding, limit) if is_compressed else message)
            if not ended:
                self._owed += len(data)
                if not stream.is_waiting:
                    self._credit()
                return
            if not self._reader.is_between_messages:
                raise GatewayError(ErrorKind.BAD_REQUEST, "the call ends before its message is whole")
            self._has_ended = True
            self._requests_ended()
        except GatewayError as error:
            self._fail(error)

    def trailers_received(self, stream: Stream, block: Block) -> None:
        self.data_received(stream, b"", True)

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        if self._leave():
            self._count(499, "client_gone")

    def drained(self, stream: Stream) -> None:
        if self._is_over:
            self._client.call_ended(stream)
        else:
            self._credit()

    def sweep(self, now: float) -> None:
        """Called about once a second: is the client silent before its first message, or in the middle of one?"""
        limit = self._client.plane.settings.limits.body_timeout
        is_due = not self._has_ended and (not self._has_begun or not self._reader.is_between_messages)
        if is_due and now - self._active_at > limit:
            self._fail(fell_silent(limit))

    def expired(self) -> None:
        self._slot = None
        self._fail(deadline_passed())

    def progress(self) -> Progress | None:
        if self._is_over:
            return None
        stage = Stage.ANSWERING if self._has_begun else Stage.ASKING if self._has_ended else Stage.READING
        return Progress(stage, self._started_at, self._request_id, asked=self._head.plan.asked)

    def cancel(self, error: GatewayError) -> None:
        self._fail(error)

    def _credit(self) -> None:
        """What came is done with."""
        owed, self._owed = self._owed, 0
        if owed:
            self._stream.credit(owed)

    # Telling

    def _write(self, message: bytes, fields: list[Field] | None = None) -> None:
        """Send a message; `fields` go with the first."""
        self._begin(fields)
        self._stream.send_data(framed(message))

    def _succeed(self) -> None:
        if self._leave():
            self._count(200, "")
            self._begin(None)
            self._stream.send_trailers(TRAILERS_OK)
            self._client.call_ended(self._stream)

    def _fail(self, error: GatewayError, lane: Lane | None = None) -> None:
        if self._leave():
            self._count(error.status.http, error.kind.value)
            tell_error(self._stream, error, self._request_id, lane, has_begun=self._has_begun)
            self._client.call_ended(self._stream)

    def _begin(self, fields: list[Field] | None) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._stream.send_headers(_OPENING, literals(fields or []) + request_id_literal(self._request_id))

    def _leave(self) -> bool:
        """Nothing more is to happen; whether that is new."""
        if self._is_over:
            return False
        self._is_over = True
        if self._slot is not None:
            self._slot.discard(self)
            self._slot = None
        return True

    def _count(self, status: int, reason: str) -> None:
        """Count and log how it ended; `reason` names the kind of a failure."""
        plane = self._client.plane
        seconds = monotonic() - self._started_at
        if reason:
            plane.metrics.unrouted.count_error(reason)
        plane.metrics.unrouted.count_failure(status, seconds)
        plane.log_call(self._client.peer, self._head.plan.asked, status, reason, seconds, self._request_id)


class RefusedCall(LocalCall):
    """A call that nobody answers: the client is told at once."""

    __slots__ = ()

    def __init__(self, client: CallClient, stream: Stream, head: CallHead, error: GatewayError) -> None:
        super().__init__(client, stream, head)
        self._fail(error)

    def _requests_ended(self) -> None:
        """It was told already."""


_OPENING = Steady(OPENING)

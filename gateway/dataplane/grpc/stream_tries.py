"""The tries of what is sent to engines on HTTP/2 streams: a unary call, or the messages of one lane."""

from __future__ import annotations

from abc import abstractmethod
from time import monotonic

from gateway.dataplane.attempts.tries import Tries
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.grpc.reply_headers import broken_off
from gateway.net.http2_client import Http2ClientConnection
from gateway.protocol.grpc_status import DEADLINE_EXCEEDED
from gateway.upstream.endpoint import Endpoint
from gateway.wire.http2.frames import ErrorCode
from gateway.wire.http2.stream import Stream


class StreamTries(Tries):
    """`_up` is the stream of the try under way; a subclass opens it in `_send`."""

    __slots__ = ("_up",)

    def __init__(self, plane: DataPlane, lane: Lane | None, session: str | None) -> None:
        Tries.__init__(self, plane, lane, session)
        self._up: Stream | None = None

    @abstractmethod
    def _send(self, connection: Http2ClientConnection, now: float) -> None:
        """Open the stream on a connection that has room for it."""

    def _ask(self, endpoint: Endpoint, now: float) -> None:
        assert endpoint.streams is not None
        connection = endpoint.streams.acquire(self)
        if connection is not None:
            self._send(connection, now)

    def connected(self, connection: Http2ClientConnection) -> None:
        self._send(connection, monotonic())

    @property
    def _was_sent(self) -> bool:
        return self._up is not None

    def _abandon(self) -> None:
        if self._up is not None:
            up, self._up = self._up, None
            up.reset(ErrorCode.CANCEL)
        elif self._is_trying and self._endpoint is not None and self._endpoint.streams is not None:
            self._endpoint.streams.forget(self)

    def _up_was_reset(self, what: str, code: int, why: str) -> None:
        """The engine has broken off; `what` names what it was."""
        self._up = None
        was_sent = code != ErrorCode.REFUSED_STREAM  # that promises it was not touched (RFC 9113 section 8.7)
        self._try_failed(broken_off(what, why, code), was_sent=was_sent)

    def _answered(self, status: int | None) -> None:
        """The reply is whole, `status` is its gRPC status: what it says of the endpoint."""
        assert self._endpoint is not None and self._lane is not None
        fails = self._endpoint.breaker.counts(self._status) and status != DEADLINE_EXCEEDED
        self._leave(not fails)
        self._lane.engine.budget.requests += 1

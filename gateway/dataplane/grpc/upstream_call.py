"""A call as an engine gets it: an attempt opens an HTTP/2 stream and sends the call's fields."""

from __future__ import annotations

from abc import abstractmethod
from time import monotonic
from typing import Any

from gateway.dataplane.attempts.front import Attempt, AttemptFront
from gateway.dataplane.attempts.upstream_attempts import UpstreamAttempts
from gateway.net.http2_client import Http2ClientConnection
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.wire.http2.frames import ErrorCode
from gateway.wire.http2.stream import Stream


class GrpcFront(AttemptFront):
    """The attempts of a request that goes to engines on HTTP/2 streams."""

    __slots__ = ("_attempt", "_up", "attempts")

    status_comes_first = False

    attempts: UpstreamAttempts[Stream]
    _attempt: Attempt[Stream]  # the latest; set before an engine's stream can report anything

    def __init__(self, attempts: UpstreamAttempts[Stream]) -> None:
        self.attempts = attempts
        self._up: Stream | None = None  # what the attempt is sent on

    @abstractmethod
    def _send(self, connection: Http2ClientConnection, now: float) -> None:
        """Open the attempt's stream on a connection that has room for it, and set what it is sent on."""

    def _release(self) -> None:
        self._attempt.sent_on = self._up = None

    def start_attempt(self, attempt: Attempt[Any], now: float) -> None:
        self._attempt = attempt
        streams = attempt.endpoint.streams
        assert streams is not None, "an engine without gRPC"
        connection = streams.acquire(self)
        if connection is not None:
            self._send(connection, now)

    def connected(self, connection: Http2ClientConnection) -> None:
        self._send(connection, monotonic())

    def connect_failed(self, error: GatewayError) -> None:
        self.attempts.failed(error, was_sent=False)

    def cancel_attempt(self, attempt: Attempt[Any]) -> None:
        up = self._up
        if up is not None:
            self._release()
            up.reset(ErrorCode.CANCEL)
        elif attempt.endpoint.streams is not None:
            attempt.endpoint.streams.forget(self)

    def _upstream_reset(self, what: str, code: int, why: str) -> None:
        """The engine has broken off; `what` names what it was."""
        self._release()
        was_sent = code != ErrorCode.REFUSED_STREAM  # which promises that it is untouched (RFC 9113 section 8.7)
        name = ErrorCode(code).name if code in ErrorCode.__members__.values() else str(code)
        error = GatewayError(ErrorKind.UPSTREAM_RESET, f"the engine broke the {what} off: {why} ({name})")
        self.attempts.failed(error, was_sent=was_sent)

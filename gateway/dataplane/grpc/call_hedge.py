"""The second attempt of a unary call that is hedged."""

from __future__ import annotations

from typing import Protocol

from gateway.dataplane.attempts.front import Attempt, Hedge, HedgedRequest
from gateway.net.http2_client import Http2ClientConnection
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_status import http_status, read_status
from gateway.protocol.hedge_outcome import is_answer
from gateway.wire.http2.fields import Block
from gateway.wire.http2.frames import ErrorCode
from gateway.wire.http2.stream import Stream, StreamReceiver


class HedgedCall(StreamReceiver, Protocol):
    """The relay of the first attempt."""

    def send_hedge(self, attempt: Attempt[Stream], connection: Http2ClientConnection, receiver: StreamReceiver) -> None:
        """Send the call once more, on a new stream of this connection."""

    def go_on_with_attempt(self, attempt: Attempt[Stream]) -> None:
        """This is the attempt from now on."""


class CallHedge(Hedge):
    """Receives the first fields of the reply in the relay's place."""

    __slots__ = ("_relay",)

    attempt: Attempt[Stream]

    def __init__(self, relay: HedgedCall, attempts: HedgedRequest, attempt: Attempt[Stream]) -> None:
        super().__init__(attempts, attempt)
        self._relay = relay

    def start(self, now: float) -> None:
        streams = self.attempt.endpoint.streams
        assert streams is not None
        connection = streams.acquire(self)
        if connection is not None:
            self.connected(connection)

    def connected(self, connection: Http2ClientConnection) -> None:
        self._relay.send_hedge(self.attempt, connection, self)

    def connect_failed(self, error: GatewayError) -> None:
        self.attempts.hedge_failed(error)

    def take_over(self) -> None:
        self._relay.go_on_with_attempt(self.attempt)
        stream = self.attempt.sent_on
        if stream is not None:
            stream.receiver = self._relay

    def cancel(self) -> None:
        stream, self.attempt.sent_on = self.attempt.sent_on, None
        if stream is not None:
            stream.reset(ErrorCode.CANCEL)
        elif self.attempt.endpoint.streams is not None:
            self.attempt.endpoint.streams.forget(self)

    # The engine's stream

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None:
        code = block.value(b"grpc-status")
        status = int(block.fields[0][1]) if code is None else http_status(read_status(code))
        if ended and not is_answer(status):
            self.attempt.sent_on = None
        if self.attempts.hedge_answered(status):
            self._relay.headers_received(stream, block, ended)

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        """Never: the relay receives it, or the stream is reset."""

    def trailers_received(self, stream: Stream, block: Block) -> None:
        """Never, for the same reason."""

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        self.attempt.sent_on = None
        self.attempts.hedge_failed(GatewayError(ErrorKind.UPSTREAM_RESET, f"the engine broke the call off: {why}"))

    def drained(self, stream: Stream) -> None:
        """The request is whole."""

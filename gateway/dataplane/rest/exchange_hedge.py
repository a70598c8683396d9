"""The second attempt of a REST request that is hedged."""

from __future__ import annotations

from time import monotonic
from typing import Protocol

from gateway.dataplane.attempts.front import Attempt, Hedge, HedgedRequest
from gateway.net.http1_client import Http1ClientConnection, ReplyReceiver
from gateway.protocol.errors import GatewayError
from gateway.wire.http1.head import ResponseHead


class HedgedExchange(ReplyReceiver, Protocol):
    """The exchange of the first attempt."""

    def send_hedge(self, attempt: Attempt[Http1ClientConnection], receiver: ReplyReceiver) -> None:
        """Send the request once more, on the connection of this attempt."""

    def go_on_with(self, attempt: Attempt[Http1ClientConnection]) -> None:
        """This is the attempt from now on."""


class ExchangeHedge(Hedge):
    """Receives the head of the reply in the exchange's place."""

    __slots__ = ("_exchange",)

    attempt: Attempt[Http1ClientConnection]

    def __init__(
        self, exchange: HedgedExchange, attempts: HedgedRequest, attempt: Attempt[Http1ClientConnection]
    ) -> None:
        super().__init__(attempts, attempt)
        self._exchange = exchange

    def start(self, now: float) -> None:
        pool = self.attempt.endpoint.pool
        assert pool is not None
        connection = pool.acquire(self, now)
        if connection is not None:
            self.connected(connection)

    def connected(self, connection: Http1ClientConnection) -> None:
        self.attempt.sent_on = connection
        self.attempt.sent_at = monotonic()
        self._exchange.send_hedge(self.attempt, self)

    def connect_failed(self, error: GatewayError) -> None:
        self.attempts.hedge_failed(error)

    def take_over(self) -> None:
        self._exchange.go_on_with(self.attempt)
        connection = self.attempt.sent_on
        if connection is not None and connection.receiver is self:
            connection.receiver = self._exchange

    def cancel(self) -> None:
        connection, self.attempt.sent_on = self.attempt.sent_on, None
        if connection is not None:
            connection.abandon()
        elif self.attempt.endpoint.pool is not None:
            self.attempt.endpoint.pool.forget(self)

    # The connection's reply

    def reply_started(self, head: ResponseHead, data: bytes, ended: bool) -> None:
        if ended:
            self.attempt.sent_on = None  # the connection is back in its pool
        if self.attempts.hedge_answered(head.status):
            self._exchange.reply_started(head, data, ended)

    def reply_continued(self, data: bytes, ended: bool) -> None:
        """Never: the exchange receives it, or the connection is closed."""

    def reply_failed(self, error: GatewayError) -> None:
        self.attempt.sent_on = None
        self.attempts.hedge_failed(error)

    def sending_paused(self) -> None:
        """The request is whole."""

    def sending_resumed(self) -> None:
        """The request is whole."""

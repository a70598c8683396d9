"""A V2 request whose target has fallbacks, and whose body has come whole: mostly its engine answers, and no handler is
needed that could have another engine answer. It is made once there is a reason for a fallback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.dataplane.attempts.fallback_handler import FallbackHandler, ServeOne
from gateway.dataplane.attempts.upstream_attempts import UpstreamAttempts
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client, Handler
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.rest.exchange import Exchange
from gateway.net.http1_client import Http1ClientConnection
from gateway.protocol.errors import GatewayError
from gateway.wire.http1.head import ResponseHead


class ReplaceableClient(Client, Protocol):
    """A client whose handler may be replaced by another one, which knows this one."""

    def replace_handler(self, handler: Handler) -> None: ...


class FallbackExchange(Exchange):
    """`serve` makes the handlers of the fallbacks."""

    __slots__ = ("_replace", "_serve", "_whole")

    def __init__(
        self,
        client: ReplaceableClient,
        request: Request,
        route_target: RouteTarget,
        body: bytes,
        serve: ServeOne,
        attempts_type: type[UpstreamAttempts[Http1ClientConnection]],
    ) -> None:
        super().__init__(client, request, route_target, None, attempts_type=attempts_type)
        self._whole = body
        self._serve = serve
        self._replace: Callable[[Handler], None] | None = client.replace_handler

    def reply_started(self, head: ResponseHead, data: bytes, ended: bool) -> None:
        # A stream of events may begin with an error
        if self._replace is not None and (head.status >= 400 or head.length is None):
            self._interpose()
        super().reply_started(head, data, ended)

    def attempts_failed(self, error: GatewayError, status: int) -> None:
        if self._replace is not None and not self.attempts.status:
            self._interpose()
        super().attempts_failed(error, status)

    def _interpose(self) -> None:
        """Put a handler between the client and this one that may have a fallback answer."""
        assert self._replace is not None
        request = self._request.of(self._plan)
        request.id = self._request_id
        route_target = self._plan.route_target  # that of the attempts may be one of a hedged request
        assert route_target is not None
        handler = FallbackHandler(self._client, request, route_target, None, self._serve)
        handler.take_over(self, self._whole)
        self._replace(handler)
        self._client = handler
        self._replace, self._whole = None, b""

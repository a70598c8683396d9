"""Who answers a REST request: an engine, the fleet as a whole, or nobody."""

from __future__ import annotations

from gateway.dataplane.exchange import Exchange
from gateway.dataplane.fleet import FleetCall
from gateway.dataplane.request import Request
from gateway.dataplane.seams import Client, Handler, PlainHandler
from gateway.protocol.errors import ErrorKind, GatewayError


def handler_for(client: Client, request: Request) -> Handler:
    """The handler of one request."""
    plan = request.plan
    if plan.error is not None:
        return Refusal(client, request, plan.error)
    if plan.is_fleet:
        return FleetCall(client, request)
    return Exchange(client, request)


class Refusal(PlainHandler):
    """Reads a request to its end, then says why nobody answers it."""

    def __init__(self, client: Client, request: Request, error: GatewayError) -> None:
        self._client = client
        self._request = request
        self._error = error

    def body_received(self, data: bytes, ended: bool) -> None:
        # A client that waits for leave to send its body is told at once.
        if ended or self._request.plan.head.expects_continue:
            unrouted = self._client.plane.metrics.unrouted
            unrouted.count_error(self._error.kind.value)
            unrouted.count_failure(self._error.status.http, 0.0)
            request_id = self._request.id or self._client.plane.new_request_id()
            lines = b"x-request-id: %b\r\n" % request_id
            if self._error.kind is ErrorKind.METHOD_NOT_ALLOWED:
                lines += b"allow: %b\r\n" % ", ".join(self._request.plan.call.verbs).encode("ascii")
            self._client.refuse(self._error, lines)

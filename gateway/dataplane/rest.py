"""Who answers a REST request: an engine, the fleet as a whole, or nobody."""

from __future__ import annotations

from gateway.dataplane.exchange import Exchange
from gateway.dataplane.fleet import FleetCall
from gateway.dataplane.replies import error_body, reason_line
from gateway.dataplane.request import Request
from gateway.dataplane.seams import Client, Handler, OwnAnswer
from gateway.protocol.errors import ErrorKind, GatewayError


def handler_for(client: Client, request: Request) -> Handler:
    """The handler of one request."""
    plan = request.plan
    if plan.error is not None:
        return Refusal(client, request, plan.error)
    if plan.is_fleet:
        return FleetCall(client, request)
    return Exchange(client, request)


class Refusal(OwnAnswer):
    """Reads a request to its end, then says why nobody answers it."""

    def __init__(self, client: Client, request: Request, error: GatewayError) -> None:
        super().__init__(client, request)
        self._error = error

    def body_received(self, data: bytes, ended: bool) -> None:
        # A client that waits for leave to send its body is told at once.
        if ended or self._plan.head.expects_continue:
            error = self._error
            lines = reason_line(error)
            if error.kind is ErrorKind.METHOD_NOT_ALLOWED:
                lines += b"allow: %b\r\n" % ", ".join(self._plan.call.verbs).encode("ascii")
            self._tell(error.status.http, error_body(error.message), lines, reason=error.kind.value)

"""Who answers a REST request: an engine, the fleet as a whole, or nobody."""

from __future__ import annotations

from gateway.dataplane.exchange import Exchange
from gateway.dataplane.fleet import FLEET_OPERATIONS, FleetCall
from gateway.dataplane.plan import Plan
from gateway.dataplane.seams import Client, Handler, PlainHandler
from gateway.protocol.errors import ErrorKind, GatewayError


def handler_for(client: Client, plan: Plan) -> Handler:
    """The handler of one request."""
    if plan.error is not None:
        return Refusal(client, plan, plan.error)
    if plan.call.operation in FLEET_OPERATIONS:
        return FleetCall(client, plan)
    return Exchange(client, plan)


class Refusal(PlainHandler):
    """Reads a request to its end, then says why nobody answers it."""

    def __init__(self, client: Client, plan: Plan, error: GatewayError) -> None:
        self._client = client
        self._plan = plan
        self._error = error

    def body_received(self, data: bytes, ended: bool) -> None:
        # A client that waits for leave to send its body is told at once.
        if ended or self._plan.head.expects_continue:
            unrouted = self._client.plane.metrics.unrouted
            unrouted.count_error(self._error.kind.value)
            unrouted.count_failure(self._error.status.http, 0.0)
            request_id = self._plan.request_id or self._client.plane.new_request_id()
            lines = b"x-request-id: %b\r\n" % request_id
            if self._error.kind is ErrorKind.METHOD_NOT_ALLOWED:
                lines += b"allow: %b\r\n" % ", ".join(self._plan.call.verbs).encode("ascii")
            self._client.refuse(self._error, lines)

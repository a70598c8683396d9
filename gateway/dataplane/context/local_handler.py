"""Handlers that answer a REST request without an engine, and the log of REST requests."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from gateway.dataplane.context.active_requests import Progress, Stage, progress_of
from gateway.dataplane.context.ended_request import NOTHING, AttemptHistory, EndedRequest, Generated
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client, Handler
from gateway.dataplane.context.local_replies import JSON, error_reply
from gateway.dataplane.context.request_body import RequestBody
from gateway.dataplane.context.request_log import decision_facts
from gateway.dataplane.context.route_target import RouteTarget
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.wire.http1.head import Field


def log_request(
    client: Client,
    request: Request,
    status: int,
    reason: str,
    started_at: float,
    request_id: bytes | None = None,
    *,
    route_target: RouteTarget | None = None,
    endpoint: str = "",
    body: RequestBody | None = None,
    attempts: AttemptHistory | None = None,
    generated: Generated = NOTHING,
    response_bytes: int = 0,
    sent_by_rpc: bool = False,
) -> None:
    """Report the end of a request to the logs. `attempts` are those at its engine: by gRPC where `sent_by_rpc`."""
    if client.plane.request_log.is_on:
        ended = EndedRequest(
            client.peer,
            request.plan.request_line,
            status,
            reason,
            monotonic() - started_at,
            request_id or request.id or b"",
            route_target.spec if route_target is not None else None,
            endpoint,
            decision_facts(request, body),
            request.plan.principal,
            client.trace,
            attempts,
            generated,
            body.size if body is not None else 0,
            response_bytes,
            sent_by_rpc=sent_by_rpc,
        )
        client.plane.request_log.add(ended)


class LocalHandler(Handler):
    """Answers in one piece once the body has come."""

    def __init__(self, client: Client, request: Request) -> None:
        self._client = client
        self._request = request
        self._plan = request.plan
        self._request_id = request.id or client.plane.new_request_id()
        self._started_at = monotonic()

    def _respond(
        self, status: int, body: bytes, fields: Sequence[Field], content_type: str = JSON, reason: str = ""
    ) -> None:
        """Count, log and send the reply; `reason` names the kind of a failure."""
        plane = self._client.plane
        if reason:
            plane.metrics.unrouted.count_error(reason)
        plane.metrics.unrouted.count_failure(status, monotonic() - self._started_at)
        log_request(self._client, self._request, status, reason, self._started_at, self._request_id)
        self._client.respond(status, body, [*fields, (b"x-request-id", self._request_id)], content_type)

    def _refuse(self, error: GatewayError, fields: Sequence[Field] = ()) -> None:
        """The same with an error."""
        status, content, more = error_reply(error, self._plan.api, [(b"x-request-id", self._request_id)])
        self._respond(status, content, [*fields, *more[1:]], reason=error.kind.value)

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        plane = self._client.plane
        plane.metrics.unrouted.count_error(reason)
        if status:
            plane.metrics.unrouted.count_failure(status, monotonic() - self._started_at)
        log_request(self._client, self._request, status, reason, self._started_at)

    def progress(self) -> Progress:
        return progress_of(self._request, Stage.REQUESTED, self._started_at)


class ForwardingHandler(Handler):
    """Passes the events of the client's connection on to another handler, once there is one."""

    _handler: Handler | None

    @property
    def begun(self) -> bool:
        return self._handler is not None and self._handler.begun

    @property
    def has_attempted(self) -> bool:
        return self._handler is not None and self._handler.has_attempted

    def client_paused(self) -> None:
        if self._handler is not None:
            self._handler.client_paused()

    def client_resumed(self) -> None:
        if self._handler is not None:
            self._handler.client_resumed()

    def sweep(self, now: float) -> None:
        if self._handler is not None:
            self._handler.sweep(now)


class ErrorHandler(LocalHandler):
    """Reads a request to its end, then answers with an error."""

    def __init__(self, client: Client, request: Request, error: GatewayError) -> None:
        super().__init__(client, request)
        self._error = error

    def body_received(self, data: bytes, ended: bool) -> None:
        # A client that expects 100-continue gets the error before its body.
        if ended or self._plan.head.expects_continue:
            is_allowed = self._error.kind is not ErrorKind.METHOD_NOT_ALLOWED
            allowed = () if is_allowed else ((b"allow", ", ".join(self._plan.call.verbs).encode("ascii")),)
            self._refuse(self._error, allowed)

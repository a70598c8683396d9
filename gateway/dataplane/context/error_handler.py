"""A request that nobody answers."""

from __future__ import annotations

from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client, OwnAnswer
from gateway.dataplane.context.local_replies import error_told, reason_fields, status_told
from gateway.protocol.errors import ErrorKind, GatewayError


class ErrorHandler(OwnAnswer):
    """Reads a request to its end, then says why nobody answers it."""

    def __init__(self, client: Client, request: Request, error: GatewayError) -> None:
        super().__init__(client, request)
        self._error = error

    def body_received(self, data: bytes, ended: bool) -> None:
        # A client that waits for leave to send its body is told at once.
        if ended or self._plan.head.expects_continue:
            error = self._error
            fields = reason_fields(error)
            if error.kind is ErrorKind.METHOD_NOT_ALLOWED:
                fields.append((b"allow", ", ".join(self._plan.call.verbs).encode("ascii")))
            status = status_told(error, self._plan.api)
            self._tell(status, error_told(error, self._plan.api), fields, reason=error.kind.value)

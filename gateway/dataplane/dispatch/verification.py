"""Requests and calls whose caller is being verified: their bodies wait, then they go on as any other."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from gateway.auth.identity import UnverifiedError
from gateway.dataplane.context.active_requests import Progress, Stage
from gateway.dataplane.context.authenticated_head_reader import AuthenticatedRequest
from gateway.dataplane.context.call_head import CallHead
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client, Handler
from gateway.dataplane.context.local_handler import ErrorHandler, ForwardingHandler
from gateway.dataplane.dispatch.deferred_handler import Chosen, LookupHandler
from gateway.dataplane.grpc.interfaces import CallClient, CallHandler
from gateway.dataplane.grpc.local_call import RefusedCall
from gateway.protocol.errors import GatewayError
from gateway.wire.http2.fields import Block
from gateway.wire.http2.stream import Stream


class BoundedHandler(ForwardingHandler):
    """Ends a request with an error once its body is longer than its route allows. The client's connection bounds it by
    what was known when the head came."""

    _handler: Handler

    def __init__(self, client: Client, request: Request, handler: Handler) -> None:
        self._client = client
        self._request = request
        self._handler = handler
        self._size = 0
        self._is_over = False

    def body_received(self, data: bytes, ended: bool) -> None:
        if self._is_over:
            return
        self._size += len(data)
        if self._size <= self._request.plan.max_body_bytes:
            self._handler.body_received(data, ended)
            return
        self._is_over = True
        has_begun = self._handler.begun
        error = self._request.plan.body_too_long(self._client.plane.settings.limits)
        self._handler.client_gone(error.kind.value, error.status.http)
        if has_begun:
            self._client.break_off()
        else:
            self._client.refuse(error, [(b"x-request-id", self._request.id or self._client.plane.new_request_id())])

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        if not self._is_over:
            self._is_over = True
            self._handler.client_gone(reason, status)

    def progress(self) -> Progress:
        return self._handler.progress()


class VerificationHandler(LookupHandler):
    """Holds the body of a request while its caller's token is verified."""

    def __init__(
        self,
        client: Client,
        request: AuthenticatedRequest,
        error: UnverifiedError,
        handler_for: Callable[[Client, Request], Handler],
    ) -> None:
        super().__init__(client, request)
        self._error = error
        self._again = request.again
        self._handler_for = handler_for

    def _start(self) -> None:
        self._error.verify(self._verified)

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        self._is_over = True
        handler = self._handler or ErrorHandler(self._client, self._request, self._error)
        handler.client_gone(reason, status)

    def _verified(self) -> None:
        if not self._is_over:
            self._go_on(self._choose)

    def _choose(self, body: bytes) -> Chosen:
        handler: Handler
        try:
            request = self._again()
            if isinstance(request.plan.error, UnverifiedError):  # what was found out is forgotten already
                raise request.plan.error.again()
            if max(request.length or 0, self._body.size) > request.plan.max_body_bytes:
                raise request.plan.body_too_long(self._client.plane.settings.limits)
            handler = self._handler_for(self._client, request)
            if request.length is None and not self._body.is_complete:
                handler = BoundedHandler(self._client, request, handler)
        except GatewayError as error:
            handler = ErrorHandler(self._client, self._request, error)
        return handler, body


class UnverifiedCall(CallHandler):
    """Holds the messages of a call while its caller's token is verified; what it holds counts as other bodies do."""

    def __init__(
        self,
        client: CallClient,
        stream: Stream,
        head: CallHead,
        error: UnverifiedError,
        block: Block,
        handler_of: Callable[[CallClient, Stream, Block], CallHandler],
    ) -> None:
        self._client = client
        self._stream = stream
        self._head = head
        self._error = error
        self._block = block
        self._handler_of = handler_of
        self._pieces: list[tuple[bytes, bool]] = []
        self._size = 0
        self._started_at = monotonic()
        self._is_over = False
        error.verify(self._go_on)

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        self._pieces.append((data, ended))
        self._size += len(data)
        self._client.plane.held.hold(self, self._size, self._client)

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        if not self._is_over:
            self._end()
            self._client.plane.metrics.unrouted.count_error("client_gone")

    def drained(self, stream: Stream) -> None:
        """Nothing was sent."""

    def sweep(self, now: float) -> None:
        """Verification ends by itself."""

    def progress(self) -> Progress | None:
        if self._is_over:
            return None
        request_id, request_line = self._head.id or b"", self._head.plan.request_line
        return Progress(Stage.READING, self._started_at, request_id, request_line=request_line)

    def cancel(self, error: GatewayError) -> None:
        if not self._is_over:
            self._refuse(error)

    def _go_on(self) -> None:
        if self._is_over:
            return
        call = self._handler_of(self._client, self._stream, self._block)
        if isinstance(call, UnverifiedCall):  # what was found out is forgotten already
            call._is_over = True
            self._refuse(self._error)
            return
        pieces = self._pieces
        self._end()
        self._stream.receiver = call
        for data, ended in pieces:
            self._stream.receiver.data_received(self._stream, data, ended)

    def _end(self) -> None:
        self._is_over = True
        self._pieces = []
        self._client.plane.held.release(self)

    def _refuse(self, error: GatewayError) -> None:
        self._end()
        self._stream.receiver = RefusedCall(self._client, self._stream, self._head, error)

"""A gRPC call that is answered as a REST request would be: one about the fleet, or one for an engine without gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.dataplane.context.active_request import Progress
from gateway.dataplane.context.call_head import CallHead
from gateway.dataplane.context.error_handler import ErrorHandler
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Handler
from gateway.dataplane.context.prepared_head import PreparedHead
from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.dispatch.by_http import by_http
from gateway.dataplane.dispatch.model_in_body import Serve
from gateway.dataplane.grpc.client import CallClient
from gateway.dataplane.grpc.local_call import LocalCall
from gateway.dataplane.grpc.reply_headers import status_fields, tell_status
from gateway.dataplane.protocol_bridge.in_process_client import InProcessClient
from gateway.dataplane.rest.fleet_operations import FleetOperation
from gateway.protocol.conversion import RestRequest
from gateway.protocol.conversion.control import RpcError, rest_request, rpc_response
from gateway.protocol.conversion.control_errors import rpc_error
from gateway.protocol.conversion.infer import infer_response_of_rest, rest_of_infer_request
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_methods import Rpc
from gateway.protocol.infer_message_head import read_names
from gateway.protocol.operations import Operation, model_path
from gateway.wire.http1.head import Field, RequestHead
from gateway.wire.http2.stream import Stream

_JSON_LENGTH = b"inference-header-content-length"
_OUR_FIELDS = b"x-pointsman-"
_REASON = b"x-pointsman-reason"


class GrpcToRestCall(LocalCall):
    """Collects the message, asks by REST, and converts the reply, which it collects too. `decided` are the lane and
    the session where the rules have been asked, and `serve` answers there; without, the fleet does."""

    __slots__ = ("_body", "_decided", "_fields", "_handler", "_rest", "_rpc", "_serve", "_status")

    def __init__(
        self,
        client: CallClient,
        stream: Stream,
        head: CallHead,
        decided: tuple[Lane, str | None] | None = None,
        serve: Serve = by_http,
    ) -> None:
        super().__init__(client, stream, head)
        assert head.plan.rpc is not None
        self._rpc: Rpc = head.plan.rpc
        self._decided = decided
        self._serve = serve
        self._rest = InProcessClient(client.plane, self, client.peer, is_tls=client.is_tls)
        self._handler: Handler | None = None
        self._status = 0
        self._fields: list[Field] = []
        self._body: list[bytes] = []

    def _requests_ended(self) -> None:
        message = self._only_message()
        is_inference = self._rpc.operation is Operation.INFER
        asked = rest_of_infer(message) if is_inference else rest_request(self._rpc.name, message)
        request = rest_of_call(self._client, self._head, asked, self._request_id)
        if self._decided is not None:
            self._handler = self._serve(self._rest, request, *self._decided)
        elif request.plan.error is not None:
            self._handler = ErrorHandler(self._rest, request, request.plan.error)
        else:
            self._handler = FleetOperation(self._rest, request)
        self._handler.body_received(asked.body.data, True)

    # While the handler is at it

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        if self._handler is None:
            super().stream_reset(stream, code, why)
        elif self._leave():
            self._handler.client_gone()

    def sweep(self, now: float) -> None:
        if self._handler is None:
            super().sweep(now)
        elif not self._is_over:
            self._handler.sweep(now)

    def expired(self) -> None:
        if self._handler is not None and not self._is_over:
            self._handler.client_gone(ErrorKind.DEADLINE.value, 504)
        super().expired()

    def progress(self) -> Progress | None:
        if self._handler is None or self._is_over:
            return super().progress()
        return replace(self._handler.progress(), asked=self._head.plan.asked)

    def cancel(self, error: GatewayError) -> None:
        if self._handler is not None and not self._is_over:
            self._handler.client_gone(error.kind.value, error.status.http)
        super().cancel(error)

    def _count(self, status: int, reason: str) -> None:
        if self._handler is None:  # else that has counted it
            super()._count(status, reason)

    # What the handler tells it

    def reply_started(self, status: int, fields: list[Field]) -> None:
        self._status = status
        self._fields = fields

    def reply_continued(self, data: bytes) -> None:
        self._body.append(data)

    def reply_ended(self) -> None:
        if self._is_over:
            return
        try:
            message = self._converted(b"".join(self._body))
        except RpcError as error:  # whoever answered says so: an engine, or the gateway for the fleet
            self._leave()
            named = [field for field in self._fields if field[0] == _REASON]
            tell_status(self._stream, status_fields(error.code, error.message) + named, self._request_id, self._lane)
            self._client.call_ended(self._stream)
        except GatewayError as error:
            self._fail(error, self._lane)
        else:
            self._write(message, [field for field in self._fields if field[0].startswith(_OUR_FIELDS)])
            self._succeed()

    def refused(self, error: GatewayError, fields: Sequence[Field]) -> None:
        self._fail(error, self._lane)

    def reply_broken(self, event: bytes) -> None:
        self._fail(GatewayError(ErrorKind.UPSTREAM_RESET, "the engine broke its reply off"), self._lane)

    def pause_body(self) -> None:
        """The request is whole."""

    def resume_body(self) -> None:
        """The request is whole."""

    def _converted(self, body: bytes) -> bytes:
        if self._rpc.operation is not Operation.INFER:
            return rpc_response(self._rpc.name, self._status, body)
        if self._status != 200:
            raise rpc_error(self._status, body)
        return infer_response_of_rest(body, told_head_bytes(self._fields))

    @property
    def _lane(self) -> Lane | None:
        return self._decided[0] if self._decided is not None else None


def rest_of_infer(message: bytes) -> RestRequest:
    """The REST request for a serialised ModelInferRequest.

    Raises: GatewayError.
    """
    names = read_names(message, 0, len(message))
    if not names.model:  # as Triton's gRPC says it; a path cannot
        raise GatewayError(ErrorKind.NOT_FOUND, "Request for unknown model: '' is not found")
    model, version = names.model.decode("utf-8", "replace"), names.version.decode("utf-8", "replace")
    if names.version and not names.version.isdigit():
        raise GatewayError(ErrorKind.BAD_REQUEST, f"model_version {version!r} is no number")
    return RestRequest("POST", f"{model_path(model, version)}/infer", rest_of_infer_request(message))


def told_head_bytes(fields: list[Field]) -> int | None:
    """Where the JSON of a REST reply with these fields ends; None where all of its body is JSON.

    Raises: GatewayError(UPSTREAM_PROTOCOL).
    """
    told = dict(fields).get(_JSON_LENGTH)
    if told is None:
        return None
    if not told.isdigit() or len(told) > 18:
        what = f"the engine's Inference-Header-Content-Length {told.decode('latin-1')!r} is no number"
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, what)
    return int(told)


def rest_of_call(client: CallClient, head: CallHead, asked: RestRequest, request_id: bytes) -> Request:
    """The REST request as a handler gets it: with the call's metadata, and known to the rules as gRPC's."""
    fields = [(b"host", head.plan.authority or b"pointsman"), *head.rest_fields()]
    if asked.body.head_bytes is not None:
        fields.append((_JSON_LENGTH, b"%d" % asked.body.head_bytes))
        fields.append((b"content-type", b"application/octet-stream"))
    elif asked.body.data:
        fields.append((b"content-type", b"application/json"))
    if asked.method == "POST":
        fields.append((b"content-length", b"%d" % len(asked.body.data)))
    made = RequestHead(asked.method.encode("ascii"), asked.target.encode("ascii"), fields, False)
    plan = PreparedHead(made, head.plan.snapshot, client.plane.settings, "grpc")
    return Request(plan, [(b"x-request-id", request_id)])

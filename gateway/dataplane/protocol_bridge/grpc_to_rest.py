"""A gRPC call that is answered by a handler of REST: one about the fleet, or one for an engine without gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.dataplane.context.active_requests import Progress
from gateway.dataplane.context.call_head import CallHead
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.in_process_client import InProcessClient, ReplySink
from gateway.dataplane.context.interfaces import Handler, Serve
from gateway.dataplane.context.local_handler import ErrorHandler
from gateway.dataplane.context.prepared_head import PreparedHead, check_path
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.grpc.interfaces import CallClient
from gateway.dataplane.grpc.local_call import LocalCall
from gateway.dataplane.grpc.reply_headers import send_status, status_fields
from gateway.dataplane.rest.fleet_operations import FleetOperation
from gateway.protocol.conversion.control import rest_request, rpc_response
from gateway.protocol.conversion.control_errors import RpcError, rpc_error
from gateway.protocol.conversion.infer import infer_response_of_rest, rest_of_infer_request
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_methods import Rpc
from gateway.protocol.infer_message_head import read_names
from gateway.protocol.operations import Operation, model_path
from gateway.protocol.sequence import AnySession
from gateway.protocol.translator import RestRequest
from gateway.wire.http1.head import Field, RequestHead
from gateway.wire.http2.stream import Stream

_JSON_LENGTH = b"inference-header-content-length"
_OUR_FIELDS = b"x-pointsman-"
_REASON = b"x-pointsman-reason"


class GrpcToRestCall(LocalCall, ReplySink):
    """Collects and converts the message, then the reply. `serve` makes the handler for the `decided` target and
    session; a call without these is about the fleet."""

    __slots__ = ("_body", "_decided", "_fields", "_handler", "_rpc", "_serve", "_status")

    def __init__(
        self,
        client: CallClient,
        stream: Stream,
        head: CallHead,
        decided: tuple[RouteTarget, AnySession | None] | None = None,
        serve: Serve | None = None,
    ) -> None:
        super().__init__(client, stream, head)
        assert head.plan.rpc is not None
        self._rpc: Rpc = head.plan.rpc
        self._decided = decided
        self._serve = serve
        self._handler: Handler | None = None
        self._status = 0
        self._fields: list[Field] = []
        self._body: list[bytes] = []

    def _requests_ended(self) -> None:
        message = self._only_message()
        is_inference = self._rpc.operation is Operation.INFER
        converted = rest_of_infer(message) if is_inference else rest_request(self._rpc.name, message)
        request = rest_of_call(self._client, self._head, converted, self.request_id, self._route_target)
        caller = self._client
        client = InProcessClient(caller.plane, self, caller.peer, caller, is_tls=caller.is_tls)
        client.trace = self._stream.note
        if self._decided is not None and self._serve is not None:
            self._handler = self._serve(client, request, *self._decided)
        elif request.plan.error is not None:
            self._handler = ErrorHandler(client, request, request.plan.error)
        else:
            self._handler = FleetOperation(client, request)
        self._handler.body_received(converted.body.data, True)

    # Once there is a handler

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
        return replace(self._handler.progress(), request_line=self._head.plan.request_line)

    def cancel(self, error: GatewayError) -> None:
        if self._handler is not None and not self._is_over:
            self._handler.client_gone(error.kind.value, error.status.http)
        super().cancel(error)

    def _count(self, status: int, reason: str, code: int) -> None:
        if self._handler is None:  # which counts it otherwise
            super()._count(status, reason, code)

    # The reply: see `ReplySink`

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
        except RpcError as error:  # of an engine, or of the gateway for the fleet
            self._leave()
            named = [field for field in self._fields if field[0] == _REASON]
            send_status(
                self._stream, status_fields(error.code, error.message) + named, self.request_id, self._route_target
            )
            self._client.call_ended(self._stream)
        except GatewayError as error:
            self._fail(error, self._route_target)
        else:
            self._write(message, [field for field in self._fields if field[0].startswith(_OUR_FIELDS)])
            self._succeed()

    def refused(self, error: GatewayError, fields: Sequence[Field]) -> None:
        self._fail(error, self._route_target)

    def reply_broken(self, event: bytes) -> None:
        self._fail(GatewayError(ErrorKind.UPSTREAM_RESET, "the engine broke its reply off"), self._route_target)

    def _converted(self, body: bytes) -> bytes:
        code = dict(self._fields).get(b"grpc-status", b"0") if self._decided is None else b"0"
        if code != b"0":  # that of an engine's own refusal
            raise RpcError(int(code), rpc_error(self._status, body).message)
        if self._rpc.operation is not Operation.INFER:
            return rpc_response(self._rpc.name, self._status, body)
        if self._status != 200:
            raise rpc_error(self._status, body)
        return infer_response_of_rest(body, json_bytes_of(self._fields))

    @property
    def _route_target(self) -> RouteTarget | None:
        return self._decided[0] if self._decided is not None else None


def rest_of_infer(message: bytes) -> RestRequest:
    """The REST request for a serialised ModelInferRequest. Raises: GatewayError."""
    names = read_names(message, 0, len(message))
    if not names.model:  # Triton's gRPC error; a path cannot be without a name
        raise GatewayError(ErrorKind.NOT_FOUND, "Request for unknown model: '' is not found")
    model, version = names.model.decode("utf-8", "replace"), names.version.decode("utf-8", "replace")
    return RestRequest("POST", f"{model_path(model, version)}/infer", rest_of_infer_request(message))


def json_bytes_of(fields: list[Field]) -> int | None:
    """Where the JSON of a REST reply with these fields ends; None where all of its body is JSON. Raises:
    GatewayError(UPSTREAM_PROTOCOL)."""
    length = dict(fields).get(_JSON_LENGTH)
    if length is None:
        return None
    if not length.isdigit() or len(length) > 18:
        what = f"the engine's Inference-Header-Content-Length {length.decode('latin-1')!r} is no number"
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, what)
    return int(length)


def rest_of_call(
    client: CallClient, head: CallHead, converted: RestRequest, request_id: bytes, route_target: RouteTarget | None
) -> Request:
    """The REST request as a handler gets it: with the call's metadata; the rules see that its client uses gRPC.
    `route_target` is its target; None: the fleet.

    Raises: GatewayError(BAD_REQUEST) where the client's name of the model would become another path.
    """
    if route_target is not None:
        check_path(converted.target, route_target, client.plane.settings)
    fields = [(b"host", head.plan.authority or b"pointsman"), *head.rest_fields()]
    if converted.body.head_bytes is not None:
        fields.append((_JSON_LENGTH, b"%d" % converted.body.head_bytes))
        fields.append((b"content-type", b"application/octet-stream"))
    elif converted.body.data:
        fields.append((b"content-type", b"application/json"))
    if converted.method == "POST":
        fields.append((b"content-length", b"%d" % len(converted.body.data)))
    rest_head = RequestHead(converted.method.encode("ascii"), converted.target.encode("ascii"), fields, False)
    plan = PreparedHead(rest_head, head.plan.snapshot, client.plane.settings, "grpc", head.plan.principal)
    return Request.of_fields(plan, [(b"x-request-id", request_id)])

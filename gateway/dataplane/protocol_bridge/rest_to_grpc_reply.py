"""The reply to a REST request that was converted to a call: the engine's messages and status, converted back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.local_replies import JSON
from gateway.dataplane.context.prepared_head import PreparedHead
from gateway.dataplane.context.route_target import RouteTarget
from gateway.protocol.conversion.control import rest_response
from gateway.protocol.conversion.control_errors import rest_error
from gateway.protocol.conversion.errors import error_json
from gateway.protocol.conversion.generate import (
    generate_of_infer_response,
    sse_of_error,
    sse_of_infer_response,
)
from gateway.protocol.conversion.infer import WantedOutputs, rest_of_infer_response
from gateway.protocol.conversion.stream import is_bare_response, read_stream_response, stream_response
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_status import OK
from gateway.protocol.operations import Operation
from gateway.wire.http1.head import Field

_OUR_FIELDS = b"x-pointsman-"
_REASON = b"x-pointsman-reason"
_KINDS = {kind.value.encode("ascii"): kind for kind in ErrorKind}
_EVENTS = "text/event-stream; charset=utf-8"
_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
    "number of responses"
)


class RestToGrpcReply:
    """The sink of a call's reply. `rpc` is the call's name, `wanted` how the client wants its outputs, `timing_fields`
    gives the timing to a client that requests it."""

    __slots__ = (
        "_answers",
        "_client",
        "_errors",
        "_plan",
        "_request_id",
        "_route_target",
        "begun",
        "is_over",
        "rpc",
        "timing_fields",
        "wanted",
    )

    def __init__(self, client: Client, plan: PreparedHead, route_target: RouteTarget, request_id: bytes) -> None:
        self._client = client
        self._plan = plan
        self._route_target = route_target
        self._request_id = request_id
        self.timing_fields: Callable[[], list[Field]] = list
        self._answers: list[bytes] = []
        self._errors: list[str] = []
        self.rpc = ""
        self.wanted = WantedOutputs()
        self.begun = False
        self.is_over = False

    # See `MessageSink`

    def message_came(self, message: bytes) -> None:
        if self.is_over:
            return
        if self.rpc != "ModelStreamInfer":
            self._answers.append(message)
            return
        part = read_stream_response(stream_response(message) if is_bare_response(message) else message)
        if part.is_empty:
            return
        if part.error and self.begun:
            self._write_event(sse_of_error(part.error), {})
        elif part.error:  # the first failure is the reply's status, written when the call has ended
            self._errors.append(part.error)
        elif self._plan.call.operation is Operation.GENERATE:
            self._answers.append(part.infer_response)
        elif not self._errors:
            try:
                event = sse_of_infer_response(part.infer_response)
            except GatewayError as error:
                event = sse_of_error(error.message)
            self._write_event(event, {})

    def reply_ended(self, code: int, text: str, fields: dict[bytes, bytes]) -> None:
        if self.is_over:
            return
        if code != OK:
            self.end_with_status(code, text, fields)
        elif self._plan.call.operation is Operation.GENERATE_STREAM:
            self._end_events(fields)
        else:
            try:
                self._answer(fields)
            except GatewayError as error:
                self.reply_broken(error, fields)

    def reply_broken(self, error: GatewayError, fields: dict[bytes, bytes]) -> None:
        if self.is_over:
            return
        self._route_target.series(None).count_error(error.kind.value)
        if self.begun:
            self._write_event(sse_of_error(error.message), fields)
            self._end_events(fields)
        else:
            self.refuse(error, fields)

    # The reply

    def refuse(self, error: GatewayError, fields: dict[bytes, bytes]) -> None:
        """Answer with an error of the gateway's; `fields` are those that the call had."""
        if not self.is_over:
            self.is_over = True
            self._client.refuse(error, self._own_fields(fields))

    def fail(self, error: GatewayError) -> None:
        """The gateway ends the call with an error."""
        if self.is_over:
            return
        if self.begun:
            self._write_event(sse_of_error(error.message), {})
            self._end_events({})
        else:
            self.refuse(error, {})

    def _answer(self, fields: dict[bytes, bytes]) -> None:
        operation = self._plan.call.operation
        if len(self._answers) + len(self._errors) != 1:
            if operation is Operation.GENERATE:  # under 200, as Triton does
                self._respond(200, error_json(_NOT_ONE), fields)
                return
            raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"the engine answered with {len(self._answers)} messages")
        if self._errors:
            self._respond(400, error_json(self._errors[0]), fields)
            return
        answer = self._answers[0]
        if operation is Operation.INFER:
            body = rest_of_infer_response(answer, self.wanted)
            if body.head_bytes is None:
                self._respond(200, body.data, fields)
            else:
                added = [(b"inference-header-content-length", b"%d" % body.head_bytes)]
                self._respond(200, body.data, fields, added, "application/octet-stream")
        elif operation is Operation.GENERATE:
            self._respond(200, generate_of_infer_response(answer), fields)
        else:
            reply = rest_response(self.rpc, answer)
            self._respond(reply.status, reply.body, fields)

    def end_with_status(self, code: int, text: str, fields: dict[bytes, bytes]) -> None:
        """Answer with the gRPC status of an engine."""
        kind = _KINDS.get(fields.get(_REASON, b""))
        if self.begun:
            self._write_event(sse_of_error(text), fields)
            self._end_events(fields)
        elif kind is not None:
            self.refuse(GatewayError(kind, text), fields)
        else:
            reply = rest_error(code, text)
            self._respond(reply.status, reply.body, fields)

    def _respond(
        self,
        status: int,
        body: bytes,
        fields: dict[bytes, bytes],
        added: Sequence[Field] = (),
        content_type: str = JSON,
    ) -> None:
        self.is_over = True
        self._client.respond(status, body, [*self._own_fields(fields), *added], content_type)

    def _own_fields(self, fields: dict[bytes, bytes]) -> list[Field]:
        named = [field for field in fields.items() if field[0].startswith(_OUR_FIELDS) and field[0] != _REASON]
        if named:
            named += [field for field in self._route_target.pin_fields if field not in named]
        else:
            named = self._route_target.reply_fields
        return [*named, *self.timing_fields(), (b"x-request-id", self._request_id)]

    # Events

    def _write_event(self, event: bytes, fields: dict[bytes, bytes]) -> None:
        if self.begun:
            self._client.write_piece(event)
        else:
            self.begun = True
            self._client.start_stream(_EVENTS, self._own_fields(fields), event)

    def _end_events(self, fields: dict[bytes, bytes]) -> None:
        if self._errors:  # such an error has no kind: Triton's REST answers 400 too
            self._respond(400, sse_of_error(self._errors[0]), fields, content_type=_EVENTS)
            return
        if not self.begun:
            self._write_event(b"", fields)
        self.is_over = True
        self._client.write_piece(b"", True)
        self._client.reply_ended()

"""A REST request for an engine with gRPC alone: asked by gRPC, and the reply converted back."""

from __future__ import annotations

import asyncio

from gateway.dataplane.body import decoded
from gateway.dataplane.bridging.metadata import ask_metadata
from gateway.dataplane.bridging.reply_stream import ReplyStream
from gateway.dataplane.grpc.call import RelayedCall
from gateway.dataplane.grpc.client import Call
from gateway.dataplane.grpc.plan import CallHead, CallPlan
from gateway.dataplane.grpc.streams import StreamCall
from gateway.dataplane.plane import DataPlane
from gateway.dataplane.replies import JSON
from gateway.dataplane.request import Request
from gateway.dataplane.seams import Client
from gateway.dataplane.snapshot import Lane
from gateway.protocol.conversion.control import RpcError, rest_error, rest_response, rpc_request
from gateway.protocol.conversion.generate import (
    error_json,
    generate_of_infer_response,
    infer_request_of_generate,
    sse_of_error,
    sse_of_infer_response,
)
from gateway.protocol.conversion.infer import WantedOutputs, infer_request_of_rest, rest_of_infer_response
from gateway.protocol.conversion.stream import read_stream_response
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_methods import RPCS
from gateway.protocol.grpc_status import OK
from gateway.protocol.operations import Operation
from gateway.wire.grpc import framed
from gateway.wire.http1.chunked import LAST_CHUNK, encode_chunk
from gateway.wire.http1.head import Field
from gateway.wire.http2.frames import ErrorCode
from gateway.wire.http2.hpack import literals
from gateway.wire.http2.stream import Stream

_OUR_FIELDS = b"x-pointsman-"
_REASON = b"x-pointsman-reason"
# What belongs to the body as REST has it.
_OF_REST = frozenset(
    {
        *(b"accept", b"accept-encoding", b"content-encoding", b"content-length", b"content-type", b"expect", b"host"),
        *(b"inference-header-content-length", b"te", b"x-request-id"),
    }
)
_EVENTS = "text/event-stream; charset=utf-8"
_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
    "number of responses"
)
_GENERATES = (Operation.GENERATE, Operation.GENERATE_STREAM)


class ConvertedExchange:
    """Reads the body whole, and calls the lane's engine as a gRPC client of its own would be: with the tries, limits
    and counters of any other call."""

    __slots__ = (
        "_answers",
        "_call",
        "_client",
        "_errors",
        "_is_over",
        "_lane",
        "_pieces",
        "_plan",
        "_request",
        "_request_id",
        "_rpc",
        "_session",
        "_stream",
        "_task",
        "_wanted",
        "begun",
        "is_tls",
        "passing",
        "peer",
        "plane",
    )

    def __init__(self, client: Client, request: Request, lane: Lane, session: str | None) -> None:
        self._client = client
        self._request = request
        self._plan = request.plan
        self._lane = lane
        self._session = session
        self._request_id = request.id or client.plane.new_request_id()
        self._pieces: list[bytes] = []
        self._stream = ReplyStream(self)
        self._call: Call | None = None
        self._task: asyncio.Task[None] | None = None
        self._rpc = ""
        self._wanted = WantedOutputs()
        self._answers: list[bytes] = []
        self._errors: list[str] = []
        self._is_over = False
        self.begun = False
        # As the client of its own call
        self.plane: DataPlane = client.plane
        self.peer = client.peer
        proto = client.forwarded_proto_line.partition(b": ")[2].strip()
        self.is_tls = proto == b"https"
        told = [(b"x-forwarded-for", client.peer.encode("ascii", "replace"))]
        if not self._plan.keeps_forwarded_proto:
            told.append((b"x-forwarded-proto", proto))
        self.passing = literals(told)

    def __repr__(self) -> str:
        return f"<ConvertedExchange {self._plan!r} by {self._rpc or 'gRPC'}>"

    # What the client's connection tells it

    def body_received(self, data: bytes, ended: bool) -> None:
        self._pieces.append(data)
        if not ended:
            self._client.expect_body()
            return
        try:
            body = decoded(self._request, b"".join(self._pieces), self.plane.settings.limits.max_body_bytes)
            self._pieces.clear()
            self._ask(body)
        except GatewayError as error:
            self._refuse(error)

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        if self._task is not None:
            self._task.cancel()
        self._end_call(reason)

    def _end_call(self, reason: str = "told") -> None:
        """Nothing more is wanted of the engine."""
        self._is_over = True
        call, self._call = self._call, None
        if call is not None:
            call.stream_reset(self._stream, ErrorCode.CANCEL, reason)

    def client_paused(self) -> None:
        self._stream.is_paused = True

    def client_resumed(self) -> None:
        self._stream.is_paused = False
        if self._call is not None:
            self._call.drained(self._stream)

    def sweep(self, now: float) -> None:
        if self._call is not None:
            self._call.sweep(now)

    # Asking

    def _ask(self, body: bytes) -> None:
        plan = self._plan
        call = plan.call
        if call.operation in _GENERATES:
            self._task = asyncio.get_running_loop().create_task(self._generate(body))
            return
        if call.operation is Operation.INFER:
            self._rpc = "ModelInfer"
            head_bytes = _head_bytes(self._request.json_length, len(body))
            message, self._wanted = infer_request_of_rest(body, head_bytes, call.model or "", call.version or "")
        else:
            method = "GET" if plan.without_body else plan.head.method
            self._rpc, message = rpc_request(method, plan.head.target.decode("latin-1"), body)
        head = self._call_head()
        decided = (head.plan.way(self._lane), self._session)
        self._call = RelayedCall(self, self._stream, head, decided)
        self._call.data_received(self._stream, framed(message), True)

    async def _generate(self, body: bytes) -> None:
        call = self._plan.call
        model, version = call.model or "", call.version or ""
        streams = call.operation is Operation.GENERATE_STREAM
        try:
            metadata = await ask_metadata(self._lane, model, version)
            message = infer_request_of_generate(body, metadata, model, version, streams=False)
        except RpcError as error:
            self._task = None
            self._tell_status(error.code, error.message, {})
            return
        except GatewayError as error:
            self._task = None
            self._refuse(error)
            return
        self._task = None
        self._rpc = "ModelStreamInfer"
        if streams:
            self._client.write_at_once()
        head = self._call_head()
        decided = (head.plan.way(self._lane), self._session)
        self._call = StreamCall(self, self._stream, head, decided, (model.encode(), version.encode()))
        self._call.data_received(self._stream, framed(message), True)

    def _call_head(self) -> CallHead:
        plan = self._plan
        if plan.note is None:
            plan.note = {}
        call_plan = plan.note.get(self._rpc)
        if call_plan is None:
            call_plan = plan.note[self._rpc] = CallPlan(self._fields(), plan.snapshot, self.plane.settings)
        volatile = [field for field in self._request.volatile if field[0] not in _OF_REST]
        return CallHead(call_plan, [*volatile, (b"x-request-id", self._request_id)])

    def _fields(self) -> list[Field]:
        head = self._plan.head
        fields = [
            (b":method", b"POST"),
            (b":path", RPCS[self._rpc].path.encode("ascii")),
            (b":authority", head.value(b"host") or b""),
            (b"content-type", b"application/grpc"),
        ]
        return fields + [(name, value.strip()) for name, value in head.fields if name not in _OF_REST]

    # What the call tells it

    def message_came(self, message: bytes) -> None:
        if self._is_over:
            return
        if self._rpc != "ModelStreamInfer":
            self._answers.append(message)
            return
        part = read_stream_response(message)
        if part.is_empty:
            return
        if self._plan.call.operation is Operation.GENERATE:
            self._errors += [part.error] if part.error else []
            self._answers.append(part.infer_response)
        elif part.error and not self.begun:  # nothing tells the kind of such an error: Triton's REST says 400 too
            self._end_call()
            self._client.respond(400, sse_of_error(part.error), self._lines({}), _EVENTS)
        elif part.error:
            self._write_event(sse_of_error(part.error), {})
        else:
            try:
                event = sse_of_infer_response(part.infer_response)
            except GatewayError as error:
                event = sse_of_error(error.message)
            self._write_event(event, {})

    def reply_ended(self, code: int, text: str, fields: dict[bytes, bytes]) -> None:
        if self._is_over:
            return
        if code != OK:
            self._tell_status(code, text, fields)
        elif self._plan.call.operation is Operation.GENERATE_STREAM:
            self._end_events(fields)
        else:
            try:
                self._tell(fields)
            except GatewayError as error:
                self._refuse(error, fields)

    def call_ended(self, stream: Stream) -> None:
        """It was told by the status."""

    # Answering

    def _tell(self, fields: dict[bytes, bytes]) -> None:
        operation = self._plan.call.operation
        if len(self._answers) != 1:
            if operation is Operation.GENERATE:  # under 200, as Triton says it
                self._is_over = True
                self._client.respond(200, error_json(_NOT_ONE), self._lines(fields))
                return
            raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"the engine answered with {len(self._answers)} messages")
        if self._errors:
            self._is_over = True
            self._client.respond(400, error_json(self._errors[0]), self._lines(fields))
            return
        answer = self._answers[0]
        lines, status, content_type = self._lines(fields), 200, JSON
        if operation is Operation.INFER:
            body = rest_of_infer_response(answer, self._wanted)
            data = body.data
            if body.head_bytes is not None:
                lines += b"inference-header-content-length: %d\r\n" % body.head_bytes
                content_type = "application/octet-stream"
        elif operation is Operation.GENERATE:
            data = generate_of_infer_response(answer)
        else:
            reply = rest_response(self._rpc, answer)
            status, data = reply.status, reply.body
        self._is_over = True
        self._client.respond(status, data, lines, content_type)

    def _tell_status(self, code: int, text: str, fields: dict[bytes, bytes]) -> None:
        reason = fields.get(_REASON)
        if self.begun:
            self._write_event(sse_of_error(text), fields)
            self._end_events(fields)
        elif reason is not None:
            self._refuse(GatewayError(ErrorKind(reason.decode("ascii")), text), fields)
        else:
            self._is_over = True
            reply = rest_error(code, text)
            self._client.respond(reply.status, reply.body, self._lines(fields))

    def _refuse(self, error: GatewayError, fields: dict[bytes, bytes] | None = None) -> None:
        if not self._is_over:
            self._is_over = True
            if self._call is None:  # else that has counted it
                self._lane.series(None).count_error(error.kind.value)
                self._lane.series(None).count_failure(error.status.http, 0.0)
            self._client.refuse(error, self._lines(fields or {}))

    def _lines(self, fields: dict[bytes, bytes]) -> bytes:
        named = [field for field in fields.items() if field[0].startswith(_OUR_FIELDS) and field[0] != _REASON]
        if not named:
            named = self._lane.reply_fields
        lines = b"".join(b"%b: %b\r\n" % field for field in named)
        return lines + b"x-request-id: %b\r\n" % self._request_id

    def _write_event(self, event: bytes, fields: dict[bytes, bytes]) -> None:
        is_http_10 = self._plan.head.is_http_10
        opening = b""
        if not self.begun:
            self.begun = True
            if is_http_10:  # it knows no chunks: the reply ends with the connection
                self._client.close_after_reply()
            opening = b"".join(
                (
                    b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n" % _EVENTS.encode("ascii"),
                    self._lines(fields),
                    b"via: 1.1 pointsman",
                    b"" if is_http_10 else b"\r\ntransfer-encoding: chunked",
                    self._client.reply_head_end,
                )
            )
        self._client.write(opening + (event if is_http_10 else encode_chunk(event)))

    def _end_events(self, fields: dict[bytes, bytes]) -> None:
        if not self.begun:
            self._write_event(b"", fields)
        self._is_over = True
        if not self._plan.head.is_http_10:
            self._client.write(LAST_CHUNK)
        self._client.reply_ended()


def _head_bytes(told: bytes | None, size: int) -> int | None:
    """Where the JSON of a body of this size ends.

    Raises: GatewayError(BAD_REQUEST).
    """
    if told is None:
        return None
    if not told.isdigit() or len(told) > 18 or int(told) > size:
        what = f"Inference-Header-Content-Length {told.decode('latin-1')!r} is no number from 0 to {size}"
        raise GatewayError(ErrorKind.BAD_REQUEST, what)
    return int(told)

"""A REST request for an engine with gRPC alone: asked by gRPC, and the reply converted back."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from time import monotonic

from gateway.dataplane.attempts.tries import Tries
from gateway.dataplane.context.active_request import Progress, Stage, of_request
from gateway.dataplane.context.call_head import CallHead, CallPlan
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.decision_log import known_of
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.request_body import decoded, told_json_bytes
from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.grpc.client import CallHandler
from gateway.dataplane.grpc.stream_call import StreamCall
from gateway.dataplane.grpc.unary_call import UnaryCall
from gateway.dataplane.protocol_bridge.model_metadata import ask_metadata
from gateway.dataplane.protocol_bridge.reply_stream import ReplyStream
from gateway.dataplane.protocol_bridge.rest_to_grpc_reply import ConvertedReply
from gateway.observability.arms import Meter
from gateway.protocol.conversion.control import RpcError, rest_error, rpc_request
from gateway.protocol.conversion.generate import infer_request_of_generate
from gateway.protocol.conversion.infer import infer_request_of_rest
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_methods import RPCS
from gateway.protocol.operations import Operation
from gateway.wire.grpc import framed
from gateway.wire.http1.head import Field
from gateway.wire.http2.frames import ErrorCode
from gateway.wire.http2.hpack import literals
from gateway.wire.http2.stream import Stream

_log = logging.getLogger(__name__)

# What belongs to the body as REST has it.
_OF_REST = frozenset(
    {
        *(b"accept", b"accept-encoding", b"content-encoding", b"content-length", b"content-type", b"expect", b"host"),
        *(b"inference-header-content-length", b"te", b"x-request-id"),
    }
)
_GENERATES = (Operation.GENERATE, Operation.GENERATE_STREAM)


class ConvertedExchange:
    """Reads the body whole, and calls the lane's engine as a gRPC client of its own would be: with the tries, limits
    and counters of any other call."""

    __slots__ = (
        "_call",
        "_client",
        "_lane",
        "_pieces",
        "_plan",
        "_reply",
        "_request",
        "_request_id",
        "_session",
        "_started_at",
        "_stream",
        "_task",
        "is_tls",
        "passing",
        "peer",
        "plane",
    )

    def __init__(self, client: Client, request: Request, lane: Lane, session: str | None) -> None:
        self._client = client
        self._request = request = request.timed()
        self._plan = request.plan
        self._lane = lane
        self._session = session
        self._request_id = request.id or client.plane.new_request_id()
        self._pieces: list[bytes] = []
        self._started_at = monotonic()
        self._reply = ConvertedReply(client, self._plan, lane, self._request_id)
        if request.timing is not None:
            self._reply.timing_fields = self._timing_fields
        self._stream = ReplyStream(self._reply)
        self._stream.is_paused = client.is_paused
        self._call: CallHandler | None = None
        self._task: asyncio.Task[None] | None = None
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
        return f"<ConvertedExchange {self._plan!r} by {self._reply.rpc or 'gRPC'}>"

    @property
    def begun(self) -> bool:
        return self._reply.begun

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
        self._reply.is_over = True
        if self._task is not None:
            self._task.cancel()
        if self._call is not None:
            self._call.stream_reset(self._stream, ErrorCode.CANCEL, reason)
        else:
            self._count(reason, status)

    def client_paused(self) -> None:
        self._stream.is_paused = True

    def client_resumed(self) -> None:
        self._stream.is_paused = False
        if self._call is not None:
            self._call.drained(self._stream)

    def sweep(self, now: float) -> None:
        if self._call is not None:
            self._call.sweep(now)

    def progress(self) -> Progress:
        called = self._call.progress() if self._call is not None else None
        if called is not None:
            return replace(called, protocol=self._plan.facts.protocol, model=self._plan.facts.model)
        stage = Stage.ASKING if self._task is not None else Stage.READING
        return of_request(self._request, stage, self._started_at, id=self._request_id, lane=self._lane)

    # Asking

    def _ask(self, body: bytes) -> None:
        plan, reply = self._plan, self._reply
        call = plan.call
        if call.operation in _GENERATES:
            self._task = asyncio.get_running_loop().create_task(self._generate(body))
            return
        if call.operation is Operation.INFER:
            reply.rpc = "ModelInfer"
            head_bytes = told_json_bytes(self._request.json_length, len(body))
            message, reply.wanted = infer_request_of_rest(body, head_bytes, call.model or "", call.version or "")
        else:
            method = "GET" if plan.without_body else plan.head.method
            reply.rpc, message = rpc_request(method, plan.head.target.decode("latin-1"), body)
        head = self._call_head()
        decided = (head.plan.way(self._lane), self._session)
        self._call = UnaryCall(self, self._stream, head, decided)
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
            self._count("", rest_error(error.code, error.message).status)
            self._reply.tell_refusal(error.code, error.message)
            return
        except GatewayError as error:
            self._task = None
            self._refuse(error)
            return
        except Exception:
            self._task = None
            _log.exception("cannot convert %s", self._plan)
            self._refuse(
                GatewayError(ErrorKind.INTERNAL, "the gateway failed to convert the request; its log says why")
            )
            return
        self._task = None
        self._reply.rpc = "ModelStreamInfer"
        if streams:
            self._client.write_at_once()
        head = self._call_head()
        decided = (head.plan.way(self._lane), self._session)
        self._call = StreamCall(self, self._stream, head, decided, (model.encode(), version.encode()))
        self._call.data_received(self._stream, framed(message), True)

    def _call_head(self) -> CallHead:
        plan, rpc = self._plan, self._reply.rpc
        if plan.note is None:
            plan.note = {}
        call_plan = plan.note.get(rpc)
        if call_plan is None:
            call_plan = plan.note[rpc] = CallPlan(self._fields(), plan.snapshot, self.plane.settings)
            call_plan.told = plan.facts
            call_plan.asked = (plan.head.method, plan.head.target.decode("latin-1"))
        volatile = [field for field in self._request.volatile if field[0] not in _OF_REST]
        return CallHead(call_plan, [*volatile, (b"x-request-id", self._request_id)])

    def _fields(self) -> list[Field]:
        head = self._plan.head
        fields = [
            (b":method", b"POST"),
            (b":path", RPCS[self._reply.rpc].path.encode("ascii")),
            (b":authority", head.value(b"host") or b""),
            (b"content-type", b"application/grpc"),
        ]
        return fields + [(name, value.strip()) for name, value in head.fields if name not in _OF_REST]

    def _timing_fields(self) -> list[Field]:
        timing, call = self._request.timing, self._call
        assert timing is not None
        if not isinstance(call, Tries):  # messages of a stream are timed by nobody
            return [timing.field(0.0, self._started_at, monotonic(), "")]
        url = call.endpoint.url if call.endpoint is not None and self._lane.reply_fields else ""
        return [timing.field(*call.times, monotonic(), url)]

    def call_ended(self, stream: Stream) -> None:
        """It was told by the status."""

    # Where nobody was called

    def _refuse(self, error: GatewayError) -> None:
        if not self._reply.is_over:
            self._count(error.kind.value, error.status.http)
            self._reply.refuse(error, {})

    def _count(self, reason: str, status: int) -> None:
        """Count and log; `reason` is empty where the engine has refused, `status` is 0 where none is told."""
        series = self._lane.series(None)
        seconds = monotonic() - self._started_at
        if reason:
            series.count_error(reason)
        if status:
            series.count_failure(status, seconds)
        meter = self._lane.meter
        if meter is not None and self._plan.is_inference:
            self._measure(meter, reason, status, seconds)
        head, target = self._plan.head, self._lane.target
        known = known_of(self._request)
        self.plane.log(self.peer, head, status, reason, seconds, self._request_id, target, known=known)

    def _measure(self, meter: Meter, reason: str, status: int, seconds: float) -> None:
        """Tell an experiment: whoever left said nothing of its arm, and nor did who asked for what there is not."""
        if not reason:
            meter.answered(self._request_id, status, 0, seconds)
        elif status >= 500:
            meter.failed(self._request_id, ErrorKind(reason), True, 0)
        else:
            meter.kept_out(reason)

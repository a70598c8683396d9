"""A REST request for an engine with gRPC alone: converted to a call, and the reply converted back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic

from gateway.dataplane.context.active_requests import Progress, Stage, progress_of
from gateway.dataplane.context.call_head import CallHead, CallPlan
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client, Handler
from gateway.dataplane.context.local_handler import log_request
from gateway.dataplane.context.request_body import declared_json_bytes, document
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.grpc.in_process_stream import InProcessStream
from gateway.dataplane.grpc.interfaces import OpenCall
from gateway.dataplane.grpc.message_body import CompleteMessage
from gateway.dataplane.grpc.stream_call import StreamCall
from gateway.dataplane.grpc.unary_relay import UnaryRelay
from gateway.dataplane.grpc.upstream_stream import UpstreamStream
from gateway.dataplane.protocol_bridge.rest_to_grpc_reply import RestToGrpcReply
from gateway.dataplane.translation.model_description import query_metadata
from gateway.observability.arms import Meter
from gateway.protocol.conversion.control import rpc_request
from gateway.protocol.conversion.control_errors import RpcError, rest_error
from gateway.protocol.conversion.generate import infer_request_of_generate
from gateway.protocol.conversion.infer import infer_request_of_rest
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_methods import RPCS
from gateway.protocol.infer_message_head import read_names
from gateway.protocol.operations import Operation
from gateway.protocol.sequence import AnySession
from gateway.upstream.endpoint_client import OF_REST
from gateway.wire.grpc import framed
from gateway.wire.http1.head import Field
from gateway.wire.http2.frames import ErrorCode
from gateway.wire.http2.hpack import literals
from gateway.wire.http2.stream import Stream

_log = logging.getLogger(__name__)

_OF_REST = OF_REST | {b"x-request-id"}
_GENERATES = (Operation.GENERATE, Operation.GENERATE_STREAM)


class RestToGrpcHandler(Handler):
    """Reads the body whole, and calls the target's engine with the attempts, limits and counters of any call. It is the
    client of that call."""

    certificate = None  # whose caller is known already

    __slots__ = (
        "_call",
        "_client",
        "_pieces",
        "_plan",
        "_relay",
        "_reply",
        "_request",
        "_request_id",
        "_route_target",
        "_session",
        "_started_at",
        "_stream",
        "_task",
        "forwarded",
        "is_tls",
        "passing",
        "peer",
        "plane",
    )

    def __init__(self, client: Client, request: Request, route_target: RouteTarget, session: AnySession | None) -> None:
        self._client = client
        self._request = request = request.timed()
        self._plan = request.plan
        self._route_target = route_target
        self._session = session
        self._request_id = request.id or client.plane.new_request_id()
        self._pieces: list[bytes] = []
        self._started_at = monotonic()
        self._reply = RestToGrpcReply(client, self._plan, route_target, self._request_id)
        if request.timing is not None:
            self._reply.timing_fields = self._timing_fields
        self._stream = InProcessStream(self._reply)
        self._stream.is_paused = client.is_paused
        self._stream.note = client.trace
        self._call: OpenCall | None = None
        self._relay: UnaryRelay | None = None  # the same, where it is unary
        self._task: asyncio.Task[None] | None = None
        # See `CallClient`
        self.plane: DataPlane = client.plane
        self.peer = client.peer
        self.is_tls = client.is_tls
        forwarded = [(b"x-forwarded-for", client.peer.encode("ascii", "replace"))]
        if not self._plan.keeps_forwarded_proto:
            forwarded.append((b"x-forwarded-proto", b"https" if self.is_tls else b"http"))
        self.forwarded: Sequence[Field] = forwarded
        self.passing = literals(forwarded)

    @property
    def begun(self) -> bool:
        return self._reply.begun

    @property
    def has_attempted(self) -> bool:
        return self._call is not None

    # Events of the client's connection

    def body_received(self, data: bytes, ended: bool) -> None:
        self._pieces.append(data)
        if not ended:
            self._client.hold_body()
            return
        try:
            body = document(self._request, b"".join(self._pieces), self.plane.settings.limits)
            self._pieces.clear()
            self._begin(body)
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
        progress = self._call.progress() if self._call is not None else None
        if progress is not None:
            return replace(progress, protocol=self._plan.facts.protocol, model=self._plan.facts.model)
        stage = Stage.REQUESTED if self._task is not None else Stage.READING
        return progress_of(self._request, stage, self._started_at, id=self._request_id, route_target=self._route_target)

    # The call

    def _begin(self, body: bytes) -> None:
        plan, reply = self._plan, self._reply
        call = plan.call
        if call.operation in _GENERATES:
            self._task = asyncio.get_running_loop().create_task(self._generate(body))
            return
        if call.operation is Operation.INFER:
            reply.rpc = "ModelInfer"
            head_bytes = declared_json_bytes(self._request.json_length, len(body))
            message, reply.wanted = infer_request_of_rest(body, head_bytes, call.model or "", call.version or "")
        else:
            method = "GET" if plan.without_body else plan.head.method
            reply.rpc, message = rpc_request(method, plan.head.target.decode("latin-1"), body)
        head = self._call_head()
        names = read_names(message, 0, len(message))
        target, whole = head.plan.target(self._route_target), CompleteMessage(framed(message), names)
        self._call = self._relay = relay = UnaryRelay(
            self, self._stream, head, whole, target, self._session, monotonic()
        )
        relay.attempts.timing = self._request.timing
        relay.attempts.start(monotonic())

    async def _generate(self, body: bytes) -> None:
        call = self._plan.call
        model, version = call.model or "", call.version or ""
        streams = call.operation is Operation.GENERATE_STREAM
        try:
            metadata = await query_metadata(self._route_target, model, version)
            message = infer_request_of_generate(body, metadata, model, version)
        except RpcError as error:
            self._count("", rest_error(error.code, error.message).status)
            self._reply.end_with_status(error.code, error.message, {})
            return
        except GatewayError as error:
            self._refuse(error)
            return
        except Exception:
            _log.exception("cannot convert %s", self._plan)
            what = "the gateway failed to convert the request; its log says why"
            self._refuse(GatewayError(ErrorKind.INTERNAL, what))
            return
        finally:
            self._task = None
        self._reply.rpc = "ModelStreamInfer"
        if streams:
            self._client.write_at_once()
        head = self._call_head()
        decided = ((model.encode(), version.encode()), head.plan.target(self._route_target), self._session)
        self._call = stream_call = StreamCall(self, self._stream, head, UpstreamStream, decided)
        stream_call.send_only(framed(message), read_names(message, 0, len(message)))

    def _call_head(self) -> CallHead:
        plan, rpc = self._plan, self._reply.rpc
        call_plan = plan.calls.get(rpc)
        if not isinstance(call_plan, CallPlan):
            call_plan = CallPlan(self._fields(), plan.snapshot, self.plane.settings, plan.principal)
            plan.calls[rpc] = call_plan
            call_plan.rest_facts = plan.facts
            call_plan.request_line = plan.request_line
        fields = [field for field in self._request.fields if field[0] not in _OF_REST]
        return CallHead(call_plan, [*fields, (b"x-request-id", self._request_id)])

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
        if self._relay is not None:
            return self._relay.attempts.timing_fields(monotonic())
        timing = self._request.timing
        if timing is None:
            return []
        return [timing.field(0.0, self._started_at, monotonic(), "")]  # a stream's messages have no phases

    def call_failed(
        self,
        stream: Stream,
        error: GatewayError,
        request_id: bytes,
        route_target: RouteTarget | None,
        *,
        begun: bool,
        code: int | None,
    ) -> None:
        self._reply.fail(error)

    def call_ended(self, stream: Stream) -> None:
        """The status has ended the reply."""

    # Where there is no call

    def _refuse(self, error: GatewayError) -> None:
        if not self._reply.is_over:
            self._count(error.kind.value, error.status.http)
            self._reply.refuse(self._route_target.nameless(error), {})

    def _count(self, reason: str, status: int) -> None:
        """Count and log; `reason` is empty where the engine has refused, `status` is 0 where the client is gone."""
        series = self._route_target.series(None)
        seconds = monotonic() - self._started_at
        if reason:
            series.count_error(reason)
        if status:
            series.count_failure(status, seconds)
        meter = self._route_target.meter
        if meter is not None and self._plan.is_inference:
            self._measure(meter, reason, status, seconds)
        log_request(
            self._client,
            self._request,
            status,
            reason,
            self._started_at,
            self._request_id,
            route_target=self._route_target,
        )

    def _measure(self, meter: Meter, reason: str, status: int, seconds: float) -> None:
        """Report to an experiment: a client that is gone, and a bad request, say nothing of the arm."""
        if not reason:
            meter.answered(self._plan.rater + self._request_id, status, 0, seconds)
        elif status >= 500:
            meter.failed(self._plan.rater + self._request_id, ErrorKind(reason), True, 0)
        else:
            meter.kept_out(reason)

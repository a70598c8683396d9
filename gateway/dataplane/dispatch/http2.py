"""The HTTP/2 and gRPC front: which handler answers a request on a stream.

request                     target, by the rules                    handler
--------------------------  --------------------------------------  -----------------------------------------
not gRPC                                                            RestOverHttp2, with the handlers of REST
gRPC, of a token not seen before                                    UnverifiedCall, then as below
gRPC, refused by its head                                           RefusedCall
unknown method                                                      RefusedCall
grpc.health, reflection                                             HealthCall, ReflectionCall
about the fleet                                                     GrpcToRestCall, with FleetOperation
about a model, unary        (UnaryCall reads what the rules need)
                            engine with gRPC                        UnaryRelay, with fallbacks FallbackRelay
                            REST alone, conversation, hooks         GrpcToRestCall, with the handlers of REST
ModelStreamInfer            (StreamCall decides for each message)
                            engine with gRPC                        UpstreamStream
                            REST alone, conversation, replay,       RestBackendStream, with the handlers of REST
                            hooks
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from time import monotonic, time

from gateway.auth.identity import EXPIRED, UnverifiedError
from gateway.dataplane.attempts.fallback_counts import count_fallback, count_passed_over
from gateway.dataplane.attempts.hedged_attempts import HedgedAttempts
from gateway.dataplane.attempts.upstream_attempts import UpstreamAttempts
from gateway.dataplane.context.authenticated_call_reader import AuthenticatedCallHead
from gateway.dataplane.context.call_head import CallHead, CallReader
from gateway.dataplane.context.call_target import CallTarget
from gateway.dataplane.context.fallbacks import takes_requests
from gateway.dataplane.context.interfaces import Serve
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.dispatch.rest import handler_for, serve_message, serve_mirrored
from gateway.dataplane.dispatch.verification import UnverifiedCall
from gateway.dataplane.grpc.fallback_relay import FallbackRelay, may_go_elsewhere
from gateway.dataplane.grpc.interfaces import BackendStream, CallClient, CallHandler
from gateway.dataplane.grpc.local_call import SERVICE_CALLS, RefusedCall
from gateway.dataplane.grpc.message_body import MessageBody
from gateway.dataplane.grpc.region_renamer import RegionUnaryCall
from gateway.dataplane.grpc.stream_call import StreamCall
from gateway.dataplane.grpc.unary_call import UnaryCall
from gateway.dataplane.grpc.unary_relay import UnaryRelay
from gateway.dataplane.grpc.upstream_stream import UpstreamStream
from gateway.dataplane.protocol_bridge.grpc_to_rest import GrpcToRestCall
from gateway.dataplane.protocol_bridge.rest_backend_stream import RestBackendStream
from gateway.dataplane.protocol_bridge.rest_over_http2 import RestOverHttp2
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.fallback_reasons import DOWN
from gateway.protocol.operations import Operation
from gateway.protocol.sequence import AnySession, Sequence
from gateway.protocol.trace_context import TRACEPARENT
from gateway.wire.http2.fields import GRPC, Block
from gateway.wire.http2.stream import Stream

# Makes the handler of a gRPC call.
MakeCall = Callable[[CallClient, Stream, CallHead], CallHandler]


@dataclass(slots=True)
class CachedCall:
    """What a header block comes to by one snapshot of the rules; `head` is None where it is not gRPC."""

    reader: CallReader
    head: CallHead | None
    make: MakeCall

    @property
    def is_lasting(self) -> bool:
        """Whether the same block comes to the same later: a token that is refused now may be valid then."""
        head = self.head
        return not isinstance(head, AuthenticatedCallHead) or head.error is None or head.expires_at == inf


def handler_of_stream(client: CallClient, stream: Stream, block: Block) -> CallHandler:
    """The handler of one request. What a block comes to is stored with it, as peers send the same block again."""
    read = client.plane.read_call
    base = block.base or block
    cached = base.note
    if not isinstance(cached, CachedCall) or cached.reader is not read:
        cached = _classified(read, base, client)
        if cached.is_lasting:
            base.note = cached
    head = cached.head
    if base is not block and head is not None:
        head = read.again(head, block)
        if head is None or head.error is not None:  # its own fields change what it is
            cached = _classified(read, block, client)
            head = cached.head
    spans = client.plane.spans
    if spans is not None:
        stream.note = spans.begin(block.value(TRACEPARENT) if head is None else head.value(TRACEPARENT))
    if head is None:
        return RestOverHttp2(client, stream, block, handler_for)
    return cached.make(client, stream, head)


def _classified(read: CallReader, block: Block, client: CallClient) -> CachedCall:
    if not (block.value(b"content-type") or b"").startswith(GRPC):
        return CachedCall(read, None, _unary)
    head = read(block, client)
    return CachedCall(read, head, _maker_of(head, block))


def _maker_of(head: CallHead, block: Block) -> MakeCall:
    make = _maker_of_known(head)
    if isinstance(head.error, UnverifiedError):
        return partial(UnverifiedCall, error=head.error, block=block, handler_of=handler_of_stream)
    if isinstance(head, AuthenticatedCallHead) and head.expires_at < inf:
        return partial(_until, head.expires_at, make)
    return make


def _until(expires_at: float, make: MakeCall, client: CallClient, stream: Stream, head: CallHead) -> CallHandler:
    """The handler of a call whose caller was known when its fields came first: a connection sends them again and
    again."""
    if time() < expires_at:
        return make(client, stream, head)
    return RefusedCall(client, stream, head, EXPIRED)


def _maker_of_known(head: CallHead) -> MakeCall:
    rpc = head.plan.rpc
    if head.error is not None:
        return partial(RefusedCall, error=head.error)
    if rpc is not None:
        if rpc.is_relayed and head.plan.may_name_region:
            return _unary_with_regions
        return _unary if rpc.is_relayed else _stream if rpc.is_stream else GrpcToRestCall
    unknown = GatewayError(ErrorKind.UNSUPPORTED, f"unknown method {head.plan.path.decode('latin-1')}")
    return SERVICE_CALLS.get(head.plan.path) or partial(RefusedCall, error=unknown)


# Unary calls about a model


def _relay_or_convert(call: UnaryCall, message: MessageBody, target: CallTarget, session: AnySession | None) -> None:
    route_target = target.route_target
    if route_target.engine.speaks_grpc and not (session and _is_conversation(call.head, target)):
        if route_target.is_plain:
            relay = UnaryRelay(call.client, call.stream, call.head, message, target, session, call.started_at)
        elif route_target.hooks is not None:
            convert(call.client, call.stream, call.head, message, target, session, serve_mirrored)
            return
        elif _passes_over(call, message, route_target, session):
            return
        else:
            relay = _relay_of(call, message, target, session)
        call.stream.receiver = relay
        relay.attempts.start(call.started_at if message.is_complete else monotonic())
    else:
        convert(call.client, call.stream, call.head, message, target, session, serve_mirrored)


def _relay_of(call: UnaryCall, message: MessageBody, target: CallTarget, session: AnySession | None) -> UnaryRelay:
    """The relay of a call whose target has fallbacks, a shadow or hedging; a sequence stays where it is."""
    route_target, rpc = target.route_target, call.head.plan.rpc
    is_hedged = rpc is not None and rpc.operation is Operation.INFER and route_target.engine.hedging is not None
    attempts_type: type[UpstreamAttempts[Stream]] = HedgedAttempts if is_hedged else UpstreamAttempts
    if route_target.fallbacks is None or isinstance(session, Sequence):
        relay = UnaryRelay(
            call.client, call.stream, call.head, message, target, session, call.started_at, attempts_type
        )
    else:
        relay = FallbackRelay(call, message, target, session, _relay_or_convert, attempts_type)
    if route_target.shadow is not None:
        relay.mirror()
    return relay


def _passes_over(call: UnaryCall, message: MessageBody, left: RouteTarget, session: AnySession | None) -> bool:
    """Whether the call goes to a fallback at once, since no endpoint of the engine takes requests."""
    now, head, rpc = monotonic(), call.head, call.head.plan.rpc
    if left.fallbacks is None or isinstance(session, Sequence) or takes_requests(left.engine, now):
        return False
    target = left.fallbacks.find(DOWN, now, was_admitted=left.was_admitted) if may_go_elsewhere(message) else None
    if target is None or not takes_requests(target.engine, now):
        return False
    is_inference = rpc is not None and rpc.operation is Operation.INFER
    rated_id = head.plan.rater + (head.id or b"")
    count_passed_over(call.client.plane, left, rated_id, message.size, is_inference=is_inference)
    count_fallback(call.client.plane.metrics, left, target, rated_id, 0, is_inference=is_inference)
    _relay_or_convert(call, message, head.plan.target(target), session)
    return True


def _is_conversation(head: CallHead, target: CallTarget) -> bool:
    """Whether the gateway may have to add earlier turns, which it does in JSON."""
    rpc = head.plan.rpc
    return target.route_target.spec.history is not None and rpc is not None and rpc.operation is Operation.INFER


def convert(
    client: CallClient,
    stream: Stream,
    head: CallHead,
    message: MessageBody,
    target: CallTarget,
    session: AnySession | None,
    serve: Serve,
) -> None:
    """Go on with a call as a REST request."""
    stream.receiver = call = GrpcToRestCall(client, stream, head, (target.route_target, session), serve)
    call.data_received(stream, message.take(None, keeps=False), message.is_complete)


def _unary(client: CallClient, stream: Stream, head: CallHead) -> CallHandler:
    return UnaryCall(client, stream, head, _relay_or_convert)


_unary_with_regions: MakeCall = partial(RegionUnaryCall, take_over=_relay_or_convert)


# Streams


def _stream(client: CallClient, stream: Stream, head: CallHead) -> CallHandler:
    return StreamCall(client, stream, head, partial(_open_backend, client, head))


def _open_backend(
    client: CallClient, head: CallHead, call: StreamCall, target: CallTarget, session: AnySession | None
) -> BackendStream:
    route_target = target.route_target
    if route_target.shadow is not None:
        call.plane.tap.drop(route_target.spec.route, "stream")  # it has no single answer to compare
    spec, has_hooks = route_target.spec, route_target.hooks is not None
    if route_target.engine.speaks_grpc and spec.history is None and route_target.replay is None and not has_hooks:
        return UpstreamStream(call, target, session)
    return RestBackendStream(call, target, session, client, head, serve_message)

"""Who answers what comes over HTTP/2: an engine, the fleet as a whole, the gateway itself, or nobody."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gateway.dataplane.context.call_head import CallHead, CallReader
from gateway.dataplane.dispatch.serving import serve_by, serve_mirrored
from gateway.dataplane.grpc.client import CallClient, CallHandler
from gateway.dataplane.grpc.local_call import RefusedCall
from gateway.dataplane.grpc.services import SERVICE_CALLS
from gateway.dataplane.grpc.stream_call import StreamCall
from gateway.dataplane.grpc.unary_call import UnaryCall
from gateway.dataplane.protocol_bridge.grpc_to_rest import GrpcToRestCall
from gateway.dataplane.protocol_bridge.rest_over_http2 import RestStream
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.wire.http2.fields import Block
from gateway.wire.http2.stream import Stream

_GRPC = b"application/grpc"

# Who answers, and what of the block it is given.
Answer = tuple[Callable[[CallClient, Stream, Any], CallHandler], Any]


def _relayed(client: CallClient, stream: Stream, head: CallHead) -> UnaryCall:
    return UnaryCall(client, stream, head, None, serve_mirrored)


def _streamed(client: CallClient, stream: Stream, head: CallHead) -> StreamCall:
    return StreamCall(client, stream, head, serve=serve_by)


def answer(client: CallClient, stream: Stream, block: Block) -> CallHandler:
    """The one who answers. A block that comes again is answered by the same, as long as the rules stay."""
    read = client.plane.read_call
    known = block.base or block
    note = known.note
    if note is None or note[0] is not read:
        note = known.note = (read, *_answer_for(read, known))
    _, maker, what = note
    if known is not block:
        head = read.again(what, block) if isinstance(what, CallHead) else None
        if head is not None and head.error is None:
            what = head
        else:
            maker, what = _answer_for(read, block)
    call: CallHandler = maker(client, stream, what)
    return call


def _answer_for(read: CallReader, block: Block) -> Answer:
    """What is not gRPC is REST."""
    if not (block.value(b"content-type") or b"").startswith(_GRPC):
        return RestStream, block
    head = read(block)
    if head.error is not None:
        return partial(RefusedCall, error=head.error), head
    rpc = head.plan.rpc
    if rpc is None:
        service = SERVICE_CALLS.get(head.plan.path)
        if service is not None:
            return service, head
        what = f"unknown method {head.plan.path.decode('latin-1')}"
        return partial(RefusedCall, error=GatewayError(ErrorKind.UNSUPPORTED, what)), head
    if rpc.is_relayed:
        return _relayed, head
    return (_streamed if rpc.is_stream else GrpcToRestCall), head

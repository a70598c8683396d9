"""Who answers what comes over HTTP/2: an engine, the fleet as a whole, the gateway itself, or nobody."""

from __future__ import annotations

from gateway.dataplane.bridging.converted_call import ConvertedCall
from gateway.dataplane.bridging.rest_stream import RestStream
from gateway.dataplane.grpc.call import RelayedCall
from gateway.dataplane.grpc.client import Call, CallClient
from gateway.dataplane.grpc.own_call import RefusedCall
from gateway.dataplane.grpc.services import SERVICE_CALLS
from gateway.dataplane.grpc.streams import StreamCall
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.wire.http2.fields import Block
from gateway.wire.http2.stream import Stream

_GRPC = b"application/grpc"


def answer(client: CallClient, stream: Stream, block: Block) -> Call:
    """The one who answers: what is not gRPC is REST."""
    if not (block.value(b"content-type") or b"").startswith(_GRPC):
        return RestStream(client, stream, block)
    head = client.plane.read_call(block)
    if head.error is not None:
        return RefusedCall(client, stream, head, head.error)
    rpc = head.plan.rpc
    if rpc is None:
        service = SERVICE_CALLS.get(head.plan.path)
        if service is not None:
            return service(client, stream, head)
        what = f"unknown method {head.plan.path.decode('latin-1')}"
        return RefusedCall(client, stream, head, GatewayError(ErrorKind.UNSUPPORTED, what))
    if rpc.is_relayed:
        return RelayedCall(client, stream, head)
    return StreamCall(client, stream, head) if rpc.is_stream else ConvertedCall(client, stream, head)

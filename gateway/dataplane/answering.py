"""Who answers what comes over HTTP/2: an engine, the fleet as a whole, the gateway itself, or nobody."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gateway.dataplane.bridging.converted_call import ConvertedCall
from gateway.dataplane.bridging.rest_stream import RestStream
from gateway.dataplane.grpc.call import RelayedCall
from gateway.dataplane.grpc.client import Call, CallClient
from gateway.dataplane.grpc.own_call import RefusedCall
from gateway.dataplane.grpc.plan import CallHead, CallReader
from gateway.dataplane.grpc.services import SERVICE_CALLS
from gateway.dataplane.grpc.streams import StreamCall
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.wire.http2.fields import Block
from gateway.wire.http2.stream import Stream

_GRPC = b"application/grpc"

Answer = Callable[[CallClient, Stream], Call]


def answer(client: CallClient, stream: Stream, block: Block) -> Call:
    """The one who answers. A block that comes again is answered by the same, as long as the rules stay."""
    read = client.plane.read_call
    note = block.note
    if note is None or note[0] is not read:
        note = block.note = (read, _answer_for(read, block))
    call: Call = note[1](client, stream)
    return call


def _answer_for(read: CallReader, block: Block) -> Answer:
    """What is not gRPC is REST."""
    if not (block.value(b"content-type") or b"").startswith(_GRPC):
        return lambda client, stream: RestStream(client, stream, block)
    head = read(block)
    if head.error is not None:
        return partial(_refused, head, head.error)
    rpc = head.plan.rpc
    if rpc is None:
        service = SERVICE_CALLS.get(head.plan.path)
        if service is not None:
            return lambda client, stream: service(client, stream, head)
        what = f"unknown method {head.plan.path.decode('latin-1')}"
        return partial(_refused, head, GatewayError(ErrorKind.UNSUPPORTED, what))
    if rpc.is_relayed:
        return lambda client, stream: RelayedCall(client, stream, head)
    if rpc.is_stream:
        return lambda client, stream: StreamCall(client, stream, head)
    return lambda client, stream: ConvertedCall(client, stream, head)


def _refused(head: CallHead, error: GatewayError, client: CallClient, stream: Stream) -> Call:
    return RefusedCall(client, stream, head, error)

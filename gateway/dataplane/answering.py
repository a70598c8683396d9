"""Who answers a call: an engine, the fleet as a whole, the gateway itself, or nobody."""

from __future__ import annotations

from gateway.dataplane.grpc.call import RelayedCall
from gateway.dataplane.grpc.client import Call
from gateway.dataplane.grpc.plan import CallHead
from gateway.dataplane.grpc.streams import StreamCall
from gateway.dataplane.http2 import Http2Client
from gateway.wire.http2.fields import Block
from gateway.wire.http2.stream import Stream


def answer_call(client: Http2Client, stream: Stream, head: CallHead, block: Block) -> Call:
    """The one who answers a call."""
    rpc = head.plan.rpc
    if rpc is not None and rpc.is_stream:
        return StreamCall(client, stream, head)
    return RelayedCall(client, stream, head)

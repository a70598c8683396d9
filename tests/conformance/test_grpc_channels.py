"""grpcio with common channel options gets the same answers from the gateway as from Triton."""

from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.demo.triton import TritonProcess
from tests.conformance.grpc_calls import message
from tests.support.servers import GatewayProcess

pytestmark = pytest.mark.triton

MEBIBYTE = 1024 * 1024
LARGE = np.arange(3 * MEBIBYTE // 4, dtype=np.float32).reshape(1, -1)

CHANNELS: dict[str, list[tuple[str, Any]]] = {
    "as they come": [],
    "frames as small as may be": [("grpc.http2.max_frame_size", 16_384)],
    "frames as large as may be": [("grpc.http2.max_frame_size", 16_777_215)],
    "a small window, and it stays": [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)],
    "a large window": [("grpc.http2.lookahead_bytes", 16 * MEBIBYTE)],
    "no dynamic table to write": [("grpc.http2.hpack_table_size.encoder", 0)],
    "no dynamic table to read": [("grpc.http2.hpack_table_size.decoder", 0)],
    "a small table to read": [("grpc.http2.hpack_table_size.decoder", 100)],
    "pings all the time": [
        ("grpc.keepalive_time_ms", 100),
        ("grpc.keepalive_timeout_ms", 2000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ],
    "compressed by gzip": [("grpc.default_compression_algorithm", 2)],
    "compressed by deflate": [("grpc.default_compression_algorithm", 1)],
    "another authority": [("grpc.default_authority", "models.example")],
    "a user agent of its own": [("grpc.primary_user_agent", "team/1.0 (ü)".encode("latin-1"))],
    "one write at a time": [("grpc.optimization_target", "latency"), ("grpc.http2.write_buffer_size", 1)],
    "without retries": [("grpc.enable_retries", 0)],
    "the smallest stack": [("grpc.minimal_stack", 1)],
    "binary metadata as it is": [("grpc.http2.true_binary", 1)],
}


@pytest.mark.parametrize("options", CHANNELS.values(), ids=CHANNELS)
def test_channel(options: list[tuple[str, Any]], triton: TritonProcess, gateway: GatewayProcess) -> None:
    """Small and large calls and a stream of several messages, interleaved on one connection, get the same answers."""
    assert conversation(gateway.grpc_url, options) == conversation(triton.grpc_url, options)


def conversation(address: str, options: list[tuple[str, Any]]) -> list[str]:
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options=[*unlimited, *options]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        metadata = (("x-trace", "1" * 300), ("x-data-bin", bytes(range(256))))
        reply = []
        for _ in range(3):
            reply.append(str(stub.ModelInfer(message("adder", id="small"), timeout=120, metadata=metadata)))
            answer = stub.ModelInfer(large(), timeout=120)
            assert answer.raw_output_contents[0] == LARGE.tobytes()
        stream = stub.ModelStreamInfer(
            iter([message("adder", id=str(number)) for number in range(20)]), timeout=120, metadata=metadata
        )
        return [*reply, *map(str, stream)]


def large() -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name="identity_fp32", raw_input_contents=[LARGE.tobytes()])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=LARGE.shape)
    return request

"""The services beside Triton's own, health and reflection, with their usual clients."""

from collections.abc import Callable, Iterator

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tritonclient.grpc import service_pb2

from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

RULES = """
version: 1
engines: {nobody: {endpoints: ["http://127.0.0.1:1"], health: {interval: 0}}}
routes: [{name: all, engine: nobody}]
"""
DOWN = RULES.replace("interval: 0", "interval: 100ms, unhealthy_after: 1")

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    server = GatewayProcess.start(RULES, tmp_path_factory.mktemp("gateway")).wait_ready()
    with grpc.insecure_channel(server.grpc_url) as made:
        yield made
    server.stop()


def check(channel: grpc.Channel, service: str = "") -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    return health_pb2_grpc.HealthStub(channel).Check(request, timeout=120).status


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService", "grpc.health.v1.Health"])
def test_a_fleet_that_serves(channel: grpc.Channel, service: str) -> None:
    """Without probes the fleet is healthy until requests fail."""
    assert check(channel, service) == SERVING


def test_a_service_that_nobody_knows(channel: grpc.Channel) -> None:
    """`Check` fails with NOT_FOUND; `Watch` reports SERVICE_UNKNOWN and stays open."""
    with pytest.raises(grpc.RpcError) as refused:
        check(channel, "no.such.Service")
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="no.such.Service"))
    assert next(watch).status == SERVICE_UNKNOWN
    watch.cancel()


def test_a_fleet_that_is_down(start_gateway: Callable[..., GatewayProcess]) -> None:
    """`Check` and `Watch` report the probes' result; a gateway that stops reports NOT_SERVING before it ends the
    stream."""
    server = start_gateway(DOWN)
    with grpc.insecure_channel(server.grpc_url) as channel:
        assert check(channel) == NOT_SERVING
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == NOT_SERVING
        server.rules_path.write_text(RULES)
        server.process.send_signal(1)
        assert next(watch).status == SERVING
        server.process.terminate()
        assert next(watch).status == NOT_SERVING
        with pytest.raises(grpc.RpcError) as ended:
            next(watch)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        eventually(lambda: server.process.poll() is not None)


def test_reflection(channel: grpc.Channel) -> None:
    """A client gets the services and all their messages by reflection."""
    database = ProtoReflectionDescriptorDatabase(channel)
    assert set(database.get_services()) >= {"inference.GRPCInferenceService", "grpc.health.v1.Health"}
    pool = DescriptorPool(database)
    service = pool.FindServiceByName("inference.GRPCInferenceService")
    assert len(service.methods) == 20
    request = pool.FindMessageTypeByName("inference.ModelInferRequest")
    reply, theirs = (
        {field.name: field.number for field in descriptor.fields}
        for descriptor in (request, service_pb2.ModelInferRequest.DESCRIPTOR)
    )
    assert reply == theirs


@pytest.mark.parametrize("path", ["/inference.GRPCInferenceService/NoSuchCall", "/no.such.Service/Call", "/nothing"])
def test_unknown_methods(channel: grpc.Channel, path: str) -> None:
    """Unknown methods get UNIMPLEMENTED, as from every gRPC server."""
    with pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(path)(b"", timeout=120)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED

"""The gateway's protobuf-free implementation of gRPC's health protocol."""

import subprocess
import sys
from concurrent import futures

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.protocol import grpc_services
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_methods import SERVICE


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (grpc_services.SERVING, "SERVING"),
        (grpc_services.NOT_SERVING, "NOT_SERVING"),
        (grpc_services.SERVICE_UNKNOWN, "SERVICE_UNKNOWN"),
        (grpc_services.write_status(True), "SERVING"),
        (grpc_services.write_status(False), "NOT_SERVING"),
    ],
)
def test_answers(data: bytes, status: str) -> None:
    """The bytes equal those that gRPC's own library reads and writes."""
    response = health_pb2.HealthCheckResponse.FromString(data)
    assert health_pb2.HealthCheckResponse.ServingStatus.Name(response.status) == status
    assert response.SerializeToString() == data


@pytest.mark.parametrize("service", ["", SERVICE, "grpc.health.v1.Health", "models.ü", "x" * 300])
def test_services_are_read(service: str) -> None:
    """A request names a service; an empty name means the whole server."""
    assert grpc_services.read_service(health_pb2.HealthCheckRequest(service=service).SerializeToString()) == service


@pytest.mark.parametrize(
    ("data", "service"),
    [
        (b"\x0a\x01a\x0a\x01b", "b"),  # the last one of repeated fields counts
        (b"\x10\x07\x1d\x01\x02\x03\x04\x0a\x01a\x21\x01\x02\x03\x04\x05\x06\x07\x08", "a"),  # unknown fields
        (b"\x08\x01", ""),  # a number instead of the name
    ],
)
def test_unusual_requests(data: bytes, service: str) -> None:
    """Unusual but valid messages are read as protobuf reads them."""
    assert grpc_services.read_service(data) == service
    assert health_pb2.HealthCheckRequest.FromString(data).service == service


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05a", b"\x0a\x02\xff\xfe", b"\x0b", b"\xff" * 11])
def test_malformed_requests(data: bytes) -> None:
    """A malformed message is a bad request."""
    with pytest.raises(GatewayError) as refused:
        grpc_services.read_service(data)
    assert refused.value.kind is ErrorKind.BAD_REQUEST


@pytest.mark.parametrize(
    ("service", "is_known"),
    [("", True), (SERVICE, True), ("grpc.health.v1.Health", True), ("inference", False), ("my.Service", False)],
)
def test_known_services(service: str, is_known: bool) -> None:
    """The gateway knows the health of the whole server, of Triton's service and of the health service, and of no
    other."""
    assert grpc_services.is_known(service) is is_known


def test_a_client_checks_health() -> None:
    """gRPC's own client reads the replies."""

    def check(request: bytes, context: grpc.ServicerContext) -> bytes:
        service = grpc_services.read_service(request)
        if not grpc_services.is_known(service):
            error = grpc_services.unknown_service(service)
            assert error.status.grpc == grpc.StatusCode.NOT_FOUND.value[0]
            context.abort(grpc.StatusCode.NOT_FOUND, error.message)
        return grpc_services.write_status(service == "")

    _, service, method = grpc_services.CHECK_PATH.decode().split("/")
    server = grpc.server(futures.ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(check)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            assert stub.Check(health_pb2.HealthCheckRequest(), timeout=120).status == 1
            assert stub.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=120).status == 2
            with pytest.raises(grpc.RpcError) as refused:
                stub.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=120)
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            assert "'nobody'" in refused.value.details()
    finally:
        server.stop(None).wait()


def test_checks_need_no_schemas() -> None:
    """A health check does not import protobuf."""
    script = (
        "import sys\nfrom gateway.protocol import grpc_services\n"
        "assert grpc_services.is_known(grpc_services.read_service(b'')) and grpc_services.write_status(True)\n"
        "print([name for name in sys.modules if name.startswith('google')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

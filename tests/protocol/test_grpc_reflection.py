"""Server reflection: gRPC's own client library discovers the services and messages."""

from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_reflection.v1alpha.reflection import ReflectionServicer

from gateway.protocol import protobuf
from gateway.protocol.grpc_services import PACKAGES, PATHS, answer

ALPHA = "grpc.reflection.v1alpha"
OK, INVALID_ARGUMENT, NOT_FOUND = 0, 3, 5

INFERENCE_FILES = ["grpc_service.proto", "model_config.proto"]


def ask(package: str = ALPHA, **fields: Any) -> Any:
    """The response to a request with these fields, parsed with v1alpha's schema, which equals v1's."""
    request = reflection_pb2.ServerReflectionRequest(**fields)
    return reflection_pb2.ServerReflectionResponse.FromString(answer(package, request.SerializeToString()))


def files(response: Any) -> list[str]:
    data = response.file_descriptor_response.file_descriptor_proto
    return [descriptor_pb2.FileDescriptorProto.FromString(each).name for each in data]


@pytest.fixture(scope="module")
def learned() -> Iterator[ProtoReflectionDescriptorDatabase]:
    """gRPC's reflection client, connected to a server that uses these functions."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    for path, package in PATHS.items():
        _, service, method = path.decode().split("/")
        handler = grpc.stream_stream_rpc_method_handler(answer_each(package))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield ProtoReflectionDescriptorDatabase(channel)
    server.stop(None).wait()


def answer_each(package: str) -> Callable[[Iterator[bytes], Any], Iterator[bytes]]:
    return lambda requests, _: (answer(package, request) for request in requests)


def test_a_client_learns_the_services(learned: ProtoReflectionDescriptorDatabase) -> None:
    """The client lists the services, finds their methods, and builds messages from the replies alone."""
    assert sorted(learned.get_services()) == sorted(protobuf.SERVICES)
    pool = DescriptorPool(learned)
    service = pool.FindServiceByName("inference.GRPCInferenceService")
    assert [method.name for method in service.methods] == [
        method.name for method in protobuf.pool().FindServiceByName("inference.GRPCInferenceService").methods
    ]
    request = service.methods_by_name["ModelInfer"].input_type
    assert request.fields_by_name["raw_input_contents"].number == 7
    assert pool.FindMessageTypeByName("inference.ModelConfig").file.name == "model_config.proto"


def test_a_client_learns_that_there_are_no_extensions(learned: ProtoReflectionDescriptorDatabase) -> None:
    """No message has extensions, and an unknown symbol is reported as not found."""
    assert list(learned.FindAllExtensionNumbers("inference.ModelConfig")) == []
    with pytest.raises(KeyError):
        learned.FindFileContainingSymbol("inference.Nothing")


# Requests that gRPC's own server also answers.
REQUESTS: list[dict[str, Any]] = [
    {"list_services": ""},
    {"list_services": "*"},
    {"host": "gateway.local", "list_services": ""},
    {"file_by_filename": "grpc_service.proto"},
    {"file_by_filename": "model_config.proto"},
    {"file_containing_symbol": "inference.GRPCInferenceService"},
    {"file_containing_symbol": "inference.ModelInferRequest"},
    {"file_containing_symbol": "inference.ModelInferRequest.InferInputTensor"},
    {"file_containing_symbol": "inference.ModelInferRequest.model_name"},
    {"file_containing_symbol": "inference.InferParameter.parameter_choice"},
    {"file_containing_symbol": "inference.DataType"},
    {"file_containing_symbol": "inference.TYPE_INT32"},
    {"file_containing_symbol": "grpc.health.v1.HealthCheckResponse.ServingStatus"},
    {"file_containing_symbol": "grpc.reflection.v1.ServerReflection"},
    {"all_extension_numbers_of_type": "inference.ModelConfig"},
]
REFUSED: list[tuple[dict[str, Any], int]] = [
    ({}, INVALID_ARGUMENT),
    ({"host": "x"}, INVALID_ARGUMENT),
    ({"file_by_filename": ""}, NOT_FOUND),
    ({"file_by_filename": "nothing.proto"}, NOT_FOUND),
    ({"file_containing_symbol": ""}, NOT_FOUND),
    ({"file_containing_symbol": "inference"}, NOT_FOUND),
    ({"file_containing_symbol": "inference.Nothing"}, NOT_FOUND),
    ({"file_containing_symbol": "inference.GRPCInferenceService.Nothing"}, NOT_FOUND),
    ({"file_containing_symbol": ".inference.ModelConfig"}, NOT_FOUND),
    ({"all_extension_numbers_of_type": "inference.Nothing"}, NOT_FOUND),
    ({"file_containing_extension": {"containing_type": "inference.ModelConfig", "extension_number": 7}}, NOT_FOUND),
    ({"file_containing_extension": {"containing_type": "inference.Nothing", "extension_number": 7}}, NOT_FOUND),
]


@pytest.mark.parametrize("fields", [*REQUESTS, *(fields for fields, _ in REFUSED)], ids=lambda fields: str(fields))
def test_answers_are_those_of_grpc(fields: dict[str, Any]) -> None:
    """Replies equal those of gRPC's own server for the same schemas, except for error messages and the host."""
    request = reflection_pb2.ServerReflectionRequest(**fields)
    servicer = ReflectionServicer(protobuf.SERVICES, protobuf.pool())
    (expected,) = servicer.ServerReflectionInfo(iter([request]), None)
    ours = ask(**fields)
    assert ours.valid_host == request.host
    assert ours.WhichOneof("message_response") == expected.WhichOneof("message_response")
    if expected.HasField("error_response"):
        expected.error_response.error_message = ours.error_response.error_message
    expected.valid_host = ours.valid_host
    assert ours == expected


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("fields", REQUESTS, ids=lambda fields: str(fields))
def test_both_versions_answer_alike(package: str, fields: dict[str, Any]) -> None:
    """Replies of v1 and v1alpha are equal."""
    assert ask(package, **fields) == ask(ALPHA, **fields)


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("inference.GRPCInferenceService.ModelStreamInfer", INFERENCE_FILES),
        ("grpc.health.v1.Health.Check", ["grpc_health/v1/health.proto"]),
        ("grpc.reflection.v1.ServerReflection.ServerReflectionInfo", ["grpc_reflection/v1/reflection.proto"]),
    ],
)
def test_methods_are_symbols(method: str, names: list[str]) -> None:
    """A method is found by its full name, which gRPC's own Python server does not support."""
    assert files(ask(file_containing_symbol=method)) == names


def test_a_file_comes_with_what_it_imports() -> None:
    """A reply contains the file, followed by each of its imports once."""
    assert files(ask(file_by_filename="grpc_service.proto")) == INFERENCE_FILES
    assert files(ask(file_by_filename="model_config.proto")) == INFERENCE_FILES[1:]


@pytest.mark.parametrize(("fields", "code"), REFUSED, ids=lambda value: str(value))
def test_what_cannot_be_found(fields: dict[str, Any], code: int) -> None:
    """A failed lookup is an error response with a code and a message, and does not end the stream."""
    response = ask(**fields)
    assert response.error_response.error_code == code
    assert response.error_response.error_message
    assert response.original_request == reflection_pb2.ServerReflectionRequest(**fields)


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("data", [b"\xff", b"\x1a\x05x", b"\x22\x02\xff\xfe"])
def test_malformed_requests(package: str, data: bytes) -> None:
    """A malformed request gets an error response."""
    response = reflection_pb2.ServerReflectionResponse.FromString(answer(package, data))
    assert response.error_response.error_code == INVALID_ARGUMENT
    assert "ServerReflectionRequest" in response.error_response.error_message

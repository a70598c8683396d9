"""The gateway's bundled protobuf schemas equal those in the wheels they were exported from."""

import pytest
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from tritonclient.grpc import model_config_pb2, service_pb2

from gateway.protocol.grpc_methods import RPCS, SERVICE
from gateway.protocol.protobuf import SERVICES, message, parse, pool


@pytest.mark.parametrize("theirs", [m.DESCRIPTOR for m in (service_pb2, model_config_pb2, health_pb2, reflection_pb2)])
def test_the_schemas_are_those_of_the_wheels(theirs: FileDescriptor) -> None:
    """The bundled schemas equal those of the wheels; after an upgrade of a wheel, run `scripts/export_descriptors`."""
    assert pool().FindFileByName(theirs.name).serialized_pb == theirs.serialized_pb


@pytest.mark.parametrize("service", SERVICES)
def test_services(service: str) -> None:
    """Every method's request and response messages can be created."""
    methods = pool().FindServiceByName(service).methods
    assert methods
    for method in methods:
        assert message(method.input_type.full_name)().SerializeToString() == b""
        assert message(method.output_type.full_name)().SerializeToString() == b""


def test_every_rpc_of_triton_is_known() -> None:
    """The table of RPCs covers all of Triton's methods and marks which are streams."""
    methods = pool().FindServiceByName(SERVICE).methods
    assert {method.name: method.client_streaming for method in methods} == {r.name: r.is_stream for r in RPCS.values()}


def test_parsing() -> None:
    """A malformed message raises a ValueError that names its type; an unknown type raises a KeyError."""
    made = message("inference.ModelInferRequest")(model_name="m", raw_input_contents=[b"1234"])
    assert parse("inference.ModelInferRequest", made.SerializeToString()) == made
    with pytest.raises(ValueError, match=r"the message is no inference\.ModelInferRequest"):
        parse("inference.ModelInferRequest", b"\x0a\xff")
    with pytest.raises(KeyError):
        message("inference.Nothing")

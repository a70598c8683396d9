"""Messages of the gRPC services that the gateway speaks, as classes: `message("inference.ModelInferRequest")`.

Their schemas lie beside this module as one serialised FileDescriptorSet, made by `scripts/export_descriptors` from the
`tritonclient`, `grpcio-health-checking` and `grpcio-reflection` wheels: Triton's `grpc_service.proto` and
`model_config.proto` (BSD-3-Clause), gRPC's `health.proto` and `reflection.proto` (Apache-2.0). They live in a pool of
their own, so that a program that imports those wheels too does not register a file twice. Nothing is loaded before the
first message is asked for: a gateway whose engines speak what its clients speak never needs it.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor_pool import DescriptorPool

# Generated classes have no types of their own: their fields are checked by protobuf, when they are set.
Message = Any
MessageClass = Any

SERVICES = (
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)


@cache
def message(name: str) -> MessageClass:
    """The class of a message, by its full name. Raises: KeyError where no service has such a message."""
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(pool().FindMessageTypeByName(name))


@cache
def pool() -> DescriptorPool:
    """The schemas of every service in SERVICES, with all that they use."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool

    data = pkgutil.get_data(__name__, "services.binpb")
    assert data is not None
    descriptors = DescriptorPool()
    for file in FileDescriptorSet.FromString(data).file:
        descriptors.Add(file)
    return descriptors


def parse(name: str, data: bytes) -> Message:
    """A message read from its serialised form. Raises: ValueError where it is malformed."""
    return read_message(message(name), data)


def read_message(message_class: MessageClass, data: bytes) -> Message:
    """As `parse`."""
    from google.protobuf.message import DecodeError

    message = message_class()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise ValueError(f"the message is no {message.DESCRIPTOR.full_name}") from None
    return message

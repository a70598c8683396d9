"""gRPC's own services: health checks and server reflection.

Replies of the health protocol never change and are stored as bytes. Both versions of reflection are the same messages
in two packages.
Sources: grpc/grpc `doc/health-checking.md`, grpc/health/v1/health.proto; `doc/server-reflection.md`,
grpc/reflection/v1/reflection.proto.
"""

from __future__ import annotations

from typing import Any

from gateway.protocol import protobuf
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_methods import SERVICE
from gateway.protocol.grpc_status import INVALID_ARGUMENT
from gateway.protocol.operations import Operation
from gateway.protocol.protobuf import Message
from gateway.protocol.protobuf_wire import fields

HEALTH_SERVICE = "grpc.health.v1.Health"
CHECK_PATH = f"/{HEALTH_SERVICE}/Check".encode("ascii")
WATCH_PATH = f"/{HEALTH_SERVICE}/Watch".encode("ascii")

# HealthCheckResponse: field 1, the status, as a varint.
SERVING = b"\x08\x01"
NOT_SERVING = b"\x08\x02"
SERVICE_UNKNOWN = b"\x08\x03"  # Watch alone says it; Check fails with NOT_FOUND

# The empty name is the whole server.
SERVICES = frozenset({"", SERVICE, HEALTH_SERVICE})


def read_service(message: bytes) -> str:
    """The service that a HealthCheckRequest asks about. Raises: GatewayError(BAD_REQUEST) where the message is
    malformed."""
    name = b""
    for number, _, value in fields(message):
        if number == 1 and isinstance(value, bytes):
            name = value
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        raise GatewayError(ErrorKind.BAD_REQUEST, "the service's name is no UTF-8") from None


def is_known(service: str) -> bool:
    """Whether the gateway speaks for a service of this name."""
    return service in SERVICES


def write_status(is_serving: bool) -> bytes:
    """A HealthCheckResponse about a known service."""
    return SERVING if is_serving else NOT_SERVING


def unknown_service(service: str) -> GatewayError:
    """The status of a Check of an unknown service: NOT_FOUND."""
    return GatewayError(ErrorKind.NOT_FOUND, f"no service named '{service}' is known here")


PACKAGES = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
PATHS = {f"/{package}.ServerReflection/ServerReflectionInfo".encode("ascii"): package for package in PACKAGES}
# The operation that each path stands for where operations are restricted.
OPERATIONS = {CHECK_PATH: Operation.SERVER_READY, WATCH_PATH: Operation.SERVER_READY} | dict.fromkeys(
    PATHS, Operation.SERVER_METADATA
)

_NOT_FOUND = 5


def answer(package: str, request: bytes) -> bytes:
    """The serialised ServerReflectionResponse to one serialised ServerReflectionRequest, both of one of PACKAGES. What
    cannot be found, or understood, is an error inside the response: the stream goes on."""
    response = protobuf.message(f"{package}.ServerReflectionResponse")()
    try:
        reflection_request = protobuf.parse(f"{package}.ServerReflectionRequest", request)
    except ValueError as error:
        _fail(response, INVALID_ARGUMENT, str(error))
    else:
        response.valid_host = reflection_request.host
        response.original_request.CopyFrom(reflection_request)
        _answer(reflection_request, response)
    data: bytes = response.SerializeToString()
    return data


def _answer(reflection_request: Message, response: Message) -> None:
    kind = reflection_request.WhichOneof("message_request")
    try:
        if kind == "list_services":
            for service in sorted(protobuf.SERVICES):
                response.list_services_response.service.add(name=service)
        elif kind == "file_by_filename":
            _add_file(response, protobuf.pool().FindFileByName(reflection_request.file_by_filename))
        elif kind == "file_containing_symbol":
            _add_file(response, _file_of(reflection_request.file_containing_symbol))
        elif kind == "file_containing_extension":
            extension = reflection_request.file_containing_extension
            extended = protobuf.pool().FindMessageTypeByName(extension.containing_type)
            found = protobuf.pool().FindExtensionByNumber(extended, extension.extension_number)
            _add_file(response, _file_of(found.full_name))
        elif kind == "all_extension_numbers_of_type":
            extended = protobuf.pool().FindMessageTypeByName(reflection_request.all_extension_numbers_of_type)
            numbers = response.all_extension_numbers_response
            numbers.base_type_name = extended.full_name
            numbers.extension_number.extend(sorted(each.number for each in protobuf.pool().FindAllExtensions(extended)))
        else:
            _fail(response, INVALID_ARGUMENT, "the request asks nothing that is known here")
    except KeyError:
        _fail(response, _NOT_FOUND, "there is no such file, symbol or extension")


def _file_of(symbol: str) -> Any:
    """The file that declares a service, method, message, field or enum. Raises: KeyError."""
    pool = protobuf.pool()
    try:
        return pool.FindFileContainingSymbol(symbol)
    except KeyError:  # Python's pool does not know methods as symbols
        service, _, method = symbol.rpartition(".")
        return pool.FindServiceByName(service).methods_by_name[method].containing_service.file


def _add_file(response: Message, file: Any) -> None:
    """The file, and after it all that it imports, each once."""
    files = {file.name: file}
    left = [file]
    while left:
        for imported in left.pop().dependencies:
            if imported.name not in files:
                files[imported.name] = imported
                left.append(imported)
    response.file_descriptor_response.file_descriptor_proto.extend(each.serialized_pb for each in files.values())


def _fail(response: Message, code: int, text: str) -> None:
    response.error_response.error_code = code
    response.error_response.error_message = text

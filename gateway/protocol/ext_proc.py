"""Envoy's external processing (`envoy.service.ext_proc.v3`) and the endpoint picker protocol of the Kubernetes Gateway
API Inference Extension: the messages with the fields that a picker has a use for, and its answers.

Field numbers are those of Envoy's public .proto files. Names and values of header fields are declared as bytes: proxies
pass on what is no UTF-8.
Sources: envoyproxy/envoy `api/envoy/service/ext_proc/v3/external_processor.proto`; Gateway API Inference Extension,
proposal 004 (endpoint picker protocol).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache, lru_cache

from gateway.protocol.protobuf import Message, MessageClass
from gateway.protocol.protobuf.text_schema import TextSchema
from gateway.protocol.protobuf_wire import write_varint

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
PROCESS_PATH = f"/{SERVICE}/Process".encode("ascii")

# Of the endpoint picker protocol
DESTINATION = "x-gateway-destination-endpoint"
SERVED = "x-gateway-destination-endpoint-served"
SUBSET = "x-gateway-destination-endpoint-subset"
DESTINATION_NAMESPACE = "envoy.lb"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"

_HEADERS = "headers:1:HeaderMap end_of_stream:3:bool"
SCHEMA = f"""
google.protobuf.Value number_value:2:double string_value:3:string bool_value:4:bool struct_value:5:Struct \
list_value:6:ListValue
google.protobuf.Struct fields:1:%Value
google.protobuf.ListValue values:1:*Value
envoy.type.v3.HttpStatus code:1:int32
envoy.config.core.v3.HeaderValue key:1:bytes value:2:bytes raw_value:3:bytes
envoy.config.core.v3.HeaderMap headers:1:*HeaderValue
envoy.config.core.v3.HeaderValueOption header:1:HeaderValue append_action:3:int32
envoy.config.core.v3.Metadata filter_metadata:1:%Struct
envoy.extensions.filters.http.ext_proc.v3.ProcessingMode request_header_mode:1:int32 response_header_mode:2:int32 \
request_body_mode:3:int32 response_body_mode:4:int32 request_trailer_mode:5:int32 response_trailer_mode:6:int32
envoy.service.ext_proc.v3.ProtocolConfiguration request_body_mode:1:int32 response_body_mode:2:int32
envoy.service.ext_proc.v3.HttpHeaders {_HEADERS}
envoy.service.ext_proc.v3.HttpBody body:1:bytes end_of_stream:2:bool
envoy.service.ext_proc.v3.HttpTrailers trailers:1:HeaderMap
envoy.service.ext_proc.v3.ProcessingRequest request_headers:2:HttpHeaders response_headers:3:HttpHeaders \
request_body:4:HttpBody response_body:5:HttpBody request_trailers:6:HttpTrailers response_trailers:7:HttpTrailers \
metadata_context:8:Metadata attributes:9:%Struct observability_mode:10:bool protocol_config:11:ProtocolConfiguration
envoy.service.ext_proc.v3.HeaderMutation set_headers:1:*HeaderValueOption remove_headers:2:*bytes
envoy.service.ext_proc.v3.StreamedBodyResponse body:1:bytes end_of_stream:2:bool
envoy.service.ext_proc.v3.BodyMutation body:1:bytes clear_body:2:bool streamed_response:3:StreamedBodyResponse
envoy.service.ext_proc.v3.CommonResponse status:1:int32 header_mutation:2:HeaderMutation body_mutation:3:BodyMutation
envoy.service.ext_proc.v3.HeadersResponse response:1:CommonResponse
envoy.service.ext_proc.v3.BodyResponse response:1:CommonResponse
envoy.service.ext_proc.v3.TrailersResponse header_mutation:1:HeaderMutation
envoy.service.ext_proc.v3.GrpcStatus status:1:uint32
envoy.service.ext_proc.v3.ImmediateResponse status:1:HttpStatus headers:2:HeaderMutation body:3:bytes \
grpc_status:4:GrpcStatus details:5:string
envoy.service.ext_proc.v3.ProcessingResponse request_headers:1:HeadersResponse response_headers:2:HeadersResponse \
request_body:3:BodyResponse response_body:4:BodyResponse request_trailers:5:TrailersResponse \
response_trailers:6:TrailersResponse immediate_response:7:ImmediateResponse dynamic_metadata:8:Struct \
mode_override:9:ProcessingMode
"""
_schema = TextSchema(SCHEMA)
message, parse = _schema.message, _schema.parse

HeaderField = tuple[bytes, bytes]


class BodyMode(IntEnum):
    """`ProcessingMode.BodySendMode`: how the proxy sends a body."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4

    @property
    def is_whole(self) -> bool:
        """Whether the body comes in one message, before which the head does not go on."""
        return self in (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)


class Part(IntEnum):
    """A part of a request or its reply, by the number of its answer in a ProcessingResponse."""

    REQUEST_HEADERS = 1
    RESPONSE_HEADERS = 2
    REQUEST_BODY = 3
    RESPONSE_BODY = 4
    REQUEST_TRAILERS = 5
    RESPONSE_TRAILERS = 6


# In the order in which they are looked for: most messages of long replies are pieces of bodies.
_PARTS = [
    (part, part.name.lower())
    for part in (
        *(Part.RESPONSE_BODY, Part.REQUEST_BODY, Part.REQUEST_HEADERS, Part.RESPONSE_HEADERS),
        *(Part.RESPONSE_TRAILERS, Part.REQUEST_TRAILERS),
    )
]
_OVERWRITE_IF_EXISTS_OR_ADD = 2
_SKIP = 2  # of ProcessingMode.HeaderSendMode
# A piece of a body in an answer: Envoy recommends no more than 64 KiB for a message.
_MAX_PIECE_BYTES = 60 * 1024


@dataclass(slots=True)
class Mutation:
    """What the proxy changes of a request: fields that take the place of others of their names, names that it removes,
    and where it is not None, the whole body."""

    fields: list[HeaderField] = field(default_factory=list)
    removed: list[bytes] = field(default_factory=list)
    body: bytes | None = None


def read_request(data: bytes) -> Message:
    """A ProcessingRequest. Raises: ValueError where it is malformed."""
    request_class, decode_error = _request_class()
    request = request_class()
    try:
        request.ParseFromString(data)
    except decode_error:
        raise ValueError("the message is no ProcessingRequest") from None
    return request


@cache
def _request_class() -> tuple[MessageClass, type[Exception]]:
    from google.protobuf.message import DecodeError

    return message("ProcessingRequest"), DecodeError


def part_of(request: Message) -> tuple[Part, Message] | None:
    """The part that a ProcessingRequest brings; None where it brings none that is known."""
    for part, name in _PARTS:
        if request.HasField(name):
            return part, getattr(request, name)
    return None


def modes_of(request: Message) -> tuple[BodyMode, BodyMode] | None:
    """How the bodies of request and reply are sent, as the first message says; None where it does not, or names a mode
    that is not known."""
    if not request.HasField("protocol_config"):
        return None
    config = request.protocol_config
    try:
        return BodyMode(config.request_body_mode), BodyMode(config.response_body_mode)
    except ValueError:
        return None


def fields_of(headers: Message) -> list[HeaderField]:
    """The fields of a HeaderMap."""
    return [(each.key, each.raw_value or each.value) for each in headers.headers]


def subset_of(request: Message) -> frozenset[str] | None:
    """The endpoints, as host:port, that the proxy restricts the choice to; None where it does not."""
    value = _metadata(request, SUBSET_NAMESPACE, SUBSET)
    if value is None:
        return None
    listed = [each.string_value for each in value.list_value.values] or value.string_value.split(",")
    return frozenset(filter(None, map(str.strip, listed)))


def served_by(request: Message) -> str | None:
    """The endpoint, as host:port, that has answered, where the proxy says so."""
    value = _metadata(request, DESTINATION_NAMESPACE, SERVED)
    return value.string_value or None if value is not None else None


def attribute_of(request: Message, name: str) -> str | None:
    """An attribute that the proxy is configured to send, as `response.code_details`."""
    for group in request.attributes.values():
        if name in group.fields:
            text: str = group.fields[name].string_value
            return text
    return None


def _metadata(request: Message, namespace: str, key: str) -> Message | None:
    if not request.HasField("metadata_context"):
        return None
    known = request.metadata_context.filter_metadata
    if namespace not in known or key not in known[namespace].fields:
        return None
    return known[namespace].fields[key]


# Answers


def go_on(part: Part) -> bytes:
    """The answer that changes nothing."""
    return _GO_ON[part]


_GO_ON = {part: bytes((part << 3 | 2, 0)) for part in Part}


def destined(part: Part, endpoints: str, mutation: Mutation, reply_mode: BodyMode | None = None) -> bytes:
    """The answer that tells where a request goes, with what changes of it; `endpoints` are host:port, the first choice
    first, separated by commas. With a `reply_mode`, which is that of the reply's body, the request's body need not be
    sent; proxies do so where they are configured to (`allow_mode_override`)."""
    header, metadata = _destination(endpoints)
    changes = header
    if mutation.fields:
        changes += _options(mutation.fields)
    if mutation.removed:
        changes += b"".join([_bytes(2, name) for name in mutation.removed])
    common = _bytes(2, changes)
    if mutation.body is not None:
        common += _bytes(3, _bytes(1, mutation.body))
    answer = _bytes(part, _bytes(1, common)) + metadata
    return answer if reply_mode is None else answer + _bytes(9, b"\x20%c\x28%c" % (reply_mode, _SKIP))


@lru_cache(4096)
def _destination(endpoints: str) -> tuple[bytes, bytes]:
    """The header of a choice, as a part of a HeaderMutation, and its metadata, as a part of a ProcessingResponse."""
    response = message("ProcessingResponse")()
    destination = response.dynamic_metadata.fields[DESTINATION_NAMESPACE].struct_value
    destination.fields[DESTINATION].string_value = endpoints
    return _options([(DESTINATION.encode(), endpoints.encode())]), response.SerializeToString()


@lru_cache(4096)
def with_fields(part: Part, fields: tuple[HeaderField, ...]) -> bytes:
    """The answer that sets fields of a head."""
    return _bytes(part, _bytes(1, _bytes(2, _options(fields)))) if fields else go_on(part)


def _options(fields: Iterable[HeaderField]) -> bytes:
    """Fields to set, as parts of a HeaderMutation: header (key, raw_value) and append_action."""
    overwrite = b"\x18%c" % _OVERWRITE_IF_EXISTS_OR_ADD
    return b"".join([_bytes(1, _bytes(1, _bytes(1, name) + _bytes(3, value)) + overwrite) for name, value in fields])


def pieces(part: Part, body: bytes, ended: bool) -> Iterator[bytes]:
    """The answers that pass a body on, or some of it, of one that is sent full-duplex."""
    start = 0
    while True:
        piece = body[start : start + _MAX_PIECE_BYTES]
        start += len(piece)
        is_last = start >= len(body)
        yield _piece(part, piece, ended and is_last)
        if is_last:
            return


def immediate(
    status: int, body: bytes, fields: Iterable[HeaderField], grpc_status: int | None = None, details: str = ""
) -> bytes:
    """The answer that ends the request: the proxy replies so."""
    response = message("ProcessingResponse")()
    reply = response.immediate_response
    reply.status.code = status
    reply.body = body
    reply.details = details
    reply.headers.MergeFromString(_options(fields))
    if grpc_status is not None:
        reply.grpc_status.status = grpc_status
    data: bytes = response.SerializeToString()
    return data


def _piece(part: Part, body: bytes, ended: bool) -> bytes:
    """Written by hand, since long replies consist of them: response, body_mutation, streamed_response."""
    data = (_bytes(1, body) if body else b"") + (b"\x10\x01" if ended else b"")
    return _bytes(part, _bytes(1, _bytes(3, _bytes(3, data))))


def _bytes(number: int, data: bytes) -> bytes:
    """A field of bytes, or of a message."""
    size = len(data)
    if size < 0x80:
        return b"%c%c%b" % (number << 3 | 2, size, data)
    return b"%c%b%b" % (number << 3 | 2, write_varint(size), data)

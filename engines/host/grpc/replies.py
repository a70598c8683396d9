"""The header fields of all replies: the opening fields, and the status at the end.

Source: grpc/grpc `doc/PROTOCOL-HTTP2.md`, "Responses".
"""

from __future__ import annotations

import logging

from engines.core.errors import EngineError
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_status import INTERNAL, write_message
from gateway.wire.http2.hpack import CachedHeaders
from gateway.wire.http2.stream import Stream

_log = logging.getLogger(__name__)

_OPENING_FIELDS = [
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", b"identity, deflate, gzip"),
]
OPENING = CachedHeaders(_OPENING_FIELDS)
COMPRESSED_OPENINGS = {
    encoding: CachedHeaders([*_OPENING_FIELDS, (b"grpc-encoding", encoding)]) for encoding in (b"gzip", b"deflate")
}
OK = CachedHeaders([(b"grpc-status", b"0")])
NOT_GRPC = CachedHeaders([(b":status", b"415"), (b"content-length", b"0")])

RESOURCE_EXHAUSTED = 8

# A status message is a header field, percent-encoded; clients take 8 KiB for all fields.
_MAX_MESSAGE_BYTES = 4096


class StatusError(Exception):
    """A status of the gRPC server, not of Triton."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def status_of(error: Exception) -> tuple[int, str]:
    """The status and message of an error; an unexpected one is logged."""
    match error:
        case EngineError():
            return error.status.grpc, error.message
        case StatusError():
            return error.code, error.message
        case GatewayError(kind=ErrorKind.BODY_TOO_LARGE):
            return RESOURCE_EXHAUSTED, "SERVER: Received message larger than max"
        case GatewayError(kind=ErrorKind.BAD_REQUEST):
            return INTERNAL, error.message  # as gRPC reports what it cannot decompress or split
        case GatewayError():
            return error.status.grpc, error.message
    _log.error("a call failed", exc_info=error)
    return INTERNAL, f"the host failed: {type(error).__name__}"


def send_status(stream: Stream, code: int, message: str, *, has_begun: bool) -> None:
    """End a call with a status; `has_begun`: the opening fields are sent."""
    encoded = write_message(message)
    if len(encoded) > _MAX_MESSAGE_BYTES:
        encoded = encoded[:_MAX_MESSAGE_BYTES].rsplit(b"%", 1)[0]
    fields = [(b"grpc-status", b"%d" % code), (b"grpc-message", encoded)]
    if has_begun:
        stream.send_trailers(CachedHeaders(fields))
    else:
        stream.send_headers(CachedHeaders(_OPENING_FIELDS + fields), ended=True)

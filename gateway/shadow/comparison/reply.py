"""A reply of either engine, decoded for comparison."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.wire.http1.body import ChunkedDecoder
from gateway.wire.http1.head import HEAD_END, read_response_head

_JSON_LENGTH = b"inference-header-content-length"
_EITHER_WBITS = 47  # gzip's or zlib's format
# A bound against decompression bombs.
_MAX_PLAIN_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ComparedReply:
    """`status` is HTTP's or gRPC's; `body` is without framing and content coding (for gRPC, the message). Times are in
    seconds. `failure` is the reason of a failure without a status.
    """

    is_call: bool
    status: int
    body: bytes
    fields: dict[bytes, bytes] = field(default_factory=dict)
    seconds: float = 0.0
    first_seconds: float = 0.0
    failure: str = ""

    @property
    def is_good(self) -> bool:
        return not self.failure and self.status == (0 if self.is_call else 200)

    @property
    def is_stream(self) -> bool:
        return self.fields.get(b"content-type", b"").startswith(b"text/event-stream")

    @property
    def head_bytes(self) -> int | None:
        """The length of the JSON of a binary V2 reply; None where all of it is JSON."""
        length = self.fields.get(_JSON_LENGTH, b"")
        return int(length) if length.isdigit() and len(length) < 10 else None


def read_http(data: bytes, seconds: float, first_seconds: float) -> ComparedReply:
    """Parse a reply as it was written to a client.

    Raises: GatewayError(UPSTREAM_PROTOCOL) where it is malformed.
    """
    end = data.find(HEAD_END) + len(HEAD_END)
    try:
        if end < len(HEAD_END):
            raise ValueError("its head has no end")
        head = read_response_head(data[:end])
        body = data[end:]
        if head.is_chunked:
            body = ChunkedDecoder().feed(body)
    except (ValueError, GatewayError) as error:
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"the reply is malformed: {error}") from error
    named = dict(reversed(head.fields))
    return ComparedReply(False, head.status, plain(body, named), named, seconds, first_seconds)


def plain(body: bytes, fields: dict[bytes, bytes]) -> bytes:
    """Decode a body's Content-Encoding.

    Raises: GatewayError(UPSTREAM_PROTOCOL) where it is unknown or malformed.
    """
    coding = fields.get(b"content-encoding", b"identity").strip().lower()
    if coding in (b"identity", b""):
        return body
    if coding not in (b"gzip", b"deflate"):
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"Content-Encoding {coding.decode('latin-1')!r} is not read")
    try:
        return zlib.decompressobj(_EITHER_WBITS).decompress(body, _MAX_PLAIN_BYTES)
    except zlib.error as error:
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"the compressed body is malformed: {error}") from error

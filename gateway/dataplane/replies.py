"""Replies that the gateway writes itself, as Triton would write them."""

from __future__ import annotations

from http.client import responses

import orjson

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.wire.http1.chunked import encode_chunk

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
JSON = "application/json"

# What ends a reply's head, from the last field's CRLF on.
KEEP_ALIVE_END = b"\r\n\r\n"
KEEP_ALIVE_END_10 = b"\r\nconnection: keep-alive\r\n\r\n"  # an HTTP/1.0 client must be told
CLOSE_END = b"\r\nconnection: close\r\n\r\n"


def error_body(message: str) -> bytes:
    """Triton's one shape of an error."""
    return orjson.dumps({"error": message})


def body_too_long(limit: int) -> GatewayError:
    return GatewayError(ErrorKind.BODY_TOO_LARGE, f"the request's body is longer than {limit} bytes (--max-body-bytes)")


def reason_line(error: GatewayError) -> bytes:
    """The field that names the kind of a failure for programs."""
    return b"x-pointsman-reason: %b\r\n" % error.kind.value.encode("ascii")


def stream_error(error: GatewayError, *, chunked: bool) -> bytes:
    """An event that tells of an error in the middle of a stream, as Triton does under status 200."""
    event = b"data: %b\n\n" % error_body(error.message)
    return encode_chunk(event) if chunked else event


def reply(status: int, body: bytes, content_type: str, lines: bytes, ending: bytes, *, without_body: bool) -> bytes:
    """A whole reply.

    `lines` are further fields; `ending` is what ends the head (see KEEP_ALIVE_END); `without_body` answers
    a HEAD: the length is told, the body is not.
    """
    head = f"HTTP/1.1 {status} {responses.get(status, 'Unknown')}\r\ncontent-type: {content_type}\r\n"
    length = f"content-length: {len(body)}"
    return b"".join((head.encode("ascii"), lines, length.encode("ascii"), ending, b"" if without_body else body))

"""Replies that the gateway writes itself, as Triton would write them, or OpenAI's API on its paths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus

from gateway.dataplane.context.reply_fields import EVERY_REPLY, VIA, reason_fields
from gateway.dataplane.context.route_target import RouteTarget
from gateway.protocol.conversion.errors import error_json
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.errors import anthropic_error, openai_error
from gateway.protocol.operations import OF_V2, LlmApi
from gateway.wire.http1.head import Field, ResponseHead

JSON = "application/json"
NOT_MODIFIED = 304  # has the length of the reply that it stands for, and no body (RFC 9110, section 15.4.5)

_REASONS = {status.value: status.phrase for status in HTTPStatus}

# What ends a reply's head, from the last field's CRLF on.
KEEP_ALIVE_END = b"\r\n\r\n"
KEEP_ALIVE_END_10 = b"\r\nconnection: keep-alive\r\n\r\n"  # HTTP/1.0 closes by default
CLOSE_END = b"\r\nconnection: close\r\n\r\n"
CHUNKS = b"\r\ntransfer-encoding: chunked"

# OpenAI's own words
_OPENAI_CODES = {ErrorKind.RATE_LIMITED: "rate_limit_exceeded", ErrorKind.BUDGET_EXHAUSTED: "insufficient_quota"}
_REQUEST_ID = b"x-request-id"
ANTHROPIC_REQUEST_ID = b"request-id"  # where its clients look for it
_NAMED_EVENTS = (LlmApi.MESSAGES, LlmApi.RESPONSES)


def error_status(error: GatewayError, api: LlmApi | None) -> int:
    """The HTTP status of an error. OpenAI's clients and Anthropic's retry after 501, to no avail."""
    if error.kind is ErrorKind.UNSUPPORTED and api is not None and api not in OF_V2:
        return 400
    return error.status.http


def error_content(error: GatewayError, api: LlmApi | None, request_id: bytes = b"") -> bytes:
    """An error as clients of an API read it; None, and V2's own APIs: as Triton's."""
    if api is None or api in OF_V2:
        return error_json(error.message)
    if api is LlmApi.MESSAGES:
        return anthropic_error(error.message, error_status(error, api), request_id.decode("latin-1"))
    return openai_error(error.message, error_status(error, api), _OPENAI_CODES.get(error.kind, error.kind.value))


def error_event(error: GatewayError, api: LlmApi | None) -> bytes:
    """The event of an error in the middle of a stream, under status 200."""
    named = b"event: error\n" if api in _NAMED_EVENTS else b""
    return b"%bdata: %b\n\n" % (named, error_content(error, api))


OF_ROUTE = "max_body_bytes of its route"


def body_too_long(limit: int, option: str = "--max-body-bytes") -> GatewayError:
    return GatewayError(ErrorKind.BODY_TOO_LARGE, f"the request's body is longer than {limit} bytes ({option})")


def error_reply(
    error: GatewayError, api: LlmApi | None, fields: Sequence[Field] = ()
) -> tuple[int, bytes, list[Field]]:
    """The status, the body and the fields of a whole reply that is an error; `fields` are further ones."""
    request_id = next((value for name, value in fields if name == _REQUEST_ID), b"")
    more = [*fields, *reason_fields(error)]
    if api is LlmApi.MESSAGES and request_id:
        more.append((ANTHROPIC_REQUEST_ID, request_id))
    return error_status(error, api), error_content(error, api, request_id), more


def lines_of(fields: Iterable[Field]) -> bytes:
    """Fields as HTTP/1.1 writes them, each with its CRLF."""
    return b"".join([b"%b: %b\r\n" % field for field in fields])


_EVERY_LINES = lines_of(EVERY_REPLY)
_VIA_LINES = lines_of([*EVERY_REPLY, VIA])
_BEFORE_ID = _VIA_LINES + b"x-request-id: "


def reply(
    status: int, body: bytes, content_type: str, fields: Iterable[Field], ending: bytes, *, without_body: bool
) -> bytes:
    """A whole reply in HTTP/1.1.

    `fields` are further fields; `ending` ends the head (see KEEP_ALIVE_END); `without_body` answers a HEAD: the head
    has the length, and no body follows.
    """
    head = f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}\r\ncontent-type: {content_type}\r\n"
    length = f"content-length: {len(body)}"
    content = b"" if without_body else body
    return b"".join((head.encode("ascii"), lines_of(fields), _EVERY_LINES, length.encode("ascii"), ending, content))


def relayed(
    head: ResponseHead, route_target: RouteTarget, added: Iterable[Field], request_id: bytes, ending: bytes, data: bytes
) -> bytes:
    """The begin of an engine's reply in HTTP/1.1: its head with the gateway's own fields, and the first of the body.
    `ending` begins behind the last field's value."""
    return b"".join(
        (
            head.status_line,
            head.lines,
            route_target.reply_lines,
            lines_of(added) if added else b"",
            _BEFORE_ID,
            request_id,
            ending,
            data,
        )
    )


def stream_head(content_type: str, fields: Iterable[Field], ending: bytes) -> bytes:
    """The head in HTTP/1.1 of a stream that the gateway writes itself."""
    opening = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\n".encode("ascii")
    return b"".join((opening, lines_of(fields), _VIA_LINES.removesuffix(b"\r\n"), ending))

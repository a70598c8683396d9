"""Heads of HTTP/1.1 messages, parsed strictly once they are complete.

A gateway and the server behind it must agree where each message ends; every leniency is a way to smuggle a request
past one of them. llhttp (by httptools) admits what RFC 9112 calls valid: no bare LF, no folded lines, no space before a
colon, no control characters, one way to frame a body. What llhttp leaves to its caller is checked here.

A parser lives only while it reads one head, so an idle connection holds none.

Source: RFC 9112 (HTTP/1.1), RFC 9110 section 7.6.1 (hop-by-hop fields).
"""

from __future__ import annotations

import re
from contextlib import suppress

import httptools

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.wire.memo import Memo

HEAD_END = b"\r\n\r\n"

Field = tuple[bytes, bytes]

# Fields of one connection only (RFC 9110 section 7.6.1). The sender of a relayed message writes the framing.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# How the names of the gateway's own reply fields begin: an engine's fields of such names are dropped.
GATEWAY_FIELDS = b"x-pointsman-"
_find_gateway_field = re.compile(GATEWAY_FIELDS).search  # costs half of `in`
# Fields that must not be repeated.
_SINGLE = frozenset({b"content-length", b"host", b"expect", b"inference-header-content-length"})
_CONNECTION_OPTIONS = HOP_BY_HOP | {b"close", b""}
_SPECIAL = HOP_BY_HOP | _SINGLE

# llhttp reads RTSP, ICE and other versions too, an empty line before a reply, and any byte in a reason.
_REQUEST_LINE = re.compile(rb"[\r\n]*[^\s]+ [^\s]+ HTTP/1\.[01]\r\n")
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] [1-9][0-9]{2}(?: [\t\x20-\x7e\x80-\xff]*)?\r\n")
_ABSOLUTE = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
_DIGITS = frozenset(b"0123456789")


class _Head:
    """End-to-end fields, names in lower case."""

    __slots__ = ("fields",)

    fields: list[Field]

    def value(self, name: bytes) -> bytes | None:
        """The first value of a field."""
        for field, value in self.fields:
            if field == name:
                return value
        return None


class RequestHead(_Head):
    """A request's head: field names in lower case, end-to-end fields only. `length` is the body's; None: it is chunked.
    A reply to an `is_http_10` request must not be chunked."""

    __slots__ = (
        "expects_continue",
        "is_http_10",
        "keep_alive",
        "length",
        "method",
        "names_fields_of_this_hop",
        "target",
    )

    def __init__(self, method: bytes, target: bytes, fields: list[Field], is_http_10: bool) -> None:
        named, self.fields, connection = _sort_out(fields)
        if not is_http_10 and b"host" not in named:
            raise ValueError("an HTTP/1.1 request needs a Host field")
        expect = named.get(b"expect")
        if expect is not None and expect.lower() != b"100-continue":
            raise ValueError("the Expect field may only ask for 100-continue")
        length, is_chunked = _framing(named)
        if is_chunked and is_http_10:
            raise ValueError("HTTP/1.0 has no Transfer-Encoding")
        self.method = method.decode("ascii")
        self.target = target if target.startswith(b"/") else _origin_form(target)
        self.is_http_10 = is_http_10
        self.length = None if is_chunked else length or 0
        self.keep_alive = _keeps_alive(connection, is_http_10)
        # Whether its Connection field names fields that are not of one hop in all messages.
        self.names_fields_of_this_hop = not connection <= _CONNECTION_OPTIONS
        self.expects_continue = expect is not None and not is_http_10


class ResponseHead(_Head):
    """A response's head, without fields that only the gateway may send. `lines` holds its end-to-end fields as they are
    relayed, with the CRLF of each, without the request's id: a relayed reply has the id that its client knows.

    `length` is the body's, unless the request was HEAD; where it is None, the body `is_chunked` or `ends_at_close`.
    """

    __slots__ = ("ends_at_close", "is_chunked", "keep_alive", "length", "lines", "status", "status_line")

    def __init__(self, status: int, status_line: bytes, fields: list[Field], is_http_10: bool) -> None:
        named, self.fields, connection = _sort_out(fields)
        length, is_chunked = _framing(named)
        if status < 200 or status in (204, 304):
            length, is_chunked = 0, False
        self.length = length
        self.is_chunked = is_chunked
        self.ends_at_close = length is None and not is_chunked
        self.status = status
        self.status_line = status_line
        lines = b"".join([b"%b: %b\r\n" % field for field in self.fields if field[0] != b"x-request-id"])
        if _find_gateway_field(lines) is not None:
            self.fields = [field for field in self.fields if not field[0].startswith(GATEWAY_FIELDS)]
            lines = b"".join([b"%b: %b\r\n" % field for field in self.fields if field[0] != b"x-request-id"])
        self.lines = lines
        self.keep_alive = _keeps_alive(connection, is_http_10)


def read_request_head(head: bytes) -> RequestHead:
    """Read a whole head, from the request line to the empty line. Raises: GatewayError(BAD_REQUEST) that names what is
    wrong."""
    collected = _Collected()
    parser = httptools.HttpRequestParser(collected)
    try:
        _feed(parser, head)
        if _REQUEST_LINE.match(head) is None:
            raise ValueError("this port speaks HTTP/1.1")
        is_http_10 = parser.get_http_version() == "1.0"
        return RequestHead(parser.get_method(), collected.url, collected.fields, is_http_10)
    except (httptools.HttpParserError, ValueError) as error:
        raise GatewayError(ErrorKind.BAD_REQUEST, f"malformed request: {error}") from error


def head_of_lines(request_line: bytes, lines: list[bytes]) -> RequestHead:
    """A head from its lines without their CRLF, which have only legal bytes, and tokens as names. What llhttp reads of
    a request line is cached: many requests share it. Raises: GatewayError(BAD_REQUEST), ValueError."""
    method, target, is_http_10 = _request_lines(request_line)
    fields = []
    for line in lines:
        name, _, value = line.partition(b":")
        fields.append((name.lower(), value.strip(b" \t")))
    return RequestHead(method, target, fields, is_http_10)


def _read_request_line(line: bytes) -> tuple[bytes, bytes, bool]:
    head = read_request_head(line + b"\r\nhost: any\r\n\r\n")
    return head.method.encode("ascii"), head.target, head.is_http_10


_request_lines = Memo(_read_request_line)


def read_response_head(head: bytes) -> ResponseHead:
    """Read a whole head, from the status line to the empty line. Raises: GatewayError(UPSTREAM_PROTOCOL) that names
    what is wrong."""
    collected = _Collected()
    parser = httptools.HttpResponseParser(collected)
    try:
        _feed(parser, head)
        line = _STATUS_LINE.match(head)
        if line is None:
            raise ValueError("its status line is not of HTTP/1.1")
        status_line = b"HTTP/1.1" + line[0][8:]  # whatever 1.x the engine speaks
        is_http_10 = parser.get_http_version() == "1.0"
        return ResponseHead(parser.get_status_code(), status_line, collected.fields, is_http_10)
    except (httptools.HttpParserError, ValueError) as error:
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"the engine's reply is malformed: {error}") from error


class _Collected:
    """Collects what httptools parses."""

    __slots__ = ("fields", "url")

    def __init__(self) -> None:
        self.url = b""
        self.fields: list[Field] = []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value))


def _feed(parser: httptools.HttpRequestParser | httptools.HttpResponseParser, head: bytes) -> None:
    with suppress(httptools.HttpParserUpgrade):  # an offer to change the protocol may be ignored (RFC 9110 section 7.8)
        parser.feed_data(head)


def _sort_out(fields: list[Field]) -> tuple[dict[bytes, bytes], list[Field], frozenset[bytes]]:
    """Split fields into those that decide how this connection goes on, and those that go on to the next hop. Returns:
    the special fields by name, the end-to-end fields, and what the Connection field lists."""
    named: dict[bytes, bytes] = {}
    forwarded: list[Field] = []
    connection: frozenset[bytes] = frozenset()
    for field in fields:
        name = field[0]
        if name in _SPECIAL:
            if name in named and (name in _SINGLE or name == b"transfer-encoding"):
                raise ValueError(f"the field {name.decode()} stands more than once")
            named[name] = value = field[1].rstrip(b" \t")
            if name == b"connection":
                connection |= frozenset(option.strip().lower() for option in value.split(b","))
            elif name not in HOP_BY_HOP:
                forwarded.append(field)
        else:
            forwarded.append(field)
    if connection:  # fields it names belong to this connection too, but no sender may make framing vanish
        forwarded = [field for field in forwarded if field[0] not in connection or field[0] in _SINGLE]
    return named, forwarded, connection


def _keeps_alive(connection: frozenset[bytes], is_http_10: bool) -> bool:
    """Whether the connection serves on after this message; `close` has the last word (RFC 9112 section 9.3)."""
    return b"close" not in connection and (not is_http_10 or b"keep-alive" in connection)


def _framing(named: dict[bytes, bytes]) -> tuple[int | None, bool]:
    """The body's length, None where the head does not have it; and whether the body is chunked."""
    coding = named.get(b"transfer-encoding")
    length = named.get(b"content-length")
    if coding is not None:
        if length is not None:
            raise ValueError("both Content-Length and Transfer-Encoding are given")
        if coding.lower() != b"chunked":
            raise ValueError("Transfer-Encoding may only be chunked")
        return None, True
    return (None if length is None else read_length(length)), False


def read_length(value: bytes) -> int:
    """A Content-Length. Raises: ValueError where it is anything but digits."""
    if not value or len(value) > 18 or not _DIGITS.issuperset(value):
        raise ValueError("Content-Length is not a number")
    return int(value)


def _origin_form(target: bytes) -> bytes:
    """The path and query of a target in absolute form (RFC 9112 section 3.2.2)."""
    absolute = _ABSOLUTE.match(target)
    if absolute is None:
        return b"/" + target  # '*' and authority form name nothing here: answered 404 like any unknown path
    rest = target[absolute.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest

"""Heads of requests and responses. The heads that must be rejected are in test_smuggling.py."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.wire.http1.head import read_length, read_request_head, read_response_head


def test_a_request_head() -> None:
    """Names are lower case, values are unchanged, and hop-by-hop fields are removed after they are evaluated."""
    head = read_request_head(
        b"POST /v2/models/m/infer?x=1 HTTP/1.1\r\nHost: a\r\nX-Own:  b c \r\nConnection: X-Hop\r\nX-Hop: d\r\n"
        b"Content-Length: 12\r\nExpect: 100-Continue\r\n\r\n"
    )
    assert (head.method, head.target, head.length) == ("POST", b"/v2/models/m/infer?x=1", 12)
    assert (head.keep_alive, head.expects_continue, head.is_http_10) == (True, True, False)
    assert [name for name, _ in head.fields] == [b"host", b"x-own", b"content-length", b"expect"]
    assert head.value(b"x-own").strip() == b"b c"  # type: ignore[union-attr]
    assert head.value(b"nothing") is None


@pytest.mark.parametrize(
    "target, path",
    [
        (b"http://host:1/v2?x", b"/v2?x"),
        (b"HTTPS://host", b"/"),
        (b"http://host?x", b"/?x"),
        (b"/a//b/../c", b"/a//b/../c"),
    ],
)
def test_targets(target: bytes, path: bytes) -> None:
    """A target in absolute form is reduced to its path; a path is otherwise unchanged."""
    assert read_request_head(b"GET " + target + b" HTTP/1.1\r\nHost: a\r\n\r\n").target == path


@pytest.mark.parametrize(
    "version, connection, keeps",
    [
        (b"1.1", b"", True),
        (b"1.1", b"Connection: close\r\n", False),
        (b"1.1", b"Connection: x, Close\r\n", False),
        (b"1.1", b"Connection: keep-alive\r\nConnection: close\r\n", False),
        (b"1.1", b"Connection: closed, not-close\r\n", True),
        (b"1.0", b"", False),
        (b"1.0", b"Connection: Keep-Alive\r\n", True),
        (b"1.0", b"Connection: keep-alive, close\r\n", False),
    ],
)
def test_keep_alive(version: bytes, connection: bytes, keeps: bool) -> None:
    """An HTTP/1.1 connection persists by default, an HTTP/1.0 connection on request only; `close` takes precedence."""
    fields = b"Host: a\r\n" + connection + b"\r\n"
    assert read_request_head(b"GET / HTTP/" + version + b"\r\n" + fields).keep_alive is keeps
    assert read_response_head(b"HTTP/" + version + b" 200 OK\r\n" + connection + b"\r\n").keep_alive is keeps


@pytest.mark.parametrize(
    "head, framing",
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", (7, False, False)),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n", (None, True, False)),
        (b"HTTP/1.1 200 OK\r\n\r\n", (None, False, True)),
        (b"HTTP/1.1 204 No Content\r\n\r\n", (0, False, False)),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", (0, False, False)),
        (b"HTTP/1.1 100 Continue\r\n\r\n", (0, False, False)),
    ],
)
def test_how_a_response_is_framed(head: bytes, framing: tuple[int | None, bool, bool]) -> None:
    """A response's body has a length, is chunked, or ends with the connection; some statuses have no body."""
    read = read_response_head(head)
    assert (read.length, read.is_chunked, read.ends_at_close) == framing


def test_a_response_head_goes_on() -> None:
    """A response's end-to-end fields are ready to forward; its request id and hop-by-hop fields are removed."""
    head = read_response_head(
        b"HTTP/1.0 418 I'm a teapot\r\nX-A: 1\r\nX-Request-Id: b\r\nConnection: close\r\nContent-Length: 3\r\n\r\n"
    )
    assert (head.status, head.status_line) == (418, b"HTTP/1.1 418 I'm a teapot\r\n")
    assert head.lines == b"x-a: 1\r\ncontent-length: 3\r\n"


@pytest.mark.parametrize(
    "line, status_line",
    [
        (b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK\r\n"),
        (b"HTTP/1.0 503 Model is loading", b"HTTP/1.1 503 Model is loading\r\n"),
        (b"HTTP/1.1 200 ", b"HTTP/1.1 200 \r\n"),
        (b"HTTP/1.1 200", b"HTTP/1.1 200\r\n"),
        (b"HTTP/1.1 599 Grund f\xfcr alles", b"HTTP/1.1 599 Grund f\xfcr alles\r\n"),
    ],
)
def test_status_lines(line: bytes, status_line: bytes) -> None:
    """A status line is forwarded as HTTP/1.1 with its own reason."""
    head = read_response_head(line + b"\r\nContent-Length: 0\r\n\r\n")
    assert (head.status, head.status_line) == (int(line[9:12]), status_line)


def test_an_empty_line_before_a_request_is_read_over() -> None:
    """Some clients end a body with a CRLF that is not part of it (RFC 9112 section 2.2)."""
    assert read_request_head(b"\r\nGET /v2 HTTP/1.1\r\nHost: a\r\n\r\n").target == b"/v2"


@pytest.mark.parametrize("text, length", [(b"0", 0), (b"12", 12), (b"007", 7), (b"9" * 18, 10**18 - 1)])
def test_lengths(text: bytes, length: int) -> None:
    """A length consists of digits only."""
    assert read_length(text) == length


@given(st.binary(max_size=20))
def test_other_lengths(text: bytes) -> None:
    """A text with anything but digits is not a length, even where Python's `int` accepts it."""
    if re.fullmatch(rb"[0-9]{1,18}", text):
        assert read_length(text) == int(text)
    else:
        with pytest.raises(ValueError):
            read_length(text)


@given(st.binary(max_size=80))
def test_garbage_is_refused_by_its_kind(garbage: bytes) -> None:
    """Any malformed head raises GatewayError of the kind for requests or for replies, and no other exception."""
    for read, kind in ((read_request_head, ErrorKind.BAD_REQUEST), (read_response_head, ErrorKind.UPSTREAM_PROTOCOL)):
        for head in (garbage, b"GET / HTTP/1.1\r\nHost: a\r\n" + garbage + b"\r\n\r\n", b"HTTP/1.1 " + garbage):
            try:
                read(head)
            except GatewayError as error:
                assert error.kind is kind

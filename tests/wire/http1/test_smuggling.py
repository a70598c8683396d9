"""Request smuggling: what two servers could read in two ways is refused, and what remains has one meaning.

The cases are the well-known ones of the last twenty years. tests/dataplane/test_limits.py shows end to end that what is
refused here never reaches an engine.
"""

import pytest

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.wire.http1.body import ChunkedDecoder
from gateway.wire.http1.head import read_request_head, read_response_head

REQUEST = b"POST / HTTP/1.1\r\nHost: a\r\n"
REPLY = b"HTTP/1.1 200 OK\r\n"

# Refused in requests and in replies.
FRAMING = {
    "CL.TE": b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n",
    "TE.CL": b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n",
    "CL.0 and TE": b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
    "TE twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "TE twice, one unknown": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n",
    "TE list, chunked last": b"Transfer-Encoding: gzip, chunked\r\n",
    "TE list, chunked first": b"Transfer-Encoding: chunked, gzip\r\n",
    "TE list of chunked": b"Transfer-Encoding: chunked, chunked\r\n",
    "TE list with a comma before": b"Transfer-Encoding: ,chunked\r\n",
    "TE list with a comma after": b"Transfer-Encoding: chunked,\r\n",
    "TE identity": b"Transfer-Encoding: identity\r\n",
    "TE x-chunked": b"Transfer-Encoding: xchunked\r\n",
    "TE with a parameter": b"Transfer-Encoding: chunked;q=1\r\n",
    "TE in quotes": b'Transfer-Encoding: "chunked"\r\n',
    "TE with a vertical tab before": b"Transfer-Encoding:\x0bchunked\r\n",
    "TE with a vertical tab after": b"Transfer-Encoding: chunked\x0b\r\n",
    "TE with a form feed after": b"Transfer-Encoding: chunked\x0c\r\n",
    "TE with a no-break space": b"Transfer-Encoding: chunked\xa0\r\n",
    "TE with a Kelvin sign": "Transfer-Encoding: chun\N{KELVIN SIGN}ed\r\n".encode(),
    "TE with a NUL": b"Transfer-Encoding: chunked\x00\r\n",
    "TE empty": b"Transfer-Encoding:\r\n",
    "TE behind a bare LF": b"X: a\nTransfer-Encoding: chunked\r\n",
    "TE behind a bare CR": b"X: a\rTransfer-Encoding: chunked\r\n",
    "TE on a folded line": b"Transfer-Encoding:\r\n chunked\r\n",
    "TE as a fold of another": b"X: a\r\n Transfer-Encoding: chunked\r\n",
    "TE as a fold by a tab": b"X: a\r\n\tTransfer-Encoding: chunked\r\n",
    "TE with a space before the colon": b"Transfer-Encoding : chunked\r\n",
    "TE with a tab before the colon": b"Transfer-Encoding\t: chunked\r\n",
    "TE with a NUL before the colon": b"Transfer-Encoding\x00: chunked\r\n",
    "TE with a vertical tab before the colon": b"Transfer-Encoding\x0b: chunked\r\n",
    "TE with a no-break space before the colon": b"Transfer-Encoding\xa0: chunked\r\n",
    "TE with a space in its name": b"Transfer Encoding: chunked\r\n",
    "TE without a value": b"Transfer-Encoding\r\n",
    "CL twice, different": b"Content-Length: 3\r\nContent-Length: 4\r\n",
    "CL twice, the same": b"Content-Length: 3\r\nContent-Length: 3\r\n",
    "CL twice, in different case": b"Content-Length: 3\r\ncontent-length: 3\r\n",
    "CL list, the same": b"Content-Length: 3, 3\r\n",
    "CL list, different": b"Content-Length: 3, 4\r\n",
    "CL empty": b"Content-Length:\r\n",
    "CL of spaces": b"Content-Length:  \r\n",
    "CL with a plus": b"Content-Length: +3\r\n",
    "CL with a minus": b"Content-Length: -3\r\n",
    "CL minus zero": b"Content-Length: -0\r\n",
    "CL in hexadecimal": b"Content-Length: 0x3\r\n",
    "CL with an exponent": b"Content-Length: 1e1\r\n",
    "CL with a point": b"Content-Length: 3.0\r\n",
    "CL with an underscore": b"Content-Length: 1_0\r\n",
    "CL with a space inside": b"Content-Length: 1 0\r\n",
    "CL with a vertical tab after": b"Content-Length: 3\x0b\r\n",
    "CL with a semicolon": b"Content-Length: 3;\r\n",
    "CL in quotes": b'Content-Length: "3"\r\n',
    "CL in Arabic digits": "Content-Length: \N{ARABIC-INDIC DIGIT THREE}\r\n".encode(),
    "CL with a superscript": b"Content-Length: \xb3\r\n",
    "CL of 2 ** 63": b"Content-Length: 9223372036854775808\r\n",
    "CL of 2 ** 64": b"Content-Length: 18446744073709551616\r\n",
    "CL of 2 ** 64 + 3": b"Content-Length: 18446744073709551619\r\n",
    "CL on two lines": b"Content-Length: 1\r\n 0\r\n",
    "CL with a space before the colon": b"Content-Length : 3\r\n",
    "CL behind a bare LF": b"X: a\nContent-Length: 3\r\n",
    "a bare CR in a value": b"X: a\rb\r\n",
    "a bare CR at the end of a value": b"X: a\r\r\n",
    "a NUL in a value": b"X: a\x00b\r\n",
    "a control character in a value": b"X: a\x01b\r\n",
    "a delete in a value": b"X: a\x7fb\r\n",
    "an empty name": b": a\r\n",
    "a space as a name": b" : a\r\n",
    "a name in two words": b"a b: c\r\n",
    "a name with a letter outside ASCII": b"X\xe9: a\r\n",
    "a name with a bracket": b"X[]: a\r\n",
    "no colon": b"X\r\n",
}
REQUESTS = {
    "two Hosts": REQUEST + b"Host: b\r\n\r\n",
    "two Hosts that agree": REQUEST + b"Host: a\r\n\r\n",
    "no Host": b"POST / HTTP/1.1\r\n\r\n",
    "no Host, though the target has one": b"POST http://a/ HTTP/1.1\r\n\r\n",
    "TE in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "an unknown expectation": REQUEST + b"Expect: 200-ok\r\n\r\n",
    "two expectations": REQUEST + b"Expect: 100-continue\r\nExpect: 100-continue\r\n\r\n",
    "the length of the JSON twice": REQUEST + b"Inference-Header-Content-Length: 1\r\n" * 2 + b"\r\n",
    "a space before the first field": b"POST / HTTP/1.1\r\n Host: a\r\n\r\n",
    "a space before the method": b" POST / HTTP/1.1\r\nHost: a\r\n\r\n",
    "two spaces before the target": b"POST  / HTTP/1.1\r\nHost: a\r\n\r\n",
    "two spaces after the target": b"POST /  HTTP/1.1\r\nHost: a\r\n\r\n",
    "a tab after the method": b"POST\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "a space in the target": b"POST /a HTTP/1.1 HTTP/1.1\r\nHost: a\r\n\r\n",
    "a NUL in the target": b"POST /\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
    "a byte outside ASCII in the target": b"POST /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    "a bare LF after the request line": b"POST / HTTP/1.1\nHost: a\r\n\r\n",
    "a bare LF in the request line": b"POST /\nHost: a HTTP/1.1\r\n\r\n",
    "a space after the version": b"POST / HTTP/1.1 \r\nHost: a\r\n\r\n",
    "no version": b"GET /\r\nHost: a\r\n\r\n",
    "HTTP/0.9": b"GET / HTTP/0.9\r\nHost: a\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: a\r\n\r\n",
    "HTTP/2": b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a version of two digits": b"GET / HTTP/1.10\r\nHost: a\r\n\r\n",
    "a version in lower case": b"GET / http/1.1\r\nHost: a\r\n\r\n",
    "another protocol that llhttp knows": b"GET / RTSP/1.0\r\nHost: a\r\n\r\n",
    "and another": b"SOURCE / ICE/1.0\r\nHost: a\r\n\r\n",
    "a method in lower case": b"post / HTTP/1.1\r\nHost: a\r\n\r\n",
    "an unknown method": b"GPOST / HTTP/1.1\r\nHost: a\r\n\r\n",
}
REPLIES = {
    "an empty line before": b"\r\nHTTP/1.1 200 OK\r\n\r\n",
    "another protocol": b"ICE/1.0 200 OK\r\n\r\n",
    "HTTP/2": b"HTTP/2.0 200 OK\r\n\r\n",
    "HTTP/0.9": b"HTTP/0.9 200 OK\r\n\r\n",
    "a status below 100, which is no interim reply": b"HTTP/1.1 099 OK\r\n\r\n",
    "a status of two digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "a status of four digits": b"HTTP/1.1 2000 OK\r\n\r\n",
    "a signed status": b"HTTP/1.1 +20 OK\r\n\r\n",
    "two spaces": b"HTTP/1.1  200 OK\r\n\r\n",
    "a NUL in the reason": b"HTTP/1.1 200 O\x00K\r\n\r\n",
    "a bare CR in the reason": b"HTTP/1.1 200 O\rK\r\n\r\n",
    "a bare LF after the reason": b"HTTP/1.1 200 OK\nX: a\r\n\r\n",
    "no HTTP at all": b"220 mail.example ESMTP\r\n\r\n",
}


@pytest.mark.parametrize("fields", FRAMING.values(), ids=FRAMING)
def test_ambiguous_fields_are_refused(fields: bytes) -> None:
    """A field that two servers could read differently is rejected in requests and in replies."""
    with pytest.raises(GatewayError, match="malformed request: ") as refused:
        read_request_head(REQUEST + fields + b"\r\n")
    assert refused.value.kind is ErrorKind.BAD_REQUEST
    with pytest.raises(GatewayError, match="the engine's reply is malformed: ") as refused:
        read_response_head(REPLY + fields + b"\r\n")
    assert refused.value.kind is ErrorKind.UPSTREAM_PROTOCOL


@pytest.mark.parametrize("head", REQUESTS.values(), ids=REQUESTS)
def test_ambiguous_requests_are_refused(head: bytes) -> None:
    """An ambiguous request line, and a field that requests must have or must not have, is rejected."""
    with pytest.raises(GatewayError) as refused:
        read_request_head(head)
    assert refused.value.kind is ErrorKind.BAD_REQUEST


@pytest.mark.parametrize("head", REPLIES.values(), ids=REPLIES)
def test_ambiguous_replies_are_refused(head: bytes) -> None:
    """A reply that does not begin like one of HTTP/1.1 or HTTP/1.0 is rejected."""
    with pytest.raises(GatewayError) as refused:
        read_response_head(head)
    assert refused.value.kind is ErrorKind.UPSTREAM_PROTOCOL


@pytest.mark.parametrize(
    "fields, body",
    [
        (b"", 0),
        (b"Content-Length: 3\r\n", 3),
        (b"Content-Length:3\r\n", 3),
        (b"Content-Length:\t 3 \t\r\n", 3),
        (b"content-LENGTH: 003\r\n", 3),
        (b"Content-Length: 999999999999999999\r\n", 999_999_999_999_999_999),
        (b"Transfer-Encoding: chunked\r\n", None),
        (b"TRANSFER-encoding:\tChunKed \r\n", None),
        # Fields whose names only resemble framing fields do not frame anything.
        (b"Transfer_Encoding: chunked\r\n", 0),
        (b"Content_Length: 3\r\n", 0),
        (b"X-Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", 3),
        (b"Trailer: Content-Length\r\nContent-Length: 3\r\n", 3),
        # `Connection` cannot remove framing fields.
        (b"Connection: content-length\r\nContent-Length: 3\r\n", 3),
        (b"Connection: close, Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n", None),
        (b"Connection: host\r\n", 0),
        # An upgrade offer is ignored and does not change the framing.
        (b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 3\r\n", 3),
        (b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n", None),
        (b"Upgrade: h2c\r\n", 0),
    ],
)
def test_what_is_not_refused_has_one_meaning(fields: bytes, body: int | None) -> None:
    """A request's body has the length of its one framing field, and hop-by-hop fields are not forwarded."""
    head = read_request_head(REQUEST + fields + b"\r\n")
    assert head.length == body
    assert head.value(b"host") == b"a"
    assert (head.value(b"content-length") is not None) is (b"content-length:" in fields.lower())
    assert not {b"transfer-encoding", b"upgrade", b"connection", b"trailer"} & {name for name, _ in head.fields}


@pytest.mark.parametrize(
    "line, target",
    [
        (b"GET /v2?a=b HTTP/1.1", b"/v2?a=b"),
        (b"GET http://b/v2 HTTP/1.1", b"/v2"),
        (b"GET https://user@b:8000/v2?a HTTP/1.1", b"/v2?a"),
        (b"GET HTTP://b?a HTTP/1.1", b"/?a"),
        (b"GET http://b HTTP/1.1", b"/"),
        (b"GET //b/v2 HTTP/1.1", b"//b/v2"),
        (b"OPTIONS * HTTP/1.1", b"/*"),
        (b"GET * HTTP/1.1", b"/*"),
        (b"GET ftp://b/v2 HTTP/1.1", b"/ftp://b/v2"),
        (b"CONNECT b:443 HTTP/1.1", b"/b:443"),
        (b"CONNECT /v2 HTTP/1.1", b"/v2"),
    ],
)
def test_a_target_is_a_path(line: bytes, target: bytes) -> None:
    """A target in absolute form is reduced to its path, whatever host it names; other forms match no path. CONNECT
    opens no tunnel: the next bytes are a request."""
    head = read_request_head(line + b"\r\nHost: a\r\n\r\n")
    assert (head.target, head.length, head.keep_alive) == (target, 0, True)


CHUNKS = {
    "no number": b"x\r\nabc\r\n0\r\n\r\n",
    "nothing": b"\r\nabc\r\n0\r\n\r\n",
    "0x": b"0x3\r\nabc\r\n0\r\n\r\n",
    "a plus": b"+3\r\nabc\r\n0\r\n\r\n",
    "a minus": b"-3\r\nabc\r\n0\r\n\r\n",
    "minus zero": b"-0\r\n\r\n",
    "an underscore": b"1_0\r\n0123456789abcdef\r\n0\r\n\r\n",
    "Arabic digits": "\N{ARABIC-INDIC DIGIT THREE}\r\nabc\r\n0\r\n\r\n".encode(),
    "full-width digits": "\N{FULLWIDTH DIGIT THREE}\r\nabc\r\n0\r\n\r\n".encode(),
    "a space before": b" 3\r\nabc\r\n0\r\n\r\n",
    "a space after": b"3 \r\nabc\r\n0\r\n\r\n",
    "a tab after": b"3\t\r\nabc\r\n0\r\n\r\n",
    "a vertical tab after": b"3\x0b\r\nabc\r\n0\r\n\r\n",
    "a NUL after": b"3\x00\r\nabc\r\n0\r\n\r\n",
    "a comma": b"3,\r\nabc\r\n0\r\n\r\n",
    "a colon": b"3: a\r\nabc\r\n0\r\n\r\n",
    "seventeen digits": b"00000000000000003\r\nabc\r\n0\r\n\r\n",
    "2 ** 64 + 3": b"10000000000000003\r\nabc\r\n0\r\n\r\n",
    "a bare LF after the size": b"3\nabc\r\n0\r\n\r\n",
    "a bare CR after the size": b"3\rabc\r\n0\r\n\r\n",
    "a CR too many": b"3\r\r\nabc\r\n0\r\n\r\n",
    "a bare LF after the data": b"3\r\nabc\n0\r\n\r\n",
    "no CRLF after the data": b"3\r\nabc0\r\n\r\n",
    "two CRLFs after the data": b"3\r\nabc\r\n\r\n0\r\n\r\n",
    "data longer than its size": b"3\r\nabcd\r\n0\r\n\r\n",
    "data shorter than its size": b"4\r\nabc\r\n0\r\n\r\n",
    "a bare LF after the last size": b"0\n\r\n",
    "a bare LF at the end": b"0\r\n\n",
    "an extension with a bare LF": b"3;a\nb\r\nabc\r\n0\r\n\r\n",
    "an extension with a bare CR": b"3;a\rb\r\nabc\r\n0\r\n\r\n",
    "an extension with a NUL": b"3;a\x00\r\nabc\r\n0\r\n\r\n",
    "an extension with a control character": b"3;a\x1b[2J\r\nabc\r\n0\r\n\r\n",
    "an extension that hides in a bare LF": b"3;\n0\r\n\r\nGET /hidden HTTP/1.1\r\n\r\n",
    "an extension without end": b"3;" + b"a" * 300,
    "an extension that is too long": b"3;" + b"a" * 300 + b"\r\nabc\r\n0\r\n\r\n",
    "a trailer without a colon": b"0\r\nContent-Length\r\n\r\n",
    "a trailer with a space before the colon": b"0\r\nX : a\r\n\r\n",
    "a trailer without a name": b"0\r\n: a\r\n\r\n",
    "a folded trailer": b"0\r\nX: a\r\n b\r\n\r\n",
    "a trailer with a bare LF": b"0\r\nX: a\nY: b\r\n\r\n",
    "a trailer with a NUL": b"0\r\nX: \x00\r\n\r\n",
    "a trailer that is too long": b"0\r\nX: " + b"a" * 9000 + b"\r\n\r\n",
    "a trailer without end": b"0\r\nX: " + b"a" * 9000,
    "trailers that are too many": b"0\r\n" + b"X: aaaa\r\n" * 2000 + b"\r\n",
}


@pytest.mark.parametrize("body", CHUNKS.values(), ids=CHUNKS)
def test_ambiguous_chunks_are_refused(body: bytes) -> None:
    """A chunk with an ambiguous size or end is rejected, in one piece or byte by byte, and the fast paths do not accept
    it."""
    with pytest.raises(ValueError, match="chunk"):
        ChunkedDecoder().feed(body)
    slow = ChunkedDecoder()
    with pytest.raises(ValueError, match="chunk"):
        for byte in body:
            slow.feed(bytes([byte]))
    assert not ChunkedDecoder().takes_whole(body)
    assert not ChunkedDecoder().takes_plain_chunk(body)


def test_trailers_carry_nothing_past() -> None:
    """Trailers that look like framing fields are skipped: they are neither data nor the next request."""
    decoder = ChunkedDecoder()
    body = b"3\r\nabc\r\n0\r\nContent-Length: 99\r\nTransfer-Encoding: x\r\nHost: b\r\n\r\n"
    assert decoder.feed(body + b"GET / HTTP/1.1\r\n") == b"abc"
    assert (decoder.has_ended, decoder.tail) == (True, b"GET / HTTP/1.1\r\n")

"""Requests of well-formed frames that are malformed messages, by section of RFC 9113, section 8."""

from gateway.wire.http2.fields import Field
from tests.wire.http2.sides import REQUEST, data, headers

OPEN = headers(1)


def request(*fields: Field, without: bytes = b"", ended: bool = True, stream_id: int = 1) -> bytes:
    """A request with these fields after the usual ones, or in their place."""
    names = {name for name, _ in fields}
    usual = [field for field in REQUEST if field[0] not in names | {without}]
    pseudo = [field for field in fields if field[0].startswith(b":")]
    return headers(stream_id, usual + pseudo + [field for field in fields if field not in pseudo], ended=ended)


# Each is a stream error, PROTOCOL_ERROR.
MALFORMED = [
    ("8.1", OPEN + headers(1, [(b"a", b"b")])),  # trailers that do not end it
    ("8.1", OPEN + headers(1, [(b":path", b"/")], ended=True)),
    ("8.1", OPEN + headers(1, [(b"a", b"b"), (b":status", b"200")], ended=True)),
    ("8.1", OPEN + headers(1, [(b"A", b"b")], ended=True)),
    ("8.1.1", request((b"content-length", b"1"))),
    ("8.1.1", request((b"content-length", b"3"), ended=False) + data(1, b"ab", ended=True)),
    ("8.1.1", request((b"content-length", b"3"), ended=False) + data(1, b"abcd")),
    ("8.1.1", request((b"content-length", b"3"), ended=False) + headers(1, b"\x00\x01a\x01b", ended=True)),
    ("8.1.1", request((b"content-length", b"3"), ended=False) + data(1, b"ab") + data(1, b"cd")),
    ("8.1.1", request((b"content-length", b"x"), ended=False)),
    ("8.1.1", request((b"content-length", b"-1"), ended=False)),
    ("8.1.1", request((b"content-length", b""), ended=False)),
    ("8.1.1", request((b"content-length", b"1"), (b"content-length", b"2"), ended=False)),
    ("8.1.1", request((b"content-length", b"9" * 19), ended=False)),
    ("8.2.1", request((b"Upper", b"a"))),
    ("8.2.1", request((b"", b"a"))),
    ("8.2.1", request((b"a b", b"a"))),
    ("8.2.1", request((b"a:b", b"a"))),
    ("8.2.1", request((b"a\r\nb", b"a"))),
    ("8.2.1", request((b"a\x7f", b"a"))),
    ("8.2.1", request((b"\xc3\xa4", b"a"))),
    ("8.2.1", request((b"a\0", b"a"))),
    ("8.2.1", request((b"a", b"b\r\nc: d"))),
    ("8.2.1", request((b"a", b"b\n"))),
    ("8.2.1", request((b"a", b"b\rc"))),
    ("8.2.1", request((b"a", b"b\0c"))),
    ("8.2.1", request((b"a", b" b"))),
    ("8.2.1", request((b"a", b"b "))),
    ("8.2.1", request((b"a", b"\tb"))),
    ("8.2.1", request((b"a", b"b\t"))),
    ("8.2.1", request((b"a", b" "))),
    ("8.2.1", request((b"b", b"ok"), (b"a", b"b\x01c"), (b"c", b"ok"))),
    ("8.2.1", request((b"a", b"b\x7f"))),
    ("8.2.2", request((b"connection", b"close"))),
    ("8.2.2", request((b"keep-alive", b"1"))),
    ("8.2.2", request((b"proxy-connection", b"close"))),
    ("8.2.2", request((b"transfer-encoding", b"chunked"))),
    ("8.2.2", request((b"upgrade", b"h2c"))),
    ("8.2.2", request((b"te", b"gzip"))),
    ("8.2.2", request((b"te", b"trailers, gzip"))),
    ("8.3", headers(1, [REQUEST[0], (b"a", b"b"), *REQUEST[1:]])),  # out of order
    ("8.3", headers(1, [*REQUEST, REQUEST[0]])),  # twice
    ("8.3", headers(1, [*REQUEST, (b":path", b"/b")])),
    ("8.3", headers(1, [*REQUEST, REQUEST[3]])),
    ("8.3", request((b":protocol", b"websocket"))),  # not negotiated
    ("8.3", request((b":unknown", b"a"))),
    ("8.3", request((b":", b"a"))),
    ("8.3", request((b"::path", b"a"))),
    ("8.3", request((b":status", b"200"))),
    ("8.3.1", request(without=b":method")),
    ("8.3.1", request(without=b":scheme")),
    ("8.3.1", request(without=b":path")),
    ("8.3.1", headers(1, b"", ended=True)),  # none at all
    ("8.3.1", request((b":path", b""))),
    ("8.3.1", request((b":method", b""))),
    ("8.3.1", request((b":scheme", b""))),
    ("8.3.1", request((b":path", b"a"))),
    ("8.3.1", request((b":path", b"http://host/a"))),
    ("8.3.1", request((b":path", b"/a b"))),
    ("8.3.1", request((b":path", b"/a#b"))),
    ("8.3.1", request((b":path", b"*"))),  # a POST in the form of OPTIONS
    ("8.3.1", request((b":method", b"PO ST"))),
    ("8.3.1", request((b":method", b"POST/a"))),
    ("8.3.1", request((b":scheme", b"ht tp"))),
    ("8.3.1", request((b":authority", b"user@host"))),
    ("8.3.1", request((b":authority", b"ho st"))),
    ("8.3.1", request((b":authority", b"host/a"))),
    ("8.3.1", request((b"host", b"other"))),
    ("8.3.1", request((b"host", b"host"), (b"host", b"other"))),
    ("8.5", headers(1, [(b":method", b"CONNECT"), (b":authority", b"host")])),  # not served here
    ("8.5", request((b":method", b"CONNECT"))),
]

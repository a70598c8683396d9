"""Protocol violations by section of RFC 9113: each is answered with the error that the RFC names."""

import pytest

from gateway.wire.http2 import frames
from gateway.wire.http2.connection import Opening
from gateway.wire.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    MAX_WINDOW,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    ErrorCode,
    Setting,
    frame,
    rst_stream,
    window_update,
)
from gateway.wire.http2.hpack import literals
from gateway.wire.http2.peer_state import PeerState
from gateway.wire.http2.state import Http2Limits
from tests.wire.http2.malformed import MALFORMED, request
from tests.wire.http2.sides import OPENING, REPLY, REQUEST, Side, client, data, errors, headers, server

CONNECTION = 0  # the stream id of a connection error
PROTOCOL = ErrorCode.PROTOCOL_ERROR
FLOW = ErrorCode.FLOW_CONTROL_ERROR
CLOSED = ErrorCode.STREAM_CLOSED
SIZE = ErrorCode.FRAME_SIZE_ERROR
COMPRESSION = ErrorCode.COMPRESSION_ERROR
REFUSED = ErrorCode.REFUSED_STREAM
CALM = ErrorCode.ENHANCE_YOUR_CALM

BLOCK = literals(REQUEST)
OPEN = headers(1)
ASKED = headers(1, ended=True)


def setting(key: int, value: int) -> bytes:
    return frame(SETTINGS, 0, 0, key.to_bytes(2) + value.to_bytes(4))


# Bytes in place of the client's preface and SETTINGS.
UNOPENED = [
    ("3.4", b"GET / HTTP/1.1\r\n\r\n"),
    ("3.4", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX"),
    ("3.4", frames.PREFACE + headers(1)),
    ("3.4", frames.PREFACE + frame(PING, 0, 0, bytes(8))),
    ("3.4", frames.PREFACE + frame(SETTINGS, ACK, 0)),
    ("3.4", frames.PREFACE + data(1, b"x")),
    ("3.4", frames.PREFACE + frame(0x77, 0, 0)),
    ("3.4", frames.PREFACE + window_update(0, 1)),
]


@pytest.mark.parametrize("section, sent", UNOPENED)
def test_what_opens_no_connection(section: str, sent: bytes) -> None:
    """A client's first bytes must be the preface and SETTINGS."""
    side = Side(is_client=False).feed(sent)
    assert errors(side.take()) == [(CONNECTION, PROTOCOL)]
    assert side.http2.failed is not None and not side.received


@pytest.mark.parametrize("sent", [frame(SETTINGS, ACK, 0), frame(PING, 0, 0, bytes(8)), headers(1, REPLY)])
def test_what_opens_no_reply(sent: bytes) -> None:
    """Section 3.4: a server's first frame must be SETTINGS."""
    side = Side(is_client=True)
    received = side.open()
    side.feed(sent)
    assert errors(side.take()[len(frames.PREFACE) :]) == [(CONNECTION, PROTOCOL)]
    assert received.reset == ErrorCode.INTERNAL_ERROR


# Sent to a server: section, frames, stream (0: the connection), error code.
TO_SERVERS = [
    # Frames
    ("4.2", frame(DATA, 0, 1, bytes(70_000)), CONNECTION, SIZE),
    ("4.2", OPEN + frame(DATA, 0, 1, bytes(65_537)), CONNECTION, SIZE),
    ("4.2", frame(HEADERS, END_HEADERS, 1, bytes(65_537)), CONNECTION, SIZE),
    ("4.2", frame(0x55, 0, 0, bytes(65_537)), CONNECTION, SIZE),
    ("4.3", headers(1, b"\x80"), CONNECTION, COMPRESSION),  # index 0
    ("4.3", headers(1, b"\xbe"), CONNECTION, COMPRESSION),  # a missing entry
    ("4.3", headers(1, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x0f"), CONNECTION, COMPRESSION),
    ("4.3", headers(1, b"\x40\x05ab"), CONNECTION, COMPRESSION),  # ends too early
    ("4.3", headers(1, b"\x00\x01a"), CONNECTION, COMPRESSION),
    ("4.3", headers(1, BLOCK + b"\x20"), CONNECTION, COMPRESSION),  # a table size behind fields
    ("4.3", headers(1, b"\x3f\xe2\x1f" + BLOCK), CONNECTION, COMPRESSION),  # 4097 bytes of table
    ("4.3", headers(1, b"\x00\x81\xff\x00"), CONNECTION, COMPRESSION),  # Huffman: padding of eight bits
    ("4.3", headers(1, b"\x00\x84\xff\xff\xff\xff\x00"), CONNECTION, COMPRESSION),  # Huffman: the end of strings
    ("4.3", OPEN + headers(1, b"\xbe", ended=True), CONNECTION, COMPRESSION),  # in trailers too
    ("4.3", ASKED + headers(1, b"\xbe"), CONNECTION, COMPRESSION),  # on a stream in error too
    # Stream states: idle
    ("5.1", data(1, b"x"), CONNECTION, PROTOCOL),
    ("5.1", rst_stream(1, 8), CONNECTION, PROTOCOL),
    ("5.1", window_update(1, 1), CONNECTION, PROTOCOL),
    ("5.1", OPEN + data(3, b"x"), CONNECTION, PROTOCOL),
    ("5.1", OPEN + window_update(3, 1), CONNECTION, PROTOCOL),
    ("5.1", OPEN + rst_stream(3, 8), CONNECTION, PROTOCOL),
    ("5.1", window_update(2, 1), CONNECTION, PROTOCOL),  # a server's stream id, never opened
    ("5.1", rst_stream(2, 1), CONNECTION, PROTOCOL),
    ("5.1", data(2), CONNECTION, PROTOCOL),
    # half-closed (remote)
    ("5.1", ASKED + data(1, b"x"), 1, CLOSED),
    ("5.1", ASKED + data(1, ended=True), 1, CLOSED),
    ("5.1", ASKED + headers(1, [(b"a", b"b")], ended=True), 1, CLOSED),
    ("5.1", OPEN + data(1, ended=True) + data(1, b"x"), 1, CLOSED),
    ("5.1", OPEN + headers(1, [(b"a", b"b")], ended=True) + headers(1, [(b"a", b"b")], ended=True), 1, CLOSED),
    ("5.1", ASKED + frame(CONTINUATION, END_HEADERS, 1, b""), CONNECTION, PROTOCOL),
    # closed, by the peer's own reset
    ("5.1", OPEN + rst_stream(1, 8) + data(1, b"x"), CONNECTION, CLOSED),
    ("5.1", OPEN + rst_stream(1, 8) + headers(1, ended=True), CONNECTION, CLOSED),
    ("5.1", OPEN + rst_stream(1, 8) + frame(CONTINUATION, END_HEADERS, 1, b""), CONNECTION, PROTOCOL),
    # closed, because a later one was opened
    ("5.1.1", headers(5, ended=True) + headers(3), CONNECTION, CLOSED),
    ("5.1.1", headers(5, ended=True) + data(3, b"x"), CONNECTION, CLOSED),
    ("5.1.1", headers(2), CONNECTION, PROTOCOL),
    ("5.1.1", OPEN + headers(4), CONNECTION, PROTOCOL),
    ("5.1.1", headers(0), CONNECTION, PROTOCOL),
    ("5.1.2", headers(1) + headers(3) + headers(5), 5, REFUSED),
    # An extension in the middle of a block
    ("5.5", headers(1, flags=0) + frame(0x77, 0, 0), CONNECTION, PROTOCOL),
    ("5.5", headers(1, flags=0) + frame(0x77, 0, 1), CONNECTION, PROTOCOL),
    # DATA
    ("6.1", data(0, b"x"), CONNECTION, PROTOCOL),
    ("6.1", OPEN + frame(DATA, PADDED, 1, b""), CONNECTION, PROTOCOL),
    ("6.1", OPEN + frame(DATA, PADDED, 1, b"\x01"), CONNECTION, PROTOCOL),
    ("6.1", OPEN + frame(DATA, PADDED, 1, b"\x05abcd"), CONNECTION, PROTOCOL),
    # HEADERS
    ("6.2", frame(HEADERS, END_HEADERS | PADDED, 1, b""), CONNECTION, PROTOCOL),
    ("6.2", frame(HEADERS, END_HEADERS | PADDED, 1, b"\x09" + BLOCK[:8]), CONNECTION, PROTOCOL),
    ("6.2", frame(HEADERS, END_HEADERS | PADDED | WITH_PRIORITY, 1, b"\x03" + bytes(5)), CONNECTION, PROTOCOL),
    ("6.2", frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, bytes(4)), CONNECTION, SIZE),
    ("6.2", headers(1, flags=0) + data(1, b"x"), CONNECTION, PROTOCOL),
    ("6.2", headers(1, flags=0) + headers(3), CONNECTION, PROTOCOL),
    ("6.2", headers(1, flags=0) + window_update(0, 1), CONNECTION, PROTOCOL),
    ("6.2", headers(1, flags=0) + frame(CONTINUATION, END_HEADERS, 3, b""), CONNECTION, PROTOCOL),
    # PRIORITY
    ("6.3", frame(PRIORITY, 0, 0, bytes(5)), CONNECTION, PROTOCOL),
    ("6.3", OPEN + frame(PRIORITY, 0, 1, bytes(4)), 1, SIZE),
    ("6.3", OPEN + frame(PRIORITY, 0, 1, bytes(6)), 1, SIZE),
    ("6.3", frame(PRIORITY, 0, 7, bytes(4)), CONNECTION, SIZE),  # no RST_STREAM may be sent on an idle stream
    ("6.3", headers(1, flags=0) + frame(PRIORITY, 0, 1, bytes(5)), CONNECTION, PROTOCOL),
    # RST_STREAM
    ("6.4", rst_stream(0, 8), CONNECTION, PROTOCOL),
    ("6.4", OPEN + frame(RST_STREAM, 0, 1, bytes(3)), CONNECTION, SIZE),
    ("6.4", OPEN + frame(RST_STREAM, 0, 1, bytes(5)), CONNECTION, SIZE),
    # SETTINGS
    ("6.5", frame(SETTINGS, ACK, 0, bytes(6)), CONNECTION, SIZE),
    ("6.5", OPEN + frame(SETTINGS, 0, 1), CONNECTION, PROTOCOL),
    ("6.5", frame(SETTINGS, 0, 0, bytes(5)), CONNECTION, SIZE),
    ("6.5", frame(SETTINGS, 0, 0, bytes(7)), CONNECTION, SIZE),
    ("6.5.2", setting(Setting.ENABLE_PUSH, 2), CONNECTION, PROTOCOL),
    ("6.5.2", setting(Setting.INITIAL_WINDOW_SIZE, 2**31), CONNECTION, FLOW),
    ("6.5.2", setting(Setting.INITIAL_WINDOW_SIZE, 2**32 - 1), CONNECTION, FLOW),
    ("6.5.2", setting(Setting.MAX_FRAME_SIZE, 16_383), CONNECTION, PROTOCOL),
    ("6.5.2", setting(Setting.MAX_FRAME_SIZE, 2**24), CONNECTION, PROTOCOL),
    ("6.5.2", setting(Setting.MAX_FRAME_SIZE, 0), CONNECTION, PROTOCOL),
    # PUSH_PROMISE: clients cannot push
    ("8.4", OPEN + frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + BLOCK), CONNECTION, PROTOCOL),
    ("6.6", frame(PUSH_PROMISE, END_HEADERS, 0, b"\0\0\0\2" + BLOCK), CONNECTION, PROTOCOL),
    # PING
    ("6.7", frame(PING, 0, 1, bytes(8)), CONNECTION, PROTOCOL),
    ("6.7", frame(PING, 0, 0, bytes(7)), CONNECTION, SIZE),
    ("6.7", frame(PING, 0, 0, bytes(9)), CONNECTION, SIZE),
    ("6.7", frame(PING, ACK, 0, b""), CONNECTION, SIZE),
    # GOAWAY
    ("6.8", frame(GOAWAY, 0, 1, bytes(8)), CONNECTION, PROTOCOL),
    ("6.8", frame(GOAWAY, 0, 0, bytes(7)), CONNECTION, SIZE),
    # WINDOW_UPDATE
    ("6.9", window_update(0, 0), CONNECTION, PROTOCOL),
    ("6.9", frame(WINDOW_UPDATE, 0, 0, b"\x80\0\0\0"), CONNECTION, PROTOCOL),  # the reserved bit is ignored
    ("6.9", OPEN + window_update(1, 0), 1, PROTOCOL),
    ("6.9", frame(WINDOW_UPDATE, 0, 0, bytes(3)), CONNECTION, SIZE),
    ("6.9", OPEN + frame(WINDOW_UPDATE, 0, 1, bytes(5)), CONNECTION, SIZE),
    ("6.9.1", window_update(0, MAX_WINDOW), CONNECTION, FLOW),
    ("6.9.1", OPEN + window_update(1, MAX_WINDOW), 1, FLOW),
    ("6.9.1", OPEN + 5 * data(1, bytes(60_000)), 1, FLOW),  # more than the window
    ("6.9.1", OPEN + 5 * data(1, bytes(59_800), padding=255), 1, FLOW),  # padding counts
    ("6.9.2", OPEN + window_update(1, 2**30) + setting(Setting.INITIAL_WINDOW_SIZE, 2**30), CONNECTION, FLOW),
    # CONTINUATION
    ("6.10", frame(CONTINUATION, END_HEADERS, 1, BLOCK), CONNECTION, PROTOCOL),
    ("6.10", frame(CONTINUATION, END_HEADERS, 0, BLOCK), CONNECTION, PROTOCOL),
    ("6.10", OPEN + frame(CONTINUATION, END_HEADERS, 1, BLOCK), CONNECTION, PROTOCOL),
    ("6.10", headers(1, flags=0) + frame(CONTINUATION, END_HEADERS, 0, b""), CONNECTION, PROTOCOL),
    ("6.10", OPEN + data(1) + frame(CONTINUATION, END_HEADERS, 1, b""), CONNECTION, PROTOCOL),
    # Floods of one block
    ("10.5.1", request((b"a", b"b" * 65_500)), CONNECTION, CALM),
    ("10.5.1", headers(1, flags=0) + 65 * frame(CONTINUATION, 0, 1, b""), CONNECTION, CALM),
]
TO_SERVERS += [(section, sent, 1, PROTOCOL) for section, sent in MALFORMED]
FEW = Http2Limits(max_streams=2)


@pytest.mark.parametrize("section, sent, stream_id, code", TO_SERVERS)
def test_what_clients_may_not_send(section: str, sent: bytes, stream_id: int, code: ErrorCode) -> None:
    """A client's violation ends the stream or the connection with the right code, once; each open stream is reset."""
    side = server(FEW)
    side.credits = False
    side.feed(sent)
    assert errors(side.take()) == [(stream_id, code)]
    if stream_id:
        assert side.http2.failed is None and stream_id not in side.http2.streams
        side.feed(frame(PING, 0, 0, b"01234567"))
        assert side.take() == frame(PING, ACK, 0, b"01234567")
    else:
        assert side.http2.failed is not None and not side.http2.streams
        side.feed(frame(PING, 0, 0, b"01234567"))
        assert side.take() == b""
        assert all(
            received.reset is not None
            for received in side.received.values()
            if received.stream.peer_state is not PeerState.ENDED
        )


@pytest.mark.parametrize("section, sent, stream_id, code", TO_SERVERS)
def test_however_it_is_cut(section: str, sent: bytes, stream_id: int, code: ErrorCode) -> None:
    """A violation that arrives in small pieces has the same result."""
    size = 1 if len(sent) < 2000 else 997
    side = server(FEW)
    side.credits = False
    side.feed(*(sent[at : at + size] for at in range(0, len(sent), size)))
    assert errors(side.take()) == [(stream_id, code)]


# Sent to a client on the one stream that it has opened.
ANSWER = headers(1, REPLY)
TO_CLIENTS = [
    ("5.1", data(3, b"x"), CONNECTION, PROTOCOL),  # not opened yet
    ("5.1", headers(3, REPLY), CONNECTION, PROTOCOL),
    ("5.1", headers(2, REPLY), CONNECTION, PROTOCOL),  # servers open no streams
    ("5.1", data(2, b"x"), CONNECTION, PROTOCOL),
    ("5.1", rst_stream(1, 8) + headers(1, REPLY), CONNECTION, CLOSED),
    ("6.5.2", setting(Setting.ENABLE_PUSH, 1), CONNECTION, PROTOCOL),
    ("6.6", frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + BLOCK), CONNECTION, PROTOCOL),
    ("8.1", data(1, b"x"), 1, PROTOCOL),  # before its head
    ("8.1", headers(1, [(b":status", b"103")], ended=True), 1, PROTOCOL),
    ("8.1", headers(1, [(b":status", b"103")]) + data(1, b"x"), 1, PROTOCOL),
    ("8.1", ANSWER + headers(1, [(b"grpc-status", b"0")]), 1, PROTOCOL),
    ("8.1", ANSWER + ANSWER, 1, PROTOCOL),
    ("8.1", ANSWER + headers(1, REPLY, ended=True), 1, PROTOCOL),
    ("8.1.1", headers(1, [*REPLY, (b"content-length", b"2")]) + data(1, b"abc"), 1, PROTOCOL),
    ("8.1.1", headers(1, [*REPLY, (b"content-length", b"2")]) + data(1, b"a", ended=True), 1, PROTOCOL),
    ("8.1.1", headers(1, [*REPLY, (b"content-length", b"2")]) + headers(1, [(b"a", b"b")], ended=True), 1, PROTOCOL),
    ("8.2.2", headers(1, [*REPLY, (b"connection", b"close")]), 1, PROTOCOL),
    ("8.2.1", headers(1, [*REPLY, (b"a", b"b\r\n")]), 1, PROTOCOL),
    ("8.3", headers(1, [(b"a", b"b"), *REPLY]), 1, PROTOCOL),
    ("8.3.2", headers(1, []), 1, PROTOCOL),
    ("8.3.2", headers(1, REPLY[1:]), 1, PROTOCOL),
    ("8.3.2", headers(1, [*REPLY[:1], *REPLY]), 1, PROTOCOL),
    ("8.3.2", headers(1, [(b":status", b"20")]), 1, PROTOCOL),
    ("8.3.2", headers(1, [(b":status", b"2000")]), 1, PROTOCOL),
    ("8.3.2", headers(1, [(b":status", b"abc")]), 1, PROTOCOL),
    ("8.3.2", headers(1, [(b":status", b"099")]), 1, PROTOCOL),
    ("8.3.2", headers(1, [(b":status", b"200"), (b":path", b"/")]), 1, PROTOCOL),
    ("8.6", headers(1, [(b":status", b"101")]), 1, PROTOCOL),  # no upgrade is possible
]


@pytest.mark.parametrize("section, sent, stream_id, code", TO_CLIENTS)
def test_what_servers_may_not_send(section: str, sent: bytes, stream_id: int, code: ErrorCode) -> None:
    """A server's violation ends the call or the connection with the right code, and the call's receiver gets a
    reset."""
    side = client()
    received = side.open()
    side.take()
    side.feed(sent)
    assert errors(side.take()) == [(stream_id, code)]
    assert received.reset is not None and not side.http2.streams


@pytest.mark.parametrize("late", [data(1, b"x"), data(1, ended=True), headers(1, REPLY), headers(1, REPLY, ended=True)])
def test_what_servers_may_not_send_behind_the_end(late: bytes) -> None:
    """Section 5.1: a frame on a stream that both sides have ended is a connection error."""
    side = client()
    received = side.open(ended=True)
    side.feed(ANSWER, data(1, ended=True), late)
    assert errors(side.take()) == [(CONNECTION, CLOSED)]
    assert received.outcome == (REPLY, b"", None, True, None)


# Unusual but legal frames.
ALLOWED = [
    ("4.1", frame(PING, 0xFF - ACK, 0, bytes(8))),  # unknown flags
    ("4.1", frame(PING, 0, 1 << 31, bytes(8))),  # the reserved bit
    ("4.1", frame(0x77, 0xFF, 0x7FFFFFFF, b"abc")),
    ("5.1", frame(PRIORITY, 0, 99, bytes(5))),  # of an idle stream
    ("5.1", ASKED + window_update(1, 1) + rst_stream(1, 8) + window_update(1, 1) + rst_stream(1, 8)),
    ("5.1", ASKED + window_update(1, 1) + frame(PRIORITY, 0, 1, bytes(5))),
    ("5.3", frame(PRIORITY, 0, 1, b"\0\0\0\1\0")),  # depends on itself: priorities are ignored
    ("5.4", OPEN + rst_stream(1, 0xDEADBEEF)),  # unknown codes
    ("5.5", frame(0xFE, 0, 1, b"") + OPEN),
    ("6.1", OPEN + frame(DATA, PADDED, 1, b"\x00")),
    ("6.1", OPEN + frame(DATA, PADDED | END_STREAM, 1, b"\x03abc\0\0\0")),
    ("6.2", frame(HEADERS, END_HEADERS | PADDED | WITH_PRIORITY, 1, b"\x02" + bytes(5) + BLOCK + bytes(2))),
    ("6.5.2", setting(0x99, 5)),
    ("6.5.2", setting(Setting.ENABLE_PUSH, 1)),
    ("6.5.2", setting(Setting.MAX_CONCURRENT_STREAMS, 0)),
    ("6.5.2", setting(Setting.HEADER_TABLE_SIZE, 2**32 - 1)),
    ("6.5.3", frame(SETTINGS, ACK, 0)),  # no SETTINGS is outstanding
    ("6.7", frame(PING, ACK, 0, bytes(8))),
    ("6.8", frame(GOAWAY, 0, 0, bytes(8) + b"why")),
    ("6.9", OPEN + window_update(1, MAX_WINDOW - 65_535)),
    (
        "6.10",
        headers(1, b"", flags=0) + 3 * frame(CONTINUATION, 0, 1, b"") + frame(CONTINUATION, END_HEADERS, 1, BLOCK),
    ),
    ("8.1", OPEN + headers(1, b"", ended=True)),  # empty trailers
    ("8.1.1", request((b"content-length", b"0"))),
    ("8.1.1", request((b"content-length", b"3"), (b"content-length", b"3"), ended=False) + data(1, b"abc", ended=True)),
    ("8.2.1", request((b"a", b"")) + request((b"a", b"b\tc \xff"), stream_id=3)),
    ("8.2.2", request((b"te", b"trailers"))),
    ("8.3.1", request((b":method", b"OPTIONS"), (b":path", b"*"))),
    ("8.3.1", request((b":path", b"/a?b=/c?d"))),
    ("8.3.1", request(without=b":authority")),
    ("8.3.1", request((b":scheme", b"grpc+unix"), (b"host", b"HOST"))),
    ("8.3.1", request((b":authority", b"[::1]:8000"))),
]


@pytest.mark.parametrize("section, sent", ALLOWED)
def test_what_clients_may_send(section: str, sent: bytes) -> None:
    """An unusual legal frame is accepted or ignored, and the connection continues."""
    side = server().feed(sent)
    side.feed(headers(101, ended=True))
    assert errors(side.take()) == [] and side.received[101].ended


def test_what_was_on_its_way_when_the_stream_was_reset() -> None:
    """Section 5.1: frames sent before the peer received a reset are ignored, but still update windows and tables."""
    side = server().feed(OPEN)
    side.received[1].stream.reset()
    side.take()
    indexed = literals(REQUEST) + b"\x40\x01a\x01b"
    side.feed(data(1, b"x"), window_update(1, 5), headers(1, indexed, ended=True), rst_stream(1, 8))
    side.feed(headers(3, literals(REQUEST) + b"\xbe", ended=True))
    assert side.take() == b"" and side.received[3].fields == [*REQUEST, (b"a", b"b")]


def test_reset_streams_are_forgotten_by_and_by() -> None:
    """At most a thousand resets are remembered."""
    side = server(Http2Limits(max_resets=5000))
    for stream_id in range(1, 6001, 2):
        side.feed(headers(stream_id))
        side.received[stream_id].stream.reset()
    side.take()
    side.feed(data(5999, b"x"))
    assert side.http2.failed is None
    side.feed(data(1, b"x"))
    assert errors(side.take()) == [(CONNECTION, CLOSED)]


def test_an_unfinished_preface_is_no_error() -> None:
    """The preface may arrive byte by byte."""
    side = Side(is_client=False).feed(*(bytes([byte]) for byte in OPENING[:23]))
    assert side.http2.failed is None and side.http2.opening is Opening.PREFACE
    side.feed(OPENING[23:])
    assert side.http2.opening is Opening.DONE

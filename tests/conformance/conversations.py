"""Exchanges on one connection, byte by byte: partial writes, chunks, pipelining, old HTTP versions."""

from tests.conformance.requests import ADDER, ADDER_JSON
from tests.support.wire import Reply, Wire

CHUNKED = f"POST {ADDER} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
SIZED = f"POST {ADDER} HTTP/1.1\r\nHost: t\r\nContent-Length: {len(ADDER_JSON)}\r\n".encode()
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n"


def chunked_request(wire: Wire) -> list[Reply]:
    wire.send(CHUNKED)
    for start in range(0, len(ADDER_JSON), 50):
        chunk = ADDER_JSON[start : start + 50]
        wire.send(b"%x\r\n%s\r\n" % (len(chunk), chunk))
    wire.send(b"0\r\n\r\n")
    return [wire.read_reply()]


def request_in_pieces(wire: Wire) -> list[Reply]:
    request = SIZED + b"\r\n" + ADDER_JSON
    wire.send(request[:10], request[10:60], request[60:-1], request[-1:])
    return [wire.read_reply()]


def expect_continue(wire: Wire) -> list[Reply]:
    wire.send(SIZED + b"Expect: 100-continue\r\n\r\n")
    assert wire.read_line() == b"HTTP/1.1 100 Continue\r\n"
    assert wire.read_line() == b"\r\n"
    wire.send(ADDER_JSON)
    return [wire.read_reply()]


def two_on_one_connection(wire: Wire) -> list[Reply]:
    wire.send(SIZED + b"\r\n" + ADDER_JSON)
    first = wire.read_reply()
    wire.send(LIVE)
    return [first, wire.read_reply("GET")]


def pipelined(wire: Wire) -> list[Reply]:
    # Two, because Triton drops a request that follows one which it answers at once.
    wire.send(SIZED + b"\r\n" + ADDER_JSON + LIVE)
    return [wire.read_reply(), wire.read_reply("GET")]


def a_request_after_a_refused_one(wire: Wire) -> list[Reply]:
    wire.send(SIZED + b"\r\n" + b"{".ljust(len(ADDER_JSON)))
    first = wire.read_reply()
    wire.send(LIVE)
    return [first, wire.read_reply("GET")]


def http_1_0(wire: Wire) -> list[Reply]:
    wire.send(SIZED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n" + ADDER_JSON)
    reply = wire.read_reply()
    assert wire.is_closed_by_server()
    return [reply]


def http_1_0_kept_alive(wire: Wire) -> list[Reply]:
    wire.send(SIZED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Connection: keep-alive\r\n\r\n" + ADDER_JSON)
    first = wire.read_reply()
    wire.send(LIVE)
    return [first, wire.read_reply("GET")]


def connection_close(wire: Wire) -> list[Reply]:
    wire.send(SIZED + b"Connection: close\r\n\r\n" + ADDER_JSON)
    reply = wire.read_reply()
    assert wire.is_closed_by_server()
    return [reply]


def stream_then_request(wire: Wire) -> list[Reply]:
    body = b'{"text_input":"hello","count":3}'
    head = b"POST /v2/models/repeater/generate_stream HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % len(body)
    wire.send(head + body)
    first = wire.read_reply()
    wire.send(LIVE)
    return [first, wire.read_reply("GET")]


def absolute_target(wire: Wire) -> list[Reply]:
    wire.send(LIVE.replace(b" /v2", b" http://t/v2"))
    return [wire.read_reply("GET")]


CONVERSATIONS = [
    chunked_request,
    request_in_pieces,
    expect_continue,
    two_on_one_connection,
    pipelined,
    a_request_after_a_refused_one,
    http_1_0,
    http_1_0_kept_alive,
    connection_close,
    stream_then_request,
    absolute_target,
]

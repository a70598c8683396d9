"""Peers that cause useless work: their connection ends with ENHANCE_YOUR_CALM, and the memory they occupy is
bounded."""

import sys

import pytest
from hpack import Encoder

from gateway.wire.http2 import frames
from gateway.wire.http2.fields import Field
from gateway.wire.http2.frames import ACK, END_HEADERS, ErrorCode, Setting, frame, rst_stream, settings, window_update
from gateway.wire.http2.hpack import CachedHeaders
from gateway.wire.http2.state import Http2Limits
from tests.wire.http2.sides import REPLY, REQUEST, Side, client, data, errors, headers, server

CALM = ErrorCode.ENHANCE_YOUR_CALM
OPEN = headers(1)
# Far more frames than a client needs in a second.
MANY = 20_000

FLOODS = [
    ("SETTINGS", b"", settings({})),
    ("SETTINGS with values", b"", settings({Setting.INITIAL_WINDOW_SIZE: 5})),
    ("SETTINGS acknowledged", b"", frame(frames.SETTINGS, ACK, 0)),
    ("PING", b"", frame(frames.PING, 0, 0, bytes(8))),
    ("PING answered", b"", frame(frames.PING, ACK, 0, bytes(8))),
    ("PRIORITY", b"", frame(frames.PRIORITY, 0, 1, bytes(5))),
    ("GOAWAY", b"", frames.goaway(0, 0)),
    ("extensions", b"", frame(0x99, 0, 0)),
    ("WINDOW_UPDATE of the connection", b"", window_update(0, 1)),
    ("WINDOW_UPDATE of a stream", OPEN, window_update(1, 1)),
    ("WINDOW_UPDATE of a closed stream", OPEN + rst_stream(1, 8), window_update(1, 1)),
    ("empty DATA", OPEN, data(1)),
    ("DATA that is all padding", OPEN, data(1, padding=200)),
    ("RST_STREAM of a closed stream", OPEN, rst_stream(1, 8)),
]


@pytest.mark.parametrize("is_client", [False, True])
@pytest.mark.parametrize("first, again", [flood[1:] for flood in FLOODS], ids=[flood[0] for flood in FLOODS])
def test_frames_that_bring_nothing(is_client: bool, first: bytes, again: bytes) -> None:
    """Thousands of useless frames a second, of any kind, end the connection of a client or of an engine."""
    if is_client:
        side = client()
        side.open()
        first = headers(1, REPLY) if first == OPEN else first.replace(OPEN, headers(1, REPLY))
    else:
        side = server()
    side.take()
    side.feed(first, again * MANY)
    sent = side.take()
    assert errors(sent)[-1] == (0, CALM)
    assert len(sent) < 400_000 and not side.http2.streams
    assert all(received.reset is not None for received in side.received.values())


@pytest.mark.parametrize("again", [flood[2] for flood in FLOODS[:8]], ids=[flood[0] for flood in FLOODS[:8]])
def test_now_and_then_they_are_welcome(again: bytes) -> None:
    """A few hundred such frames a second are accepted indefinitely."""
    side = server()
    for _ in range(60):
        side.feed(again * 400)
        side.http2.tick()
        side.take()
    assert side.http2.failed is None


def test_who_reads_much_may_acknowledge_much() -> None:
    """A window update for each small message, on the stream and on the connection, is accepted: the frames stay in
    proportion to the data."""
    side = server()
    side.feed(headers(1, ended=True))
    stream = side.received[1].stream
    stream.send_headers(CachedHeaders(REPLY))
    for _ in range(30_000):
        stream.send_data(b"a token.........")
        side.feed(window_update(1, 16) + window_update(0, 16))
        side.http2.out.clear()
    assert side.http2.failed is None


def test_rapid_reset() -> None:
    """CVE-2023-44487: thousands of requests that are reset at once end the connection and all its streams."""
    side = server(Http2Limits(max_resets=100))
    for stream_id in range(1, 2 * MANY, 2):
        side.feed(headers(stream_id) + rst_stream(stream_id, 8))
    assert errors(side.take()) == [(0, CALM)]
    assert len(side.received) == 101 and side.num_closed == 100
    assert not side.http2.streams and all(received.reset is not None for received in side.received.values())


def test_resets_are_forgiven() -> None:
    """A client may reset a twentieth of the allowed burst each second indefinitely."""
    side = server(Http2Limits(max_resets=100))
    stream_id = 1
    for second in range(50):
        for _ in range(5 if second else 100):
            side.feed(headers(stream_id) + rst_stream(stream_id, 8))
            stream_id += 2
        side.http2.tick()
    assert side.http2.failed is None


# CVE-2025-8671: frames that make the server reset the stream while the request may still be in progress.
PROVOKED = [
    ("a window that overflows", lambda id_: headers(id_) + window_update(id_, frames.MAX_WINDOW)),
    ("a window update by nothing", lambda id_: headers(id_) + window_update(id_, 0)),
    ("PRIORITY of the wrong length", lambda id_: headers(id_) + frame(frames.PRIORITY, 0, id_, bytes(4))),
    ("DATA behind the end", lambda id_: headers(id_, ended=True) + data(id_, b"x")),
    ("HEADERS behind the end", lambda id_: headers(id_, ended=True) + headers(id_, ended=True)),
    ("trailers that do not end", lambda id_: headers(id_) + headers(id_, [(b"a", b"b")])),
    ("more than its length", lambda id_: headers(id_, [*REQUEST, (b"content-length", b"1")]) + data(id_, b"abc")),
    ("malformed fields", lambda id_: headers(id_, [*REQUEST, (b"Bad", b"1")])),
]


@pytest.mark.parametrize("make", [row[1] for row in PROVOKED], ids=[row[0] for row in PROVOKED])
def test_made_you_reset(make: object) -> None:
    """Resets that the client provokes count as the client's own, and each stream's receiver gets its reset."""
    assert callable(make)
    side = server(Http2Limits(max_resets=100))
    for stream_id in range(1, 1001, 2):
        side.feed(make(stream_id))
    assert errors(side.take())[-1] == (0, CALM)
    assert side.http2.last_id == 201 and not side.http2.streams
    assert all(received.reset is not None for received in side.received.values())


def test_requests_beyond_the_limit() -> None:
    """Refusing a stream is cheap, but thousands of refused streams a second end the connection."""
    side = server(Http2Limits(max_streams=10))
    for stream_id in range(1, 2 * MANY, 2):
        side.feed(headers(stream_id))
    refused = errors(side.take())
    assert refused[0] == (21, ErrorCode.REFUSED_STREAM) and refused[-1] == (0, CALM)
    assert len(side.received) == 10


def test_frames_of_a_reset_stream() -> None:
    """A client that keeps sending on a reset stream loses its connection."""
    side = server(Http2Limits(max_resets=1 << 20))
    side.feed(OPEN)
    side.received[1].stream.reset()
    side.feed(data(1, b"x") * MANY)
    assert errors(side.take()) == [(1, ErrorCode.CANCEL), (0, CALM)]


def test_interim_replies_without_end() -> None:
    """An engine that sends interim replies endlessly loses its connection."""
    side = client()
    received = side.open()
    side.feed(headers(1, [(b":status", b"103")]) * MANY)
    assert errors(side.take())[-1] == (0, CALM) and received.reset is not None


@pytest.mark.parametrize("payload", [b"", b"\x00", bytes(1000), bytes(16_384)])
def test_continuation_flood(payload: bytes) -> None:
    """A block that never ends is bounded in frames and in bytes."""
    side = server()
    side.feed(headers(1, b"", flags=0))
    for _ in range(1000):
        side.feed(frame(frames.CONTINUATION, 0, 1, payload))
    assert errors(side.take()) == [(0, CALM)]
    assert not side.received


def bomb(times: int) -> bytes:
    """A block with one long field that enters the table, followed by references to it."""
    encoder = Encoder()
    first = encoder.encode([(b"x-bomb", b"b" * 4000)], huffman=False)
    return first + b"\xbe" * times


@pytest.mark.parametrize(
    "block",
    [
        bomb(60_000),
        b"\x82" * 60_000,  # many small fields of the static table
        b"\x00\x00\x00" * 20_000,  # fields without name and value count as well
        b"\x40\x00\x00" * 20_000,
        b"\x00\x01a\x00" * 15_000,
    ],
    ids=["references", "static", "nothing", "nothing, indexed", "small"],
)
def test_blocks_that_grow_as_they_are_read(block: bytes) -> None:
    """The size of the decoded fields is bounded while a block is decoded, however short the block is."""
    side = server()
    side.feed(headers(1, block))
    assert errors(side.take()) == [(0, CALM)]
    assert not side.received


@pytest.mark.parametrize("update", [b"\x20", b"\x3f\xe1\x1f", b"\x20\x3f\xe1\x1f"])
def test_table_sizes_without_end(update: bytes) -> None:
    """RFC 7541 section 4.2: a block begins with at most two table size updates; the decoder tolerates a few more."""
    side = server()
    side.feed(headers(1, update * 2 + b"\x83\x86\x84", ended=True))
    assert side.received[1].ended
    side.feed(headers(3, update * 10_000 + b"\x83\x86\x84"))
    assert errors(side.take()) == [(0, ErrorCode.COMPRESSION_ERROR)]


def held_bytes(thing: object, seen: set[int]) -> int:
    """The memory of an object and of everything it refers to."""
    if id(thing) in seen or isinstance(thing, (type, Side)):
        return 0
    seen.add(id(thing))
    size = sys.getsizeof(thing)
    if isinstance(thing, dict):
        return size + sum(held_bytes(key, seen) + held_bytes(value, seen) for key, value in thing.items())
    if isinstance(thing, (list, tuple, set, frozenset)) or type(thing).__name__ == "deque":
        return size + sum(held_bytes(item, seen) for item in thing)
    slots = {name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())}
    return size + sum(held_bytes(getattr(thing, name), seen) for name in slots if hasattr(thing, name))


def unlike(number: int, kind: str) -> list[Field]:
    """Fields that occur once."""
    if kind == "one":
        return [*REQUEST, (b"x-request-id", b"%032d" % number)]
    if kind == "long":
        return [*REQUEST, (b"x-long", b"%01000d" % number)]
    return [*REQUEST, (b"n", b"%d" % number), *((b"a%d" % (at % 10), b"") for at in range(300))]


@pytest.mark.parametrize("kind", ["one", "long", "many"])
@pytest.mark.parametrize("indexes", [False, True])
def test_what_is_remembered_of_blocks(kind: str, indexes: bool) -> None:
    """The caches of a long connection whose requests all differ stay below one megabyte."""
    side = server()
    encoder = Encoder()
    for number in range(1000):
        fields = unlike(number, kind)
        block = encoder.encode([(*field, not indexes) for field in fields])
        stream_id = 2 * number + 1
        side.feed(headers(stream_id, block, ended=True))
        assert side.received.pop(stream_id).fields == fields
        side.http2.streams[stream_id].send_headers(CachedHeaders(REPLY), ended=True)
        side.take()
        side.sent = b""
    assert held_bytes(side.http2.decoder, set()) < 1 << 20
    assert held_bytes(side.http2.encoder, set()) < 1 << 20


def test_what_is_held_of_unfinished_frames() -> None:
    """An incomplete frame occupies no more memory than its announced length; DATA is delivered as it arrives."""
    side = server(Http2Limits(window_bytes=1 << 20))
    side.feed(OPEN, frame(frames.DATA, 0, 1, bytes(65_000))[:-1])
    assert len(side.received[1].body) == 64_999
    side.feed(b"x", frame(frames.HEADERS, END_HEADERS, 3, bytes(65_536))[:-1])
    assert held_bytes(side.http2._buffer, set()) < 70_000
    assert side.http2.failed is None

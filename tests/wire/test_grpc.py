"""gRPC messages in a stream of bytes."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.wire.grpc import Boundaries, MessageReader, decompress, framed

MESSAGES = st.lists(st.tuples(st.booleans(), st.binary(max_size=300)), max_size=8)


@settings(max_examples=200, deadline=None)
@given(MESSAGES, st.lists(st.integers(0, 2500), max_size=10))
def test_messages_come_back_however_they_are_cut(messages: list[tuple[bool, bytes]], cuts: list[int]) -> None:
    """Each message is read once, complete and in order; between messages the reader buffers nothing."""
    sent = b"".join(framed(message, compressed=compressed) for compressed, message in messages)
    edges = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    reader = MessageReader(300)
    found = []
    for at in range(len(edges) - 1):
        found += reader.feed(sent[edges[at] : edges[at + 1]])
        sent_so_far = sum(len(message) + 5 for _, message in found)
        assert reader.is_between_messages == (sent_so_far == edges[at + 1])
    assert found == messages


def test_the_bytes_on_the_wire() -> None:
    """A message has one byte for compression, four for the length, and its content."""
    assert framed(b"abc") == b"\0\0\0\0\3abc"
    assert framed(b"", compressed=True) == b"\1\0\0\0\0"
    reader = MessageReader(10)
    assert reader.feed(b"\0\0\0") == [] and not reader.is_between_messages
    assert reader.feed(b"\0\3ab") == []
    assert reader.feed(b"c\1\0\0\0\0\0") == [(False, b"abc"), (True, b"")]
    assert not reader.is_between_messages


@pytest.mark.parametrize(
    "sent, kind",
    [
        (b"\2\0\0\0\0", ErrorKind.BAD_REQUEST),
        (b"\xff\xff\xff\xff\xff", ErrorKind.BAD_REQUEST),
        (b"\0\0\0\0\1a\x40\0\0\0\0", ErrorKind.BAD_REQUEST),
        (b"\0\0\0\0\x0b", ErrorKind.BODY_TOO_LARGE),
        (b"\0\xff\xff\xff\xff", ErrorKind.BODY_TOO_LARGE),
    ],
)
def test_prefixes_that_are_refused(sent: bytes, kind: ErrorKind) -> None:
    """A prefix is checked as soon as it is complete, before any byte of its message is buffered."""
    for size in (1, len(sent)):
        reader = MessageReader(10)
        with pytest.raises(GatewayError) as refused:
            for at in range(0, len(sent), size):
                reader.feed(sent[at : at + size])
        assert refused.value.kind is kind


def test_a_long_message_is_put_together_once() -> None:
    """However small the pieces, memory peaks at the message itself and its join."""
    size = 4_000_000
    sent = framed(bytes(size))
    reader = MessageReader(size)
    tracemalloc.start()
    found = []
    for at in range(0, len(sent), 1000):
        found += reader.feed(sent[at : at + 1000])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [len(message) for _, message in found] == [size]
    assert peak < 3.5 * size


COMPRESS = {b"gzip": gzip.compress, b"deflate": zlib.compress}


@pytest.mark.parametrize("encoding", COMPRESS)
@given(content=st.binary(max_size=1000))
def test_what_was_compressed_comes_back(encoding: bytes, content: bytes) -> None:
    """gzip and deflate decompress to the original, with an exact size limit."""
    packed = COMPRESS[encoding](content)
    assert decompress(packed, encoding, len(content)) == content
    if content:
        with pytest.raises(GatewayError) as refused:
            decompress(packed, encoding, len(content) - 1)
        assert refused.value.kind is ErrorKind.BODY_TOO_LARGE


@pytest.mark.parametrize("encoding", COMPRESS)
def test_bombs(encoding: bytes) -> None:
    """A small message that decompresses to a hundred megabytes is cut off at the limit, which also bounds the
    memory."""
    bomb = COMPRESS[encoding](bytes(100_000_000))
    assert len(bomb) < 200_000
    tracemalloc.start()
    with pytest.raises(GatewayError) as refused:
        decompress(bomb, encoding, 1_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused.value.kind is ErrorKind.BODY_TOO_LARGE and peak < 3_000_000


PACKED = gzip.compress(b"content", mtime=0)


@pytest.mark.parametrize(
    "packed, encoding, kind",
    [
        (PACKED, b"identity", ErrorKind.UNSUPPORTED),
        (PACKED, b"zstd", ErrorKind.UNSUPPORTED),
        (PACKED, b"\xff", ErrorKind.UNSUPPORTED),
        (b"", b"gzip", ErrorKind.BAD_REQUEST),
        (b"", b"deflate", ErrorKind.BAD_REQUEST),
        (b"not gzip", b"gzip", ErrorKind.BAD_REQUEST),
        (PACKED, b"deflate", ErrorKind.BAD_REQUEST),
        (PACKED[:-1], b"gzip", ErrorKind.BAD_REQUEST),
        (PACKED[:5], b"gzip", ErrorKind.BAD_REQUEST),
        (PACKED[:-8] + bytes(8), b"gzip", ErrorKind.BAD_REQUEST),  # a wrong checksum
        (PACKED + b"x", b"gzip", ErrorKind.BAD_REQUEST),
        (PACKED + PACKED, b"gzip", ErrorKind.BAD_REQUEST),  # which some readers take for one message, others for two
        (zlib.compress(b"content") + b"x", b"deflate", ErrorKind.BAD_REQUEST),
    ],
)
def test_compressed_messages_that_are_refused(packed: bytes, encoding: bytes, kind: ErrorKind) -> None:
    """A malformed or unknown compression is rejected with its error kind."""
    with pytest.raises(GatewayError) as refused:
        decompress(packed, encoding, 1000)
    assert refused.value.kind is kind


MESSAGES = [b"\x0aerror", b"\x12fine", b"", b"\x0a", b"\x0aanother", b"fine\x0a"]
STREAM = b"".join(map(framed, MESSAGES)) + framed(b"\x0apacked", compressed=True)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7, 11, 1000])
def test_messages_are_counted_wherever_they_are_cut(size: int) -> None:
    """Messages, and uncompressed ones whose first byte is the mark, are counted wherever the stream is cut."""
    boundaries = Boundaries(0x0A)
    for at in range(0, len(STREAM), size):
        boundaries.feed(STREAM[at : at + size])
    assert (boundaries.count, boundaries.num_marked, boundaries.is_between_messages) == (7, 3, True)


def test_whole_messages_are_counted_alike() -> None:
    """Messages that arrive one per piece are counted as well."""
    boundaries = Boundaries(0x0A)
    for message in MESSAGES:
        boundaries.feed(framed(message))
    assert (boundaries.count, boundaries.num_marked) == (6, 3)

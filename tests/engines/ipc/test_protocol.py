"""Messages are parsed as they were encoded, however the stream is cut."""

import pytest

from engines.ipc.protocol import FrameReader, encode

MESSAGES = [
    (1, (), {"a": 1, "b": [True, None, 2.5, "x"]}),
    (2, (64, 128), b"\0" * 1000, -(2**63), (1, (2, (3,)))),
    (3, (), ""),
]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 1000, 10**6])
def test_messages_in_pieces_of_any_size(size: int) -> None:
    """All messages are read, in pieces of any size."""
    stream = b"".join(encode(message) for message in MESSAGES)
    reader = FrameReader()
    read = [message for begin in range(0, len(stream), size) for message in reader.feed(stream[begin : begin + size])]
    assert read == MESSAGES


def test_buffers_arrive_as_bytes() -> None:
    """Buffers are encoded as bytes."""
    assert FrameReader().feed(encode((1, (), memoryview(b"xabcx")[1:4], bytearray(b"d")))) == [(1, (), b"abc", b"d")]

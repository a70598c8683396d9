"""Where messages end in a stream of bytes, and how they begin."""

from __future__ import annotations

import pytest

from gateway.wire.grpc import framed
from gateway.wire.message_boundaries import Boundaries

MESSAGES = [b"\x0aerror", b"\x12fine", b"", b"\x0a", b"\x0aanother", b"fine\x0a"]
STREAM = b"".join(map(framed, MESSAGES)) + framed(b"\x0apacked", compressed=True)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7, 11, 1000])
def test_messages_are_counted_wherever_they_are_cut(size: int) -> None:
    """And those whose first byte is the mark: never of compressed ones."""
    boundaries = Boundaries(0x0A)
    for at in range(0, len(STREAM), size):
        boundaries.feed(STREAM[at : at + size])
    assert (boundaries.count, boundaries.num_marked, boundaries.is_between_messages) == (7, 3, True)


def test_whole_messages_are_counted_alike() -> None:
    """As they mostly come."""
    boundaries = Boundaries(0x0A)
    for message in MESSAGES:
        boundaries.feed(framed(message))
    assert (boundaries.count, boundaries.num_marked) == (6, 3)

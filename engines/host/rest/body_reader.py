"""A request's body among the bytes of its connection.

Source: RFC 9112, sections 6 and 7.
"""

from __future__ import annotations

from gateway.wire.http1.chunked import ChunkedDecoder
from gateway.wire.http1.head import CHUNKED


class BodyReader:
    """`length` is the body's, or CHUNKED. `rest` is what came after it, once it `has_ended`."""

    __slots__ = ("_decoder", "_remaining", "has_ended", "rest")

    def __init__(self, length: int) -> None:
        self._decoder = ChunkedDecoder() if length == CHUNKED else None
        self._remaining = length
        self.has_ended = False
        self.rest = b""

    def __repr__(self) -> str:
        return f"<BodyReader: {self._remaining if self._decoder is None else self._decoder!r} to come>"

    def feed(self, data: bytes) -> bytes:
        """What of it is the body's.

        Raises: ValueError where a chunk is malformed.
        """
        decoder = self._decoder
        if decoder is not None:
            data = decoder.feed(data)
            self.has_ended = decoder.has_ended
            self.rest = decoder.tail
            return data
        if len(data) > self._remaining:
            data, self.rest = data[: self._remaining], data[self._remaining :]
        self._remaining -= len(data)
        self.has_ended = not self._remaining
        return data

    def is_longer_than(self, num_bytes: int) -> bool:
        """Whether more than so many bytes are to come, or nobody knows."""
        return self._decoder is not None or self._remaining > num_bytes

"""Message bodies on an HTTP/1.1 connection: where they end, and the chunked transfer coding.

Most of what a gateway relays is whole chunks, one a read, so the decoder recognises bytes that are exactly whole plain
chunks and may be relayed unchanged. Otherwise it returns the data, and `encode_chunk` frames it again; extensions and
trailers are parsed and dropped (RFC 9112 sections 7.1.1 and 7.1.2 allow it), so that nothing is smuggled in them.

Source: RFC 9112 sections 6 and 7.
"""

from __future__ import annotations

import re
from enum import Enum

LAST_CHUNK = b"0\r\n\r\n"

# A size line longer than this is no size: 16 hex digits hold any length, the rest is room for extensions.
_MAX_LINE = 256
_MAX_TRAILER_BYTES = 8 * 1024
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")
# What nearly every chunk starts with: a size without zeros before it, and nothing else.
_PLAIN_SIZE_LINE = re.compile(rb"([1-9A-Fa-f][0-9A-Fa-f]{0,7})\r\n")
_SMALL_SIZES = {text % size: size for size in range(1, 4096) for text in (b"%x", b"%X")}
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*")


class _At(Enum):
    SIZE = "a size line"
    DATA = "chunk data"
    DATA_END = "the CRLF after chunk data"
    TRAILER = "the trailers"
    END = "the end"


class ChunkedDecoder:
    """Reads one chunked body, in pieces of any size."""

    __slots__ = ("_at", "_is_between", "_line", "_remaining", "_trailer_bytes", "has_ended", "tail")

    def __init__(self) -> None:
        self._at = _At.SIZE
        self._line = b""  # the part of a line that has come
        self._is_between = True  # between two chunks
        self._remaining = 0  # bytes of the current chunk's data still to come
        self._trailer_bytes = 0
        self.has_ended = False
        self.tail = b""  # what came after the body, once it has ended

    def __repr__(self) -> str:
        return f"<ChunkedDecoder at {self._at.value}, {self._remaining} to come>"

    def takes_plain_chunk(self, data: bytes) -> bool:
        """Whether data is exactly one chunk, neither long nor the last: then it is read, and may be relayed unchanged.
        Recognises less than `takes_whole`, in a third of the time: this is the form of a token of a stream."""
        if not self._is_between:
            return False
        line_end = data.find(b"\r\n", 0, 5)
        return _SMALL_SIZES.get(data[:line_end]) == len(data) - line_end - 4 and data.endswith(b"\r\n")

    def takes_whole(self, data: bytes) -> bool:
        """Whether data is exactly one plain chunk, or the last one, or both: then it is read, and may be
        relayed unchanged."""
        if not self._is_between:
            return False
        found = _PLAIN_SIZE_LINE.match(data)
        if found is None:
            self.has_ended = data == LAST_CHUNK
            if self.has_ended:
                self._end()
            return self.has_ended
        extra = len(data) - (found.end() + 2 + int(found[1], 16))
        if extra == 0:
            return data.endswith(b"\r\n")
        if extra == 5 and data.endswith(b"\r\n" + LAST_CHUNK):
            self._end()
            return True
        return False

    def _end(self) -> None:
        self._at = _At.END
        self._is_between = False
        self.has_ended = True

    def feed(self, data: bytes) -> bytes:
        """Read on; returns the data of the chunks. What follows the body is kept in `tail`. Raises: ValueError that
        says what is malformed."""
        if self.takes_plain_chunk(data):
            return payload_of(data)
        pieces: list[bytes] = []
        position = 0
        self._is_between = False
        while position < len(data) and self._at is not _At.END:
            if self._at is _At.SIZE and not self._line:
                while (found := _PLAIN_SIZE_LINE.match(data, position)) is not None:  # whole chunks, as most are
                    start = found.end()
                    end = start + int(found[1], 16)
                    if not data.startswith(b"\r\n", end):
                        break
                    pieces.append(data[start:end])
                    position = end + 2
                if position == len(data):
                    break
            if self._at is _At.DATA:
                end = min(position + self._remaining, len(data))
                pieces.append(data[position:end])
                self._remaining -= end - position
                position = end
                if not self._remaining:
                    self._at = _At.DATA_END
            else:
                position = self._read_line(data, position)
        if self._at is _At.END:
            self.has_ended = True
            self.tail = data[position:]
        self._is_between = self._at is _At.SIZE and not self._line
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_line(self, data: bytes, position: int) -> int:
        """Read one line, or the part of it that has come; returns where to go on."""
        longest = (_MAX_TRAILER_BYTES if self._at is _At.TRAILER else _MAX_LINE) + 2  # with its CRLF
        room_end = position + longest - len(self._line)
        end = data.find(b"\n", position, room_end)
        if end < 0:
            if len(data) >= room_end:
                raise ValueError("a chunk's size line or trailer is too long")
            self._line += data[position:]
            return len(data)
        line = self._line + data[position:end]
        self._line = b""
        if not line.endswith(b"\r"):
            raise ValueError("a line of the chunked body ends with a bare LF")
        self._take_line(line[:-1])
        return end + 1

    def _take_line(self, line: bytes) -> None:
        if self._at is _At.SIZE:
            found = _SIZE_LINE.fullmatch(line)
            if found is None:
                raise ValueError("a chunk's size is not a hexadecimal number")
            self._remaining = int(found[1], 16)
            self._at = _At.DATA if self._remaining else _At.TRAILER
        elif self._at is _At.DATA_END:
            if line:
                raise ValueError("a chunk is longer than its size says")
            self._at = _At.SIZE
        elif not line:
            self._at = _At.END
        else:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > _MAX_TRAILER_BYTES or _TRAILER.fullmatch(line) is None:
                raise ValueError("a trailer of the chunked body is malformed or too long")


def encode_chunk(data: bytes) -> bytes:
    """One chunk; nothing for no data, since an empty chunk would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def payload_of(chunk: bytes) -> bytes:
    """The data of one whole plain chunk."""
    return chunk[chunk.find(b"\n") + 1 : -2]


class BodyReader:
    """Finds the end of one body. `length` None: it is chunked. `num_bytes` have come; `rest` is what came after the
    body, once it `has_ended`."""

    __slots__ = ("_decoder", "_length", "has_ended", "num_bytes", "rest")

    def __init__(self, length: int | None) -> None:
        self._decoder = ChunkedDecoder() if length is None else None
        self._length = length or 0
        self.num_bytes = 0
        self.has_ended = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """The bytes of `data` that belong to the body. Raises: ValueError that says what is malformed."""
        decoder = self._decoder
        if decoder is not None:
            data = decoder.feed(data)
            self.num_bytes += len(data)
            self.has_ended = decoder.has_ended
            self.rest = decoder.tail
            return data
        missing = self._length - self.num_bytes
        if len(data) > missing:
            data, self.rest = data[:missing], data[missing:]
        self.num_bytes += len(data)
        self.has_ended = self.num_bytes == self._length
        return data

    def may_exceed(self, num_bytes: int) -> bool:
        """Whether more than `num_bytes` may still come."""
        return self._decoder is not None or self._length - self.num_bytes > num_bytes

"""gRPC messages in a stream of bytes: one byte of flags (compressed or not), four of length, then the message.

Source: grpc/grpc `doc/PROTOCOL-HTTP2.md`, "Length-Prefixed-Message".
"""

from __future__ import annotations

import zlib
from struct import Struct

from gateway.protocol.errors import ErrorKind, GatewayError

PREFIX = Struct(">BI")
PREFIX_BYTES = PREFIX.size

# wbits of zlib.decompressobj: gzip, and deflate in its zlib wrapping.
_DECOMPRESS_WBITS = {b"gzip": 31, b"deflate": 15}


def framed(message: bytes, *, compressed: bool = False) -> bytes:
    """A message with its prefix."""
    return PREFIX.pack(compressed, len(message)) + message


def too_long(size: int, limit: int, option: str = "--max-body-bytes") -> GatewayError:
    return GatewayError(ErrorKind.BODY_TOO_LARGE, f"a message of {size} bytes is longer than {limit} ({option})")


def decompress(message: bytes, encoding: bytes, limit: int) -> bytes:
    """A compressed message's content. Raises: GatewayError where the encoding is unknown (UNSUPPORTED), the content is
    malformed (BAD_REQUEST) or longer than `limit` bytes (BODY_TOO_LARGE)."""
    wbits = _DECOMPRESS_WBITS.get(encoding)
    if wbits is None:
        raise GatewayError(ErrorKind.UNSUPPORTED, f"grpc-encoding {encoding.decode('latin-1')!r}: gzip or deflate")
    decompressor = zlib.decompressobj(wbits)
    try:
        content = decompressor.decompress(message, limit + 1)
    except zlib.error as error:
        raise GatewayError(ErrorKind.BAD_REQUEST, f"a compressed message is malformed: {error}") from error
    if len(content) > limit:
        raise inflated_too_long("a compressed message", len(message), limit)
    if not decompressor.eof:
        raise GatewayError(ErrorKind.BAD_REQUEST, "a compressed message ends too early")
    if decompressor.unused_data:  # readers differ in whether these belong to the message
        raise GatewayError(ErrorKind.BAD_REQUEST, "bytes stand behind the end of a compressed message")
    return content


def inflated_too_long(what: str, size: int, limit: int) -> GatewayError:
    """`what`, of this size, holds more than it may."""
    bounds = "--max-inflated-bytes, --max-inflation-ratio, --max-body-bytes"
    message = f"{what} of {size} bytes holds more than {limit} bytes ({bounds})"
    return GatewayError(ErrorKind.BODY_TOO_LARGE, message)


# Shared by readers without a partial message; never modified.
_NOTHING: list[bytes] = []


class MessageReader:
    """Splits a stream into messages."""

    __slots__ = ("_limit", "_needed", "_pieces", "_size", "is_between_messages")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces = _NOTHING  # of an incomplete message
        self._size = 0
        self._needed = PREFIX_BYTES
        self.is_between_messages = True

    @property
    def size(self) -> int:
        """Bytes of an incomplete message that are held."""
        return self._size

    def feed(self, data: bytes) -> list[tuple[bool, bytes]]:
        """The messages that are complete, each with whether it is compressed. Raises: GatewayError (BODY_TOO_LARGE,
        BAD_REQUEST)."""
        if self._size:
            self._pieces.append(data)
            self._size += len(data)
            if self._size < self._needed:  # a long message is joined once, when it is complete
                return []
            data = b"".join(self._pieces)
        messages: list[tuple[bool, bytes]] = []
        at, end = 0, len(data)
        self._needed = PREFIX_BYTES
        while end - at >= PREFIX_BYTES:
            flag, size = PREFIX.unpack_from(data, at)
            if flag > 1:
                raise GatewayError(ErrorKind.BAD_REQUEST, "a message's first byte is neither 0 nor 1")
            if size > self._limit:
                raise too_long(size, self._limit)
            stop = at + PREFIX_BYTES + size
            if stop > end:
                self._needed = stop - at
                break
            messages.append((bool(flag), data[at + PREFIX_BYTES : stop]))
            at = stop
        self._size = end - at
        self._pieces = [data[at:]] if self._size else _NOTHING
        self.is_between_messages = not self._size
        return messages


_unpack_prefix = PREFIX.unpack_from


class Boundaries:
    """Follows a stream of messages without holding it; `count` is how many have ended, `num_marked` how many began with
    the byte `mark`, compressed ones aside."""

    __slots__ = ("_is_at_start", "_left", "_prefix", "count", "is_between_messages", "mark", "num_marked")

    def __init__(self, mark: int = -1) -> None:
        self.mark = mark
        self._is_at_start = False  # the first byte of a message, which is not compressed, is to come
        self._left = 0  # bytes that the message under way still has, behind its prefix
        self._prefix = b""  # of the next message, while it is cut
        self.is_between_messages = True
        self.count = 0
        self.num_marked = 0

    def feed(self, data: bytes) -> None:
        """Follow all of this."""
        size = len(data)
        if size > PREFIX_BYTES and self.is_between_messages:  # the usual case: a piece is a message
            is_compressed, length = _unpack_prefix(data)
            if length + PREFIX_BYTES == size:
                self.count += 1
                if data[PREFIX_BYTES] == self.mark and not is_compressed:
                    self.num_marked += 1
                return
        at = 0
        while at < size:
            at += self.end_of_message(data[at:] if at else data)

    def end_of_message(self, data: bytes) -> int:
        """Follow `data` up to the end of the message under way, or of the next one; returns how far that is."""
        at = 0
        if not self._left:
            missing = PREFIX_BYTES - len(self._prefix)
            self._prefix += data[:missing]
            if len(self._prefix) < PREFIX_BYTES:
                self.is_between_messages = not self._prefix
                return len(data)
            at = missing
            is_compressed, self._left = PREFIX.unpack(self._prefix)
            self._is_at_start = bool(self._left) and not is_compressed
            self._prefix = b""
        if self._is_at_start and at < len(data):
            self._is_at_start = False
            self.num_marked += data[at] == self.mark
        taken = min(self._left, len(data) - at)
        self._left -= taken
        self.is_between_messages = not self._left
        if not self._left:
            self.count += 1
        return at + taken

"""Where gRPC messages end in a stream of bytes that passes through uncut."""

from __future__ import annotations

from gateway.wire.grpc import PREFIX, PREFIX_BYTES

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
        if size > PREFIX_BYTES and self.is_between_messages:  # mostly, pieces are whole messages
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

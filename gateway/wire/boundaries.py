"""Where gRPC messages end in a stream of bytes that passes through uncut."""

from __future__ import annotations

from gateway.wire.grpc import PREFIX, PREFIX_BYTES


class Boundaries:
    """Follows a stream of messages without holding it; `count` is how many have ended, `num_marked` how many began with
    the byte `mark`, compressed ones aside."""

    __slots__ = ("_is_at_start", "_left", "_mark", "_prefix", "count", "num_marked")

    def __init__(self, mark: int = -1) -> None:
        self._mark = mark
        self._is_at_start = False  # the first byte of a message, which is not compressed, is to come
        self._left = 0  # bytes that the message under way still has, behind its prefix
        self._prefix = b""  # of the next message, while it is cut
        self.count = 0
        self.num_marked = 0

    @property
    def is_between_messages(self) -> bool:
        return not self._left and not self._prefix

    def feed(self, data: bytes) -> None:
        """Follow all of this."""
        size = len(data)
        if not self._left and not self._prefix and size >= PREFIX_BYTES:  # mostly, pieces are whole messages
            is_compressed, length = PREFIX.unpack_from(data)
            if length + PREFIX_BYTES == size:
                self.count += 1
                if length and data[PREFIX_BYTES] == self._mark and not is_compressed:
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
                return len(data)
            at = missing
            is_compressed, self._left = PREFIX.unpack(self._prefix)
            self._is_at_start = bool(self._left) and not is_compressed
            self._prefix = b""
        if self._is_at_start and at < len(data):
            self._is_at_start = False
            self.num_marked += data[at] == self._mark
        taken = min(self._left, len(data) - at)
        self._left -= taken
        if not self._left:
            self.count += 1
        return at + taken

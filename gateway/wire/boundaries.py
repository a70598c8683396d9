"""Where gRPC messages end in a stream of bytes that passes through uncut."""

from __future__ import annotations

from gateway.wire.grpc import PREFIX, PREFIX_BYTES


class Boundaries:
    """Follows a stream of messages without holding it; `count` is how many have ended."""

    __slots__ = ("_left", "_prefix", "count")

    def __init__(self) -> None:
        self._left = 0  # bytes that the message under way still has, behind its prefix
        self._prefix = b""  # of the next message, while it is cut
        self.count = 0

    @property
    def is_between_messages(self) -> bool:
        return not self._left and not self._prefix

    def feed(self, data: bytes) -> None:
        """Follow all of this."""
        size = len(data)
        if not self._left and not self._prefix and size >= PREFIX_BYTES:  # mostly, pieces are whole messages
            length = PREFIX.unpack_from(data)[1]
            if length + PREFIX_BYTES == size:
                self.count += 1
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
            self._left = PREFIX.unpack(self._prefix)[1]
            self._prefix = b""
        taken = min(self._left, len(data) - at)
        self._left -= taken
        if not self._left:
            self.count += 1
        return at + taken

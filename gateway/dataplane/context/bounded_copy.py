"""Bytes copied as they pass, up to a limit."""

from __future__ import annotations


class Copy:
    """What has passed of a request or an answer; once it is longer than `max_bytes`, nothing of it is kept."""

    __slots__ = ("_max_bytes", "is_whole", "pieces", "size")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.pieces: list[bytes] = []
        self.size = 0
        self.is_whole = True

    def __repr__(self) -> str:
        return f"<Copy {self.size} bytes{'' if self.is_whole else ', too long'}>"

    def add(self, data: bytes) -> None:
        self.size += len(data)
        if self.size <= self._max_bytes:
            self.pieces.append(data)
        elif self.is_whole:
            self.is_whole = False
            self.pieces.clear()

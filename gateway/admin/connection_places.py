"""Places for connections to the admin port: who sends nothing keeps nobody out."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum


class Standing(IntEnum):
    """What a connection has done: the least goes first."""

    SILENT = 0  # no complete head
    REQUESTED = 1
    ADMITTED = 2  # a key admitted one of its requests


class Place:
    """A connection that counts, and how to close it."""

    __slots__ = ("_taken", "address", "close", "standing")

    def __init__(self, taken: dict[Place, None], address: str, close: Callable[[], object]) -> None:
        """It is in `taken` until it leaves."""
        taken[self] = None
        self._taken = taken
        self.address = address
        self.close = close
        self.standing = Standing.SILENT

    def rise(self, standing: Standing) -> None:
        self.standing = max(self.standing, standing)

    def leave(self) -> None:
        self._taken.pop(self, None)


class Places:
    """At most so many connections, and so many of one address."""

    def __init__(self, most: int, most_of_address: int) -> None:
        self._most = most
        self._most_of_address = most_of_address
        self._taken: dict[Place, None] = {}  # the oldest first

    def take(self, address: str, close: Callable[[], object]) -> Place | None:
        """A place for a new connection. Where there is none left, the oldest connection without a complete head is
        closed, else the oldest that was never admitted; None where all are admitted."""
        of_address = [place for place in self._taken if place.address == address]
        if len(of_address) >= self._most_of_address:
            is_freed = _freed(of_address)
        else:
            is_freed = len(self._taken) < self._most or _freed(list(self._taken))
        return Place(self._taken, address, close) if is_freed else None


def _freed(places: list[Place]) -> bool:
    """Whether one of them was closed."""
    first = min(places, key=lambda place: place.standing)
    if first.standing is Standing.ADMITTED:
        return False
    first.leave()
    first.close()
    return True

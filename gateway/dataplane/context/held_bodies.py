"""What a worker holds of requests until they are whole, and which of them it sheds when that is too much."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from gateway.protocol.errors import ErrorKind, GatewayError

# From here on, memory that falls free is given back to the system.
_MUCH_BYTES = 32 * 1024 * 1024


class ReadAhead:
    """What a worker has read, or is about to read, of replies that their clients do not take yet: `most` bytes."""

    __slots__ = ("_most", "_taken", "total")

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: dict[object, int] = {}
        self.total = 0

    def take(self, reader: object, size: int) -> bool:
        """Whether there is room for so much, which is all that is to come of one reply."""
        if reader in self._taken:
            return True
        if self.total + size > self._most:
            return False
        self.total += size
        self._taken[reader] = size
        return True

    def release(self, reader: object) -> None:
        """Its client has taken all, or is gone."""
        if self._taken:
            self.total -= self._taken.pop(reader, 0)


class Holder(Protocol):
    """A request whose body is held in pieces, or its connection where that has no other."""

    def cancel(self, error: GatewayError) -> None:
        """End the request with this error."""


class _Held(NamedTuple):
    size: int
    connection: object


class HeldBodies:
    """Counts the bytes of bodies that come in pieces. Above `most`, or `most_of_connection` for one client connection,
    the largest body is shed."""

    def __init__(self, most: int, most_of_connection: int) -> None:
        self._most = most
        self._most_of_connection = most_of_connection
        self._held: dict[Holder, _Held] = {}
        self._of_connections: dict[object, int] = {}
        self.total = 0
        self.num_shed = 0
        self._peak = 0
        self.on_fall: Callable[[], None] = lambda: None  # much of what was held is free

    @property
    def num_held(self) -> int:
        return len(self._held)

    def hold(self, holder: Holder, size: int, connection: object) -> None:
        """`holder` holds so many bytes by now; it may be cancelled for that."""
        self._add(holder, size, connection)
        if self.total > self._most:
            self._shed(self._held, f"{self._most} bytes of unfinished requests (--max-buffered-bytes)")
        elif self._of_connections[connection] > self._most_of_connection:
            own = {each: held for each, held in self._held.items() if held.connection is connection}
            most = self._most_of_connection
            self._shed(own, f"{most} bytes of unfinished requests for a connection (--max-connection-bytes)")

    def release(self, holder: Holder) -> None:
        """`holder` holds nothing any more."""
        held = self._held.pop(holder, None)
        if held is None:
            return
        self.total -= held.size
        left = self._of_connections[held.connection] - held.size
        if left:
            self._of_connections[held.connection] = left
        else:
            del self._of_connections[held.connection]
        if self._peak >= _MUCH_BYTES and self.total <= self._peak // 4:
            self._peak = self.total
            self.on_fall()

    def _add(self, holder: Holder, size: int, connection: object) -> None:
        before = self._held.get(holder)
        more = size - before.size if before is not None else size
        self._held[holder] = _Held(size, connection)
        self._of_connections[connection] = self._of_connections.get(connection, 0) + more
        self.total += more
        self._peak = max(self._peak, self.total)

    def _shed(self, held: dict[Holder, _Held], bound: str) -> None:
        largest = max(held, key=lambda holder: held[holder].size)
        self.release(largest)
        self.num_shed += 1
        largest.cancel(GatewayError(ErrorKind.OUT_OF_BUFFERS, f"the gateway holds {bound}, and this is the largest"))

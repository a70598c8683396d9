"""What each client connection that sends many requests at a time holds of a pool."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Waiter = TypeVar("Waiter")


class ClientShares(Generic[Waiter]):
    """A client connection holds at most `most` places: a connection of the pool, or a place in its queue. Its further
    requests wait here, where they take nothing from others. True while anything is held."""

    __slots__ = ("_clients", "_held", "_most", "_waiting")

    def __init__(self, most: int) -> None:
        self._most = most
        self._clients: dict[object, object] = {}  # of each connection and queued waiter that counts
        self._held: dict[object, int] = {}
        self._waiting: dict[object, deque[Waiter]] = {}  # those beyond the share, by client

    def __bool__(self) -> bool:
        return bool(self._clients)

    @property
    def num_waiting(self) -> int:
        """Requests beyond their clients' shares."""
        return sum(map(len, self._waiting.values()))

    def enter(self, client: object, waiter: Waiter) -> bool:
        """Whether the client may have one more place; else the waiter waits until one of its own is free."""
        held = self._held.get(client, 0)
        if held >= self._most:
            self._waiting.setdefault(client, deque()).append(waiter)
            return False
        self._held[client] = held + 1
        self._clients[waiter] = client
        return True

    def move(self, waiter: Waiter, connection: object) -> None:
        """The waiter has got this connection."""
        client = self._clients.pop(waiter, None)
        if client is not None:
            self._clients[connection] = client

    def leave(self, place: object) -> Waiter | None:
        """A connection is free, or a waiter has left: the client's next waiter, which has the place now."""
        client = self._clients.pop(place, None)
        if client is None:
            return None
        waiting = self._waiting.get(client)
        if waiting:
            waiter = waiting.popleft()
            if not waiting:
                del self._waiting[client]
            self._clients[waiter] = client
            return waiter
        self._held[client] -= 1
        if not self._held[client]:
            del self._held[client]
        return None

    def forget(self, waiter: Waiter) -> None:
        """Remove a waiter from those beyond their share, if it is there."""
        for client, waiting in self._waiting.items():
            if waiter in waiting:
                waiting.remove(waiter)
                if not waiting:
                    del self._waiting[client]
                return

"""A bound on what is remembered by the names of models, which clients choose."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

# Nothing is remembered of a longer name: as many of them would fill the memory.
MAX_LENGTH = 256
# Of one worker, for all names of all heads: about 20,000 pairs of a head and a model.
_MAX_BYTES = 64 * 1024 * 1024


class NameHolder:
    """What one head remembers by names: its dictionaries. It lives as long as the head."""

    __slots__ = ("__weakref__", "_by_name")

    def __init__(self, *by_name: dict[Any, Any]) -> None:
        self._by_name = by_name

    def forget_names(self) -> None:
        for each in self._by_name:
            each.clear()


class RememberedNames:
    """The bytes of all holders of a worker; where they become too many, all holders begin anew."""

    __slots__ = ("__weakref__", "_holders", "_max_bytes", "_num_bytes")

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._holders: WeakSet[NameHolder] = WeakSet()

    def admit(self, holder: NameHolder, length: int, num_bytes: int) -> bool:
        """Whether the holder may remember a name of this length, which takes so many bytes."""
        if length > MAX_LENGTH:
            return False
        self._num_bytes += num_bytes
        if self._num_bytes > self._max_bytes:
            for each in list(self._holders):
                each.forget_names()
            self._holders.clear()
            self._num_bytes = num_bytes
        self._holders.add(holder)
        return True

"""Remembering what was read: heads repeat themselves, request after request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")

# Longer heads carry something of their own (a token, a trace), and would hold much memory for few hits.
_LONGEST_KEY = 4096


class Memo(Generic[Value]):
    """`read`, remembered by its bytes, in bounded memory.

    Two generations: when the young one is full it becomes the old one, and what is still used comes back from there.
    What `read` raises is raised and not remembered; it must never return None.
    """

    __slots__ = ("_old", "_read", "_size", "_young")

    def __init__(self, read: Callable[[bytes], Value], size: int = 1024) -> None:
        self._read = read
        self._size = size  # entries of one generation
        self._young: dict[bytes, Value] = {}
        self._old: dict[bytes, Value] = {}

    def __call__(self, key: bytes) -> Value:
        found = self._young.get(key)
        return found if found is not None else self._recall_or_read(key)

    def __repr__(self) -> str:
        return f"<Memo {len(self._young)} young, {len(self._old)} old>"

    def _recall_or_read(self, key: bytes) -> Value:
        value = self._old.get(key)
        if value is None:
            value = self._read(key)
            if len(key) > _LONGEST_KEY:
                return value
        if len(self._young) >= self._size:
            self._old, self._young = self._young, {}
        self._young[key] = value
        return value

"""A cache of what was parsed: heads repeat, request after request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")

# Longer heads have parts that do not repeat (a token, a trace), and would use much memory for few hits.
_LONGEST_KEY = 4096


class Memo(Generic[Value]):
    """`read`, cached by its argument, in bounded memory. Two generations: when the young one is full it becomes the old
    one, from which entries in use move back. What `read` raises is raised and not cached; it must not return None."""

    __slots__ = ("_old", "_read", "_size", "_young")

    def __init__(self, read: Callable[[bytes], Value], size: int = 1024) -> None:
        self._read = read
        self._size = size  # entries of one generation
        self._young: dict[bytes, Value] = {}
        self._old: dict[bytes, Value] = {}

    def __call__(self, key: bytes) -> Value:
        value = self._young.get(key)
        return value if value is not None else self._look_up_or_read(key)

    def __repr__(self) -> str:
        return f"<Memo {len(self._young)} young, {len(self._old)} old>"

    def _look_up_or_read(self, key: bytes) -> Value:
        value = self._old.get(key)
        if value is None:
            value = self._read(key)
            if len(key) > _LONGEST_KEY:
                return value
        if len(self._young) >= self._size:
            self._old, self._young = self._young, {}
        self._young[key] = value
        return value

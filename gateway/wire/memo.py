"""A cache of what was parsed: many clients send the same heads again and again.

Source of the doorkeeper: Einziger, Friedman and Manes 2017, "TinyLFU: A Highly Efficient Cache Admission Policy",
section 3.4.2.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")

# Longer heads have parts that do not repeat (a token, a trace), and would use much memory for few hits.
_LONGEST_KEY = 4096
# Keys that came once are remembered for so many times the values of one generation; a hash takes 60 bytes.
_SEEN_FACTOR = 4
# Where so many keys in a row were new, only one of a few is looked up: else each costs a hash and three look-ups.
_MISSES_IN_A_ROW = 256
_LOOKED_UP_ONE_OF = 8
# A cache by names holds this many; longer names are read each time, since as many of them would fill the memory.
_MAX_NAMES = 4096
_LONGEST_NAME = 128


class NameCache(dict[bytes, Value]):
    """What `read` says of names that peers choose, such as those of header fields, in bounded memory."""

    __slots__ = ()

    @abstractmethod
    def read(self, name: bytes) -> Value: ...

    def __missing__(self, name: bytes) -> Value:
        value = self.read(name)
        if len(name) <= _LONGEST_NAME:
            if len(self) >= _MAX_NAMES:
                self.clear()
            self[name] = value
        return value


class Memo(Generic[Value]):
    """`read`, cached by its argument, in bounded memory. What `read` raises is raised and not cached; it must not
    return None.

    Cached values are of two generations: when the young one is full it becomes the old one, from which values in use
    move back. With `on_second_sight` a key is cached when it comes for the second time: most heads have an id or a
    trace of their own and never come again, and to store them costs more than to read them. While none comes again, few
    are looked up.
    """

    __slots__ = ("_num_missed", "_num_unasked", "_old", "_read", "_seen", "_size", "_young")

    def __init__(self, read: Callable[[bytes], Value], size: int = 1024, *, on_second_sight: bool = False) -> None:
        self._read = read
        self._size = size  # values of one generation
        self._young: dict[bytes, Value] = {}
        self._old: dict[bytes, Value] = {}
        self._seen: set[int] | None = set() if on_second_sight else None  # the doorkeeper: hashes of keys that came
        self._num_missed = 0  # in a row; counted with a doorkeeper alone
        self._num_unasked = 0  # keys that are read without being looked up

    def __call__(self, key: bytes) -> Value:
        if self._num_unasked:
            self._num_unasked -= 1
            return self._read(key)
        value = self._young.get(key)
        if value is None:
            return self._look_up_or_read(key)
        self._num_missed = 0
        return value

    def __repr__(self) -> str:
        return f"<Memo {len(self._young)} young, {len(self._old)} old>"

    def _look_up_or_read(self, key: bytes) -> Value:
        value = self._old.get(key)
        if value is None:
            value = self._read(key)
            if len(key) > _LONGEST_KEY:
                return value
            seen, mark = self._seen, hash(key)
            if seen is not None and mark not in seen:
                if len(seen) >= self._size * _SEEN_FACTOR:
                    seen.clear()
                seen.add(mark)
                self._num_missed += 1
                if self._num_missed > _MISSES_IN_A_ROW:
                    self._num_unasked = _LOOKED_UP_ONE_OF - 1
                return value
        self._num_missed = 0
        if len(self._young) >= self._size:
            self._old, self._young = self._young, {}
        self._young[key] = value
        return value

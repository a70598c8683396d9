"""What a store of states is: where it forgets, fails or is slow, its users compute, and nothing else is different."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol


class ValueKind(IntEnum):
    """What a value is of."""

    BLOCK = 1  # keys and values of one block of tokens
    SEQUENCE = 2  # the state of a sequence


class Codec(IntEnum):
    """How its numbers are written."""

    RAW = 0  # as they are
    INT8 = 1  # a byte each, with a scale for the last axis


@dataclass(frozen=True, slots=True)
class Part:
    """One array: `data` are its bytes in C order, the least of each number first; `dtype` is as numpy names it."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class State:
    """One value: whoever wrote it knows what its parts are, by their order."""

    kind: ValueKind
    parts: tuple[Part, ...]
    codec: Codec = Codec.RAW

    @property
    def num_bytes(self) -> int:
        return sum(len(part.data) for part in self.parts)


_SAMPLES = 512


class Quantiles:
    """Of the last seconds that were observed."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_SAMPLES)

    def observe(self, seconds: float) -> None:
        self._seconds.append(seconds)

    def at(self, share: float) -> float:
        """The value below which this share lies; 0 where nothing was observed."""
        ordered = sorted(self._seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass(slots=True)
class StateCounts:
    """Values are counted one by one, but for `failures`: calls that Redis did not answer in time, or not at all."""

    hits: int = 0
    misses: int = 0
    bytes_in: int = 0  # read
    bytes_out: int = 0  # written
    written: int = 0
    known: int = 0  # not written, as they were there
    dropped: int = 0  # not written, as too much waited, or the store was away
    refused: int = 0  # by Redis: no memory, no right, another type
    corrupt: int = 0
    foreign: int = 0  # sealed with another secret
    failures: int = 0
    skipped: int = 0  # calls that were not made, since the breaker was open
    read: Quantiles = field(default_factory=Quantiles)  # seconds of each call that has read values

    def as_numbers(self, prefix: str) -> dict[str, float]:
        """For metrics."""
        named = {name: getattr(self, name) for name in self.__slots__ if name != "read"}
        numbers: dict[str, float] = {f"{prefix}_{name}_total": value for name, value in named.items()}
        numbers[f"{prefix}_read_p50_seconds"] = self.read.at(0.5)
        numbers[f"{prefix}_read_p99_seconds"] = self.read.at(0.99)
        return numbers


# Makes a value on the store's own thread; None where it is not worth keeping after all.
Make = Callable[[], State | None]


class StateStore(Protocol):
    """Values by name, for a time. Any thread may call; nothing here raises for what the store does or does not.

    `tenant` is whose values these are: with a secret, those of one tenant open for no other.
    """

    counts: StateCounts

    @property
    def is_paused(self) -> bool:
        """Whether it is left alone for a while, as it did not answer."""
        ...

    def sizes(self, keys: Sequence[str]) -> list[int]:
        """Bytes of each value as it is stored, 0 where there is none. Waits for one answer at most."""
        ...

    def get(self, keys: Sequence[str], tenant: str = "") -> list[State | None]:
        """The values, None for each that is not there or not whole. Waits for one answer at most."""
        ...

    def write(self, key: str, state: State, tenant: str = "") -> bool:
        """Keep a value in place of what is there, now; whether it is kept."""
        ...

    def put(self, key: str, num_bytes: int, make: Make, tenant: str = "") -> bool:
        """Have a value kept that is the same whoever makes it, some time soon. Never waits: where too much is under way
        it is dropped, and where it was written lately nothing is done; whether it will be tried."""
        ...

    def wants(self, key: str, num_bytes: int) -> bool:
        """Whether `put` would try: ask before what it takes is copied."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Forget values, some time soon."""
        ...

    def flush(self, timeout_seconds: float) -> bool:
        """Wait for what was put; whether all of it has been tried."""
        ...

    def close(self) -> None:
        """Give up what was not yet written."""
        ...

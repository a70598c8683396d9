"""State stores: values, counters and the interface. A store that forgets, fails or is slow costs its users computation,
nothing else."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol


class ValueKind(IntEnum):
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
    """One value; its writer defines the order of the parts."""

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
        """The value below which this share lies; 0 if nothing was observed."""
        ordered = sorted(self._seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass(slots=True)
class StateCounts:
    """Counts of values, except for `failures`: calls that Redis failed or did not answer in time."""

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
    skipped: int = 0  # calls not made because the breaker was open
    read: Quantiles = field(default_factory=Quantiles)  # seconds of each call that has read values

    def as_numbers(self, prefix: str) -> dict[str, float]:
        named = {name: getattr(self, name) for name in self.__slots__ if name != "read"}
        numbers: dict[str, float] = {f"{prefix}_{name}_total": value for name, value in named.items()}
        numbers[f"{prefix}_read_p50_seconds"] = self.read.at(0.5)
        numbers[f"{prefix}_read_p99_seconds"] = self.read.at(0.99)
        return numbers


# Creates a value on the store's thread; None if it is not worth storing after all.
Make = Callable[[], State | None]


class StateStore(Protocol):
    """Values by name, with a time to live. Any thread may call; failures of the store raise nothing. `tenant` owns the
    values: with a secret, other tenants cannot open them."""

    counts: StateCounts

    @property
    def is_paused(self) -> bool:
        """Whether calls are suspended after failures."""

    def sizes(self, keys: Sequence[str]) -> list[int]:
        """The stored bytes of each value, 0 if there is none. Waits for at most one reply."""

    def get(self, keys: Sequence[str], tenant: str = "") -> list[State | None]:
        """The values, None for each that is missing or corrupt. Waits for at most one reply."""

    def write(self, key: str, state: State, tenant: str = "") -> bool:
        """Replace a value, now; whether it is stored."""

    def put(self, key: str, num_bytes: int, make: Make, tenant: str = "") -> bool:
        """Store a value that is the same for every writer, soon; whether it will be tried. Never waits: the value is
        dropped if too much is queued, and skipped if it was written recently."""

    def wants(self, key: str, num_bytes: int) -> bool:
        """Whether `put` would try: call it before copying the data."""

    def delete(self, keys: Sequence[str]) -> None:
        """Forget values, some time soon."""

    def flush(self, timeout_seconds: float) -> bool:
        """Wait for the queue; whether everything has been tried."""

    def close(self) -> None:
        """Stop; values in the queue are dropped."""

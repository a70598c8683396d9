"""What a store has done, in numbers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

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

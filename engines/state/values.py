"""What is kept: arrays under a name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


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

"""Computations in steps, so that whoever drives them may do something else between two of them."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

# A computation that yields wherever it may be interrupted, several times a millisecond, and returns its result.
Steps = Generator[None, None, T]


def run_now(steps: Steps[T]) -> T:
    """The result, computed without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result

"""Long computations on an event loop: in slices, between which the loop serves its connections.

A thread would not do: each callback of the loop would wait until the thread lets go of the interpreter lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")

# A slice on an idle loop, and the longest one, on a loop that takes long to get around. Several computations may run at
# a time.
_SLICE_SECONDS = 0.0005
_LONGEST_SLICE_SECONDS = 0.004
# Of what the other callbacks of the last turn took: a busy loop has few turns a second.
_SHARE = 0.25


class Slices:
    """The slices of one computation, the first of which begins now."""

    def __init__(self) -> None:
        self._until = perf_counter() + slice_seconds(0.0)

    @property
    def is_over(self) -> bool:
        """Whether the computation is to call `next`."""
        return perf_counter() >= self._until

    async def next(self) -> None:
        """Let the loop have a turn; the longer it takes, the longer is the slice after it."""
        since = perf_counter()
        await asyncio.sleep(0)
        now = perf_counter()
        self._until = now + slice_seconds(now - since)


def slice_seconds(turn_seconds: float) -> float:
    """The length of a slice after a turn of the loop that took others this long."""
    return max(_SLICE_SECONDS, min(_LONGEST_SLICE_SECONDS, turn_seconds * _SHARE))


async def run_in_slices(steps: Generator[None, None, T]) -> T:
    """The result of steps (see `gateway.routing.steps`), computed in slices."""
    slices = Slices()
    while True:
        try:
            next(steps)
            while not slices.is_over:
                next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await slices.next()

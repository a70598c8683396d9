"""Long computations on an event loop: in slices, between which the loop serves its connections.

A thread would not do: each callback of the loop would wait until the thread lets go of the interpreter lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")

# Several computations may run at a time.
_SLICE_SECONDS = 0.0005


async def run_in_slices(steps: Generator[None, None, T]) -> T:
    """The result of steps (see `gateway.routing.steps`), computed in slices of half a millisecond."""
    while True:
        until = perf_counter() + _SLICE_SECONDS
        try:
            next(steps)
            while perf_counter() < until:
                next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)

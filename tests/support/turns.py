"""The turns that others have on an event loop while something runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

Result = TypeVar("Result")


async def turns_during(work: Awaitable[Result]) -> tuple[Result, int]:
    """The result of `work`, and how many turns another task had meanwhile."""
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.get_running_loop().create_task(take_turns())
    result = await work
    task.cancel()
    return result, turns

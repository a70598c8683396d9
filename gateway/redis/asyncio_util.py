"""Ending tasks that call Redis."""

from __future__ import annotations

import asyncio
from typing import Any

_PATIENCE_SECONDS = 0.5
_TRIES = 10


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks until they have ended. Once is not enough: where a connection breaks in the same moment, redis-py
    raises that in place of the cancellation, and who takes it for an outage goes on."""
    left = {task for task in tasks if not task.done()}
    for _ in range(_TRIES):
        if not left:
            return
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_PATIENCE_SECONDS)


def heed_cancellation() -> None:
    """Raises: CancelledError where this task has been cancelled, and something has caught that."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError

"""Cancelling tasks that call Redis."""

import asyncio

import pytest

from gateway.redis.bounded_client import end
from gateway.redis.client import _reraise_cancellation


def test_a_task_that_loses_a_cancellation_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that takes its cancellation for an outage and continues is cancelled again until it ends."""
    monkeypatch.setattr("gateway.redis.bounded_client._CANCEL_SECONDS", 0.01)
    lost: list[int] = []

    async def follow() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if len(lost) == 2:
                    raise
                lost.append(1)

    async def scene() -> None:
        task = asyncio.create_task(follow())
        await asyncio.sleep(0)
        await end(task)
        assert task.cancelled()

    asyncio.run(asyncio.wait_for(scene(), 120))
    assert len(lost) == 2


def test_a_cancellation_that_became_an_error_is_heeded() -> None:
    """Where a library raised another error in place of a cancellation, the task is cancelled nevertheless."""

    async def call() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            _reraise_cancellation()
            raise AssertionError("it was not heeded") from None

    async def scene() -> None:
        _reraise_cancellation()  # without a cancellation nothing is raised
        task = asyncio.create_task(call())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()

    asyncio.run(scene())

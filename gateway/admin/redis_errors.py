"""What admin calls that ask Redis have in common: who has it, how long it is waited for, what failures are told."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, TypeVar

from fastapi import HTTPException
from starlette.convertors import StringConvertor, register_url_convertor

from gateway.redis.bounded_client import Store
from gateway.redis.errors import StoreError

T = TypeVar("T")

# An operator waits longer than a request.
PATIENCE_SECONDS = 2.0


class _SessionConvertor(StringConvertor):
    """A session's name in a path: it may have slashes in it, and ends of lines."""

    regex = r"[\s\S]*"


register_url_convertor("session", _SessionConvertor())


class HasStore(Protocol):
    """Whoever knows where Redis is."""

    @property
    def store(self) -> Store | None:
        """None where the gateway has no Redis."""
        ...


def store_of(state: HasStore, what: str) -> Store:
    """Raises: HTTPException that says `what` it does not keep for want of Redis."""
    if state.store is None:
        raise HTTPException(503, f"this gateway has no Redis (--redis), so it keeps no {what}")
    return state.store


async def answered(asking: Awaitable[T]) -> T:
    """What Redis says; that it says nothing is the gateway's trouble, not the caller's."""
    try:
        return await asking
    except StoreError as error:
        raise HTTPException(503, str(error)) from error

"""Redis for the admin API."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException

from gateway.redis.bounded_client import BoundedRedis
from gateway.redis.command import Command

# An operator waits longer for Redis than a request.
REDIS_SECONDS = 2.0


async def query_redis(store: BoundedRedis, *commands: Command) -> list[Any]:
    """Redis' replies to commands.

    Raises: StoreError; HTTPException where Redis refuses one.
    """
    replies = await store.call(commands, REDIS_SECONDS)
    for reply in replies:
        if isinstance(reply, Exception):
            raise HTTPException(503, f"Redis refuses: {reply}")
    return replies

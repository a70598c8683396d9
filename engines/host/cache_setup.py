"""The response cache of `--cache-config`: `local,size=BYTES`, or `redis,host=...`.

Source: Triton's response cache documentation; `redis_cache` for the names of Redis' settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from engines.host.settings import Options
from engines.scheduling.cache import ResponseCache
from engines.scheduling.cache_stores import LocalStore, RedisStore
from engines.scheduling.interfaces import Clock

_KINDS = ("local", "redis")
_REDIS_NUMBERS = {"ttl": "86400", "port": "6379", "db": "0"}  # a day until a reply expires; 0: never


def response_cache(options: Options, clock: Clock) -> ResponseCache | None:
    """The cache; None without options.

    Raises: ValueError where the options are invalid, or Redis' package is missing.
    """
    if not options:
        return None
    if len(options) > 1 or not options.keys() <= set(_KINDS):
        raise ValueError(f"--cache-config knows one cache, {' or '.join(_KINDS)}, not {', '.join(options)}")
    if "redis" in options:
        return ResponseCache(_redis(options["redis"], clock))
    try:
        size = int(options["local"]["size"])
        if size <= 0:
            raise ValueError("no room")
    except (KeyError, ValueError):
        raise ValueError("--cache-config=local,size=<bytes> wants a whole number of bytes") from None
    return ResponseCache(LocalStore(size))


def _redis(options: Mapping[str, str], clock: Clock) -> RedisStore:
    try:
        from redis.asyncio import Redis
    except ImportError as error:
        raise ValueError("--cache-config=redis needs the package redis: pip install redis") from error
    try:
        ttl_seconds, port, database = (int(options.get(name, default)) for name, default in _REDIS_NUMBERS.items())
    except ValueError:
        raise ValueError(f"--cache-config=redis: {', '.join(_REDIS_NUMBERS)} are whole numbers") from None
    client: Any
    if "url" in options:
        client = Redis.from_url(options["url"])
    else:
        client = Redis(
            host=options.get("host", "127.0.0.1"),
            port=port,
            username=options.get("user"),
            password=options.get("password"),
            db=database,
        )
    tasks: set[asyncio.Task[None]] = set()

    def spawn(work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return RedisStore(client, clock, spawn, ttl_seconds=ttl_seconds)

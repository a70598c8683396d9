"""The Redis of a gateway by `--redis`: none, one that runs elsewhere, or an embedded one; and its data folders."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from gateway.config.settings import Settings
from gateway.redis.address import RedisAddress, read_address
from gateway.redis.bounded_client import BoundedRedis
from gateway.redis.data_dir import EmbeddedError, ServerFolder, default_data_dir, find_server
from gateway.redis.embedded import EmbeddedRedis

_log = logging.getLogger("pointsman")


def redis_of(settings: Settings) -> tuple[RedisAddress | None, EmbeddedRedis | None]:
    """The address, and the server to run. Without an embedded server that cannot run, the gateway serves without Redis
    and logs a warning.

    Raises: ValueError where the URL is invalid.
    """
    if settings.redis == "off":
        return None, None
    if settings.redis != "embedded":
        return replace(read_address(settings.redis), prefix=settings.redis_prefix), None
    try:
        program = find_server()
        folder = ServerFolder.make(settings.data_dir or default_data_dir())
    except EmbeddedError as error:
        _log.warning("serving without Redis, so sessions and drained endpoints are known to single workers: %s", error)
        return None, None
    server = EmbeddedRedis(folder, program, max_memory_bytes=settings.redis_memory_bytes)
    return server.address, server


def data_dir_of(settings: Settings) -> Path | None:
    """The folder of what outlives a gateway; None where its user has no home and the settings name none."""
    try:
        return settings.data_dir or default_data_dir()
    except EmbeddedError:
        return None


def handover_dir(folder: Path) -> Path:
    """Where the workers of gateways on a data folder offer their listening sockets."""
    return folder.absolute() / "workers"


def versions_dir(settings: Settings, rule_paths: Sequence[Path]) -> Path | None:
    """The folder of the versions of these rules. In the user's data folder each set of rule files has one of its own,
    since a user may run many gateways."""
    if settings.data_dir is not None:
        return settings.data_dir / "versions"
    folder = data_dir_of(settings)
    names = "\n".join(str(path.absolute()) for path in rule_paths)
    return folder / "versions" / sha256(names.encode(errors="replace")).hexdigest()[:16] if folder is not None else None


async def warn_of_eviction(store: BoundedRedis) -> None:
    """Log a warning where Redis may evict what the gateway relies on."""
    policy = await store.evicts()
    if policy.startswith("allkeys-"):
        _log.warning(
            "Redis at %s evicts any key when its memory is full (maxmemory-policy %s): drained endpoints, experiments, "
            "shared rules, limits and conversations can be lost. Give the gateway a Redis of its own, apart from "
            "`pointsman llm --kv-store`, with maxmemory-policy volatile-ttl or noeviction",
            store.address,
            policy,
        )

"""Clients of redis-py: constructed for an address, and called with commands; their errors become `StoreError`.

None of them connects before its first call, or retries by itself: the caller decides what a failure means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry
from redis.sentinel import Sentinel

from gateway.redis.address import RedisAddress, RedisTopology
from gateway.redis.command import Command, StoreError, in_full

try:
    from redis.maint_notifications import MaintNotificationsConfig
except ImportError:  # redis-py 5 and 6 have none
    MaintNotificationsConfig = None  # type: ignore[assignment,misc]


# Errors of the server, not of the command: another server may serve, or this one a moment later.
_NOT_SERVING = ("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "TRYAGAIN")


@dataclass(frozen=True, slots=True)
class _Kind:
    """The classes of one of redis-py's two families of clients, which have few type hints."""

    one: Any
    cluster: Any
    node: Any
    sentinel: Any
    retry: Any


_ASYNC = _Kind(redis.asyncio.Redis, AsyncRedisCluster, AsyncClusterNode, AsyncSentinel, AsyncRetry)
_BLOCKING = _Kind(redis.Redis, RedisCluster, ClusterNode, Sentinel, Retry)


def connect_async(
    address: RedisAddress, *, timeout: float = 1.0, connect_timeout: float = 1.0, max_connections: int = 4
) -> Any:
    """An asyncio client with replies as bytes; `timeout` is in seconds, for one reply. Close it with `aclose`."""
    return _client(_ASYNC, address, timeout, connect_timeout, max_connections)


def connect(
    address: RedisAddress, *, timeout: float = 1.0, connect_timeout: float = 1.0, max_connections: int = 4
) -> Any:
    """A blocking client, which threads may share. Close it with `close`."""
    return _client(_BLOCKING, address, timeout, connect_timeout, max_connections)


def _client(kind: _Kind, address: RedisAddress, timeout: float, connect_timeout: float, max_connections: int) -> Any:
    options = _options(address, timeout, connect_timeout)
    options["retry"] = kind.retry(NoBackoff(), 0)
    match address.layout:
        case RedisTopology.CLUSTER:
            nodes = [kind.node(host, port) for host, port in address.hosts]
            return kind.cluster(startup_nodes=nodes, max_connections=max_connections, **options)
        case RedisTopology.SENTINEL:
            sentinel = kind.sentinel(address.hosts, sentinel_kwargs=_sentinel_options(address, options), **options)
            return sentinel.master_for(address.service, db=address.db)
        case RedisTopology.ONE:
            return kind.one(**options, **_place(address), max_connections=max_connections)


def _options(address: RedisAddress, timeout: float, connect_timeout: float) -> dict[str, Any]:
    options: dict[str, Any] = {
        "username": address.user,
        "password": address.password,
        "socket_timeout": timeout,
        "socket_connect_timeout": connect_timeout,
    }
    # With maintenance notifications redis-py hands out connections that the server has closed.
    if MaintNotificationsConfig is not None:
        options["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)
    if address.tls is not None:
        tls = address.tls
        options |= {
            "ssl": True,
            "ssl_ca_certs": tls.ca,
            "ssl_certfile": tls.cert,
            "ssl_keyfile": tls.key,
            "ssl_cert_reqs": "required" if tls.verify else "none",
            "ssl_check_hostname": tls.verify,
        }
    return options


def _sentinel_options(address: RedisAddress, options: dict[str, Any]) -> dict[str, Any]:
    """Connections to Sentinels differ from those to the master in their user only."""
    return {**options, "username": address.sentinel_user, "password": address.sentinel_password}


def _place(address: RedisAddress) -> dict[str, Any]:
    if address.socket is not None:
        return {"unix_socket_path": address.socket, "db": address.db}
    host, port = address.hosts[0]
    return {"host": host, "port": port, "db": address.db}


class RedisClient:
    """Calls of one Redis over at most `connections` connections; `timeout` is in seconds, for one reply."""

    def __init__(self, address: RedisAddress, *, timeout: float, connections: int) -> None:
        self._address = address
        self._sent: set[str] = set()  # digests of scripts that the server knows
        self._client = connect_async(address, timeout=timeout, connect_timeout=timeout, max_connections=connections)

    async def call(self, commands: Sequence[Command]) -> list[Any]:
        """The replies; that to a refused command is an exception.

        Raises: StoreError.
        """
        try:
            replies = await self._pipeline([self._known(command) for command in commands])
            # After SCRIPT FLUSH, or at another node of a cluster, the script is sent again, after the other commands.
            unknown = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            if unknown:
                again = await self._pipeline([in_full(commands[index]) for index in unknown])
                for index, reply in zip(unknown, again, strict=True):
                    replies[index] = reply
        except Exception as error:  # redis-py raises more than RedisError
            _reraise_cancellation()
            self._sent.clear()  # the server may have restarted
            raise StoreError(f"{self._address}: {str(error).strip() or type(error).__name__}") from error
        return replies

    def _known(self, command: Command) -> Command:
        """The command, with its script's text where that has not been sent."""
        if command[0] != "EVALSHA" or command[1] in self._sent:
            return command
        self._sent.add(command[1])
        return in_full(command)

    async def ping(self) -> None:
        """Check that it replies, over a connection that no other call uses.

        Raises: StoreError.
        """
        try:
            await self._client.execute_command("GET", "pointsman:1:knock")
        except Exception as error:
            _reraise_cancellation()
            raise StoreError(f"{self._address}: {str(error).strip() or type(error).__name__}") from error

    async def close(self) -> None:
        try:
            async with asyncio.timeout(1.0):
                await self._client.aclose()
        except (TimeoutError, RedisError, OSError):
            pass

    async def _pipeline(self, commands: Sequence[Command]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, ResponseError) and not _is_server_error(reply):
                continue
            if isinstance(reply, Exception):
                await self._reconnect()
                raise reply
        return replies

    async def _reconnect(self) -> None:
        """Have the next call open a new connection: the name may lead to another server."""
        pool = getattr(self._client, "connection_pool", None)
        if pool is not None:  # a cluster's client discovers its nodes by itself
            await pool.disconnect(inuse_connections=False)


def _is_server_error(reply: ResponseError) -> bool:
    """redis-py keeps the code of some errors in their text and turns that of others into a class."""
    name = type(reply).__name__.removesuffix("Error").upper()
    return name in _NOT_SERVING or str(reply).partition(" ")[0] in _NOT_SERVING


def _reraise_cancellation() -> None:
    """Raises: CancelledError where this task was cancelled and redis-py has replaced that by an error of its own."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError

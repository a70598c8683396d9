"""Clients of redis-py: constructed for an address, and called with commands; their errors become `StoreError`.

None of them connects before its first call, or retries by itself: the caller decides what a failure means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import redis
import redis.asyncio.cluster
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.backoff
import redis.cluster
import redis.retry
import redis.sentinel
from redis.exceptions import NoScriptError, RedisError, ResponseError

from gateway.redis.address import RedisAddress, RedisTopology
from gateway.redis.command import KEY_PREFIX, Command, StoreError, in_full, with_prefix

try:
    from redis.maint_notifications import MaintNotificationsConfig
except ImportError:  # redis-py 5 and 6 have none
    MaintNotificationsConfig = None  # type: ignore[assignment,misc]


# Errors of the server, not of the command: another server may serve, or this one a moment later.
_NOT_SERVING = ("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "TRYAGAIN")


def connect_async(
    address: RedisAddress, *, timeout: float = 1.0, connect_timeout: float = 1.0, max_connections: int = 4
) -> Any:
    """An asyncio client with replies as bytes; `timeout` is in seconds, for one reply. Close it with `aclose`."""
    return _client(redis.asyncio, address, timeout, connect_timeout, max_connections)


def connect(
    address: RedisAddress, *, timeout: float = 1.0, connect_timeout: float = 1.0, max_connections: int = 4
) -> Any:
    """A blocking client, which threads may share. Close it with `close`."""
    return _client(redis, address, timeout, connect_timeout, max_connections)


def _client(family: Any, address: RedisAddress, timeout: float, connect_timeout: float, max_connections: int) -> Any:
    """A client of one of redis-py's two families of modules, which have the same names and few type hints."""
    options = _options(address, timeout, connect_timeout)
    options["retry"] = family.retry.Retry(redis.backoff.NoBackoff(), 0)
    match address.layout:
        case RedisTopology.CLUSTER:
            nodes = [family.cluster.ClusterNode(host, port) for host, port in address.hosts]
            return family.cluster.RedisCluster(startup_nodes=nodes, max_connections=max_connections, **options)
        case RedisTopology.SENTINEL:
            # Connections to Sentinels differ from those to the master in their user only.
            login = {"username": address.sentinel_user, "password": address.sentinel_password}
            sentinel = family.sentinel.Sentinel(address.hosts, sentinel_kwargs={**options, **login}, **options)
            return sentinel.master_for(address.service, db=address.db)
        case RedisTopology.ONE:
            host, port = address.hosts[0] if address.hosts else ("", 0)
            place = {"unix_socket_path": address.socket} if address.socket else {"host": host, "port": port}
            return family.Redis(**options, **place, db=address.db, max_connections=max_connections)


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


class RedisClient:
    """Calls of one Redis over at most `connections` connections; `timeout` is in seconds, for one reply."""

    def __init__(self, address: RedisAddress, *, timeout: float, connections: int) -> None:
        self._address = address
        self._prefix = address.prefix
        self._sent: set[str] = set()  # digests of scripts that the server knows
        self._client = connect_async(address, timeout=timeout, connect_timeout=timeout, max_connections=connections)

    async def call(self, commands: Sequence[Command]) -> list[Any]:
        """The replies; that to a refused command is an exception.

        Raises: StoreError.
        """
        if self._prefix != KEY_PREFIX:
            commands = [with_prefix(command, self._prefix) for command in commands]
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
            await self._client.execute_command("GET", f"{self._prefix}:1:knock")
        except Exception as error:
            _reraise_cancellation()
            raise StoreError(f"{self._address}: {str(error).strip() or type(error).__name__}") from error

    async def evicts(self) -> str:
        """The policy by which it evicts keys once its memory is full; "" where it evicts none, or does not say.

        Raises: StoreError.
        """
        try:
            found = await self._client.info("memory")
        except ResponseError:  # not allowed to this user
            return ""
        except Exception as error:
            _reraise_cancellation()
            raise StoreError(f"{self._address}: {str(error).strip() or type(error).__name__}") from error
        nodes = [found] if "maxmemory_policy" in found else list(found.values())  # of a cluster by their names
        policies = [str(node["maxmemory_policy"]) for node in nodes if isinstance(node, dict) and node.get("maxmemory")]
        return min((policy for policy in policies if policy != "noeviction"), default="")  # "allkeys-..." comes first

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

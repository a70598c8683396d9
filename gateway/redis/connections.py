"""Clients of redis-py for an address: asyncio's for event loops, the blocking one for threads.

Neither connects yet; neither tries again by itself: who calls knows what a failure means, and how long it may take.
"""

from __future__ import annotations

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
from redis.retry import Retry
from redis.sentinel import Sentinel

from gateway.redis.address import RedisAddress, RedisTopology

try:
    from redis.maint_notifications import MaintNotificationsConfig
except ImportError:  # redis-py 5 and 6 have none
    MaintNotificationsConfig = None  # type: ignore[assignment,misc]


@dataclass(frozen=True, slots=True)
class _Kind:
    """One of redis-py's two families of clients, by its classes, of which it says few types."""

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
    """An asyncio client, whose replies are bytes; `timeout` is in seconds, for one reply. Close it with `aclose`."""
    return _client(_ASYNC, address, timeout, connect_timeout, max_connections)


def connect(
    address: RedisAddress, *, timeout: float = 1.0, connect_timeout: float = 1.0, max_connections: int = 4
) -> Any:
    """The blocking client, which threads may share. Close it with `close`."""
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
    # Notices of a server's maintenance: while they are on, redis-py hands out connections that the server has closed.
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
    """Sentinels have users of their own; connections to them are otherwise like those to the master."""
    return {**options, "username": address.sentinel_user, "password": address.sentinel_password}


def _place(address: RedisAddress) -> dict[str, Any]:
    if address.socket is not None:
        return {"unix_socket_path": address.socket, "db": address.db}
    host, port = address.hosts[0]
    return {"host": host, "port": port, "db": address.db}

"""When an engine's HTTP/2 connection is sent a PING, and when it counts as dead.

Source: gRFC A8, Client-side Keepalive. gRPC servers close a connection with ENHANCE_YOUR_CALM (`too_many_pings`) after
more than two PINGs that come within five minutes of the one before, while they send no message.
"""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import Protocol

# Between PINGs beyond `max_pings_without_data`. Servers allow one each 300 s; a PING may be delayed on its way.
_SLOW_SECONDS = 330.0
# What gRPC's servers say as they close a connection for its PINGs.
TOO_MANY_PINGS = b"too_many_pings"


class KeepaliveLimits(Protocol):
    """Times are in seconds; `gateway.config.engine_specs.ConnectionSpec` documents each."""

    @property
    def keepalive_interval(self) -> float: ...
    @property
    def keepalive_timeout(self) -> float: ...
    @property
    def max_pings_without_data(self) -> int: ...


class KeepaliveAction(Enum):
    """What to do with a connection."""

    ALIVE = "alive"
    PING = "ping"
    DEAD = "dead"


class Keepalive:
    """The PINGs of one connection, decided about once a second."""

    __slots__ = ("_data_seen", "_limits", "_num_pings", "_pinged_at", "_read_before_ping")

    def __init__(self, limits: KeepaliveLimits) -> None:
        self._limits = limits
        self._num_pings = 0  # since the last data
        self._pinged_at = -inf
        self._read_before_ping = -1.0  # when the connection was read before the last PING
        self._data_seen = 0

    def check(self, now: float, read_at: float, data_seen: int, *, is_busy: bool, factor: int = 1) -> KeepaliveAction:
        """`read_at` is when the connection brought anything, `data_seen` a number that changes with the data that it
        brings; `is_busy`: calls are under way. `factor` multiplies the interval."""
        limits = self._limits
        if not limits.keepalive_interval:
            return KeepaliveAction.ALIVE
        is_awaited = read_at == self._read_before_ping
        if data_seen != self._data_seen:
            self._data_seen = data_seen
            self._num_pings = 0 if now - self._pinged_at > limits.keepalive_timeout else min(1, self._num_pings)
        if is_awaited:
            return KeepaliveAction.DEAD if now - self._pinged_at >= limits.keepalive_timeout else KeepaliveAction.ALIVE
        if not is_busy or now - read_at < limits.keepalive_interval * factor:
            return KeepaliveAction.ALIVE
        most = limits.max_pings_without_data
        if most and self._num_pings >= most and now - self._pinged_at < _SLOW_SECONDS:
            return KeepaliveAction.ALIVE
        self._num_pings += 1
        self._pinged_at = now
        self._read_before_ping = read_at
        return KeepaliveAction.PING

"""One address of an engine, and what is known of it right now."""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit

from gateway.config.specs import EngineSpec
from gateway.protocol.condition import Condition
from gateway.upstream.breaker import Breaker
from gateway.upstream.pool import Pool

_DEFAULT_PORTS = {"http": 80, "https": 443}

# How much one reply moves the average towards itself when it is faster; a slower one counts at once (peak EWMA).
_EWMA_SHARE = 0.1


class Endpoint:
    """State of one endpoint in one worker: observed, never configured.

    `condition` is what the probes last said, None before the first; `in_flight` counts requests sent and not ended.
    """

    __slots__ = (
        "breaker",
        "condition",
        "engine",
        "host_line",
        "in_flight",
        "latency",
        "pool",
        "url",
    )

    def __init__(self, engine: EngineSpec, url: str, tls: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
        self.engine = engine
        self.url = url
        self.host_line = b"host: %b\r\n" % parts.netloc.rpartition("@")[2].encode("ascii")
        self.in_flight = 0
        self.condition: Condition | None = None
        self.latency = 0.0  # seconds to the first byte, peak EWMA; 0 before the first reply
        self.breaker = Breaker(engine.breaker)
        self.pool = Pool(host, port, engine.connections, tls, (engine.tls.server_name or host) if tls else None)

    def __repr__(self) -> str:
        condition = self.condition.value if self.condition is not None else "unknown"
        return f"<Endpoint {self.url}: {condition}, {self.breaker.state.value}, {self.in_flight} in flight>"

    def fits(self, engine: EngineSpec) -> bool:
        """Whether this endpoint's connections and breaker are made as `engine` now declares them."""
        mine = self.engine
        return (mine.breaker, mine.connections, mine.tls) == (engine.breaker, engine.connections, engine.tls)

    def observe_latency(self, seconds: float) -> None:
        """Count a reply's time to the first byte."""
        if seconds > self.latency:
            self.latency = seconds
        else:
            self.latency += (seconds - self.latency) * _EWMA_SHARE

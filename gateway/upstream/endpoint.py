"""One address of an engine and its observed state."""

from __future__ import annotations

import ssl
from time import monotonic
from urllib.parse import urlsplit

from gateway.config.engine_specs import EndpointSpec, EngineSpec
from gateway.net.circuit_breaker import CircuitBreaker
from gateway.net.http1_client import Http1Pool
from gateway.net.http2_client import Http2Pool
from gateway.protocol.advertised_models import AdvertisedModels
from gateway.protocol.engine_load import Load, Readiness
from gateway.upstream.tls import client_tls

NOT_READY = (Readiness.UNREADY, Readiness.DOWN)

_DEFAULT_PORTS = {"http": 80, "https": 443}

# How much one reply moves the average towards itself when it is faster; a slower one counts at once (peak EWMA).
_EWMA_SHARE = 0.1

# A report of the engine's load is valid for so long, or for three probes if that is longer.
_LOAD_SECONDS = 10.0


# A connection that has brought nothing for so long, though a reply was due, may be dead: TCP has retransmitted what was
# lost several times.
_SUSPICIOUS_SECONDS = 0.5

# The pauses of an endpoint that stays broken grow up to this many times the first.
_LONGEST_PAUSE = 12


class Endpoint:
    """The observed state of one endpoint in one worker.

    `condition` is the result of the health checks, None before the first. `in_flight` counts the worker's requests,
    `others` those of others at the engine's last report of its `load`. `models` are those that it lists, None where
    that is unknown. `share` is its weight by the rules, relative to the mean of its engine's endpoints, and `weight`
    the same but for slow start, which goes by `ready_since`. `pool` has its HTTP/1.1 connections, `streams` its gRPC
    ones, each None where it does not serve that.
    """

    __slots__ = (
        "_declared",
        "_failures",
        "_load_until",
        "authority",
        "breaker",
        "condition",
        "engine",
        "host_line",
        "in_flight",
        "is_draining",
        "latency",
        "load",
        "models",
        "others",
        "pool",
        "ready_since",
        "scheme",
        "share",
        "streams",
        "url",
        "weight",
    )

    def __init__(self, engine: EngineSpec, spec: EndpointSpec, tls: ssl.SSLContext | None) -> None:
        self.engine = engine
        self.url = spec.url
        self._declared = spec.grpc, spec.host
        self.in_flight = 0
        self.others = 0
        self.load: Load | None = None
        self._load_until = 0.0
        self.models: AdvertisedModels | None = None
        self.condition: Readiness | None = None
        self.is_draining = False
        self.weight = 1.0
        self.share = 1.0
        self.ready_since: float | None = None
        self.latency = 0.0  # seconds to the first byte, peak EWMA; 0 before the first reply
        self._failures = engine.breaker.statuses
        pause = engine.breaker.open_for
        self.breaker = CircuitBreaker(engine.breaker.failures, pause, pause * _LONGEST_PAUSE)
        parts = urlsplit(spec.url)
        self.host_line = b"host: %b\r\n" % _named(parts.netloc.rpartition("@")[2], spec.host).encode("ascii")
        self.pool: Http1Pool | None = None
        if parts.scheme in _DEFAULT_PORTS:
            host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme]
            name = (engine.tls.server_name or spec.host or host) if tls else None
            self.pool = Http1Pool(host, port, engine.connections, tls, name)
        self.streams: Http2Pool | None = None
        self.authority = _named(spec.grpc or "", spec.host).encode("ascii")
        self.scheme = b"https" if tls else b"http"
        if spec.grpc is not None:
            host, _, digits = spec.grpc.rpartition(":")
            host = host.strip("[]")
            if tls is not None:
                tls = client_tls(engine.tls, "h2")
            name = (engine.tls.server_name or spec.host or host) if tls else None
            self.streams = Http2Pool(host, int(digits), engine.connections, tls, name)

    def __repr__(self) -> str:
        condition = self.condition.value if self.condition is not None else "unknown"
        draining = "draining, " if self.is_draining else ""
        return f"<Endpoint {self.url}: {condition}, {draining}{self.breaker.state.value}, {self.in_flight} in flight>"

    @property
    def grpc(self) -> str | None:
        """host:port of its gRPC, as it is declared; None where it has none."""
        return self._declared[0]

    @property
    def takes_new(self) -> bool:
        """Whether it gets work that could go elsewhere: it is not drained, by an operator or because its host stops
        and reports that it is not ready."""
        return not self.is_draining and self.condition not in NOT_READY

    def fits(self, engine: EngineSpec, spec: EndpointSpec) -> bool:
        """Whether its connections and breaker match the present declaration of `engine`."""
        mine = self.engine
        if self._declared != (spec.grpc, spec.host):
            return False
        return (mine.breaker, mine.connections, mine.tls) == (engine.breaker, engine.connections, engine.tls)

    def counts_as_failure(self, status: int) -> bool:
        """Whether a reply of this status is a failure of the endpoint."""
        return status in self._failures

    def observe_latency(self, seconds: float) -> None:
        """Count a reply's time to the first byte."""
        if seconds > self.latency:
            self.latency = seconds
        else:
            self.latency += (seconds - self.latency) * _EWMA_SHARE

    @property
    def pressure(self) -> float:
        """Requests in flight there, the worker's and those of others, relative to its weight."""
        return (self.in_flight + self.others) / self.weight

    def observe_load(self, load: Load | None) -> None:
        """Store the engine's reported load, which includes the worker's own requests; None: it reports none."""
        self.load = load
        self.others = max(0, load.outstanding - self.in_flight) if load is not None else 0
        self._load_until = monotonic() + max(_LOAD_SECONDS, 3 * self.engine.health.interval)

    @property
    def num_connections(self) -> int:
        return sum(pool.size for pool in self._pools())

    def close_idle_connections(self) -> None:
        for pool in self._pools():
            pool.close_idle()

    def renew_connections(self) -> None:
        """Those of now take no further request, and close once they have none."""
        for pool in self._pools():
            pool.renew()

    def timed_out(self, sent_at: float, now: float) -> None:
        """A request that was sent at `sent_at` has had no reply in time."""
        if now - sent_at >= _SUSPICIOUS_SECONDS:
            for pool in self._pools():
                pool.timed_out(sent_at)

    def close_stale(self, now: float) -> None:
        """Close connections that have been idle for too long, and drop an outdated load; called about once a second."""
        if self.load is not None and now >= self._load_until:
            self.observe_load(None)
        for pool in self._pools():
            pool.close_stale(now)

    def retire(self) -> None:
        """Keep no connection once its request has ended: the rules no longer name it."""
        for pool in self._pools():
            pool.retire()

    def _pools(self) -> list[Http1Pool | Http2Pool]:
        return [pool for pool in (self.pool, self.streams) if pool is not None]


def _named(authority: str, host: str | None) -> str:
    """An authority, with a name in place of its address."""
    if host is None or not authority:
        return authority
    port = authority.rpartition("]")[2].partition(":")[2]
    return f"{host}:{port}" if port else host

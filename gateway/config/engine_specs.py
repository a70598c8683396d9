"""Declarations of engines in rule files as values: created by `config.engines`, immutable.

A field's type determines how its key is read. Times are seconds (float), sizes are bytes (int). Each field documents
its meaning, unit and default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Literal, NamedTuple

from gateway.config import value_parsers
from gateway.config.hedging_specs import HedgingSpec
from gateway.config.overload_specs import OverloadSpec
from gateway.config.source_specs import SourceSpec
from gateway.config.value_parsers import (
    ClientShare,
    Count,
    Duration,
    Glob,
    HeaderName,
    Port,
    PositiveCount,
    PositiveDuration,
    Ratio,
    Size,
    StrippedHeaderName,
    Text,
)
from gateway.protocol.engine_protocols import EngineProtocol
from gateway.yaml import values
from gateway.yaml.problems import Location


class Balance(Enum):
    """How an engine chooses among its endpoints."""

    ROUND_ROBIN = "round_robin"
    LEAST_OUTSTANDING = "least_outstanding"
    POWER_OF_TWO = "power_of_two"
    LATENCY = "latency"
    SESSION = "session"
    PREFIX = "prefix"

    @property
    def traits(self) -> BalanceTraits:
        return _BALANCE_TRAITS[self]


class BalanceTraits(NamedTuple):
    """What a policy goes by; `gateway.upstream.balancing.POLICIES` has its function."""

    uses_load: bool = True  # the requests of others, as far as engines report them
    by_session: bool = False  # a session stays at its endpoint
    by_prompt: bool = False  # a prompt goes to the endpoint that has its beginning


_BALANCE_TRAITS: dict[Balance, BalanceTraits] = {
    Balance.ROUND_ROBIN: BalanceTraits(uses_load=False),
    Balance.LEAST_OUTSTANDING: BalanceTraits(),
    Balance.POWER_OF_TWO: BalanceTraits(),
    Balance.LATENCY: BalanceTraits(),
    Balance.SESSION: BalanceTraits(uses_load=False, by_session=True),
    Balance.PREFIX: BalanceTraits(by_prompt=True),
}


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """One address of an engine."""

    # http://host:port or https://host:port, no path; grpc://... or grpcs://... where it has no REST
    url: Annotated[str, value_parsers.endpoint_url]
    # host:port of its gRPC, where it has one; encrypted where the url is https
    grpc: Annotated[str, value_parsers.host_port] | None = None
    # Its share of the work, beside the others of its engine; 0: as if it were drained
    weight: Annotated[float, values.between(0.0, 1_000_000.0, values.number)] = 1.0
    zone: Annotated[str, values.name] | None = None  # where it is
    # The name in `host` and in TLS, where the url has an address
    host: Annotated[str, value_parsers.host_name] | None = None
    priority: Count = 0  # endpoints of the next number get work where too few of this one are healthy
    # host:port of its KV events; None: its host and `prefix.events.port`
    kv_events: Annotated[str, value_parsers.host_port] | None = None

    @property
    def speaks_rest(self) -> bool:
        return self.url.startswith("http")

    @property
    def speaks_grpc(self) -> bool:
        return self.grpc is not None

    @property
    def is_encrypted(self) -> bool:
        return self.url.startswith(("https:", "grpcs:"))


@dataclass(frozen=True, slots=True)
class HealthSpec:
    """Active probes, sent by the control process to every endpoint."""

    # None: what engines of this protocol answer, as /v2/health/ready or /health
    path: Annotated[str, value_parsers.path] | None = None
    interval: Duration = 2.0  # between probes; 0 switches probing off
    timeout: PositiveDuration = 1.0  # a probe that takes longer has failed
    unhealthy_after: PositiveCount = 3  # failed probes in a row; 3 rides out one lost packet
    healthy_after: PositiveCount = 1  # good probes in a row before an endpoint serves again


@dataclass(frozen=True, slots=True)
class BreakerSpec:
    """Passive ejection: what requests show about an endpoint.

    Only transport failures (connect, reset, timeout) and `statuses` count: a 4xx is the caller's fault and a 500 is
    mostly one model's, so neither means that the endpoint is down.
    """

    failures: Count = 5  # in a row, until the endpoint is left out; 0 switches the breaker off
    open_for: PositiveDuration = 5.0  # seconds left out before one trial request; doubles up to 12 times that
    statuses: frozenset[int] = frozenset({502, 504})  # of replies that count as failures


@dataclass(frozen=True, slots=True)
class RetrySpec:
    """When a failed attempt is retried at another endpoint.

    Any request that did not reach an engine (refused connection) is retried. If it may have, only an idempotent one is:
    `safe` means GET and HEAD, `infer` that this engine's inferences without a sequence may run twice.
    """

    attempts: Count = 2  # retries after the first try; 0 switches retries off
    idempotent: Literal["safe", "infer"] = "safe"  # which requests may run twice; see above
    # Retries per request over the last 10 s: a failing fleet is not flooded
    budget: Annotated[float, values.at_least(0.0, value_parsers.share)] = 0.2
    budget_floor: Count = 10  # retries that are always allowed in 10 s, so that small traffic can retry at all


@dataclass(frozen=True, slots=True)
class ConnectionSpec:
    """Limits of the connection pool, per worker and endpoint."""

    max_connections: PositiveCount = 512  # to an endpoint, of one worker
    max_pending: Count = 1024  # requests that may wait for a connection; more are answered `overloaded`
    idle_timeout: PositiveDuration = 55.0  # idle connections are closed before common engines' 60 s; 0 disables reuse
    connect_timeout: PositiveDuration = 2.0  # of TCP and TLS together
    max_streams: PositiveCount = 100  # gRPC calls on one HTTP/2 connection before another one is made
    # The flow-control window of a gRPC stream
    window_bytes: Annotated[int, values.at_least(65_535, values.size)] = 1024 * 1024
    # What one client's HTTP/2 connection may hold of `max_connections` of REST, its requests in line included; further
    # ones wait for these
    max_client_share: ClientShare = 0.5
    # Silence on a connection after which its peer is asked whether it is there: by a PING where gRPC calls are under
    # way, and by TCP; 0: never
    keepalive_interval: Duration = 10.0
    keepalive_timeout: PositiveDuration = 20.0  # without any answer the connection is closed: gRPC's own default
    # PINGs without a message in between; further ones follow once in 5.5 min, as gRPC's servers permit. 0: no limit
    max_pings_without_data: Count = 2
    max_age: Duration = 600.0  # then a connection takes no new requests; up to a fifth earlier, at random. 0: no limit


@dataclass(frozen=True, slots=True)
class TlsSpec:
    """TLS to an https engine."""

    verify: bool = True  # whether the certificate must be valid for the host
    ca: Text | None = None  # PEM file; None: the system's authorities
    cert: Text | None = None  # client certificate, PEM
    key: Text | None = None  # private key of `cert`, PEM
    server_name: Text | None = None  # when the certificate names another host


@dataclass(frozen=True, slots=True)
class ActivatorSpec:
    """An HTTP request that starts an engine, as one that scales a Deployment; the control process sends it."""

    url: Annotated[str, value_parsers.request_url] = field(repr=False)  # http or https, with its path
    method: Literal["POST", "PUT", "PATCH", "GET"] = "POST"  # of the request
    headers: Mapping[HeaderName, Text] = field(default_factory=dict, repr=False)  # values may be credentials
    body: Text = field(default="", repr=False)  # of the request
    tls: TlsSpec = TlsSpec()
    timeout: PositiveDuration = 10.0  # of the request
    interval: PositiveDuration = (
        60.0  # until it is sent again while requests wait; shorter, and growing, where it fails
    )


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """Load that engines report, for balancing: other gateways and workers send them requests too."""

    # metrics: read with each probe; orca: read from each reply, on request
    source: Literal["none", "metrics", "orca"] = "none"
    # Where metrics are, as vLLM's; `:8002/metrics` where they have a port of their own
    path: Annotated[str, value_parsers.metrics_path] = "/metrics"


@dataclass(frozen=True, slots=True)
class MetricsSpec:
    """Metrics of an engine that the gateway's own /metrics shows, summed over all servers."""

    # As `load.path`; None: not shown
    path: Annotated[str, value_parsers.metrics_path] | None = None
    names: tuple[Glob, ...] = ("nv_*",)  # of the families that are shown
    timeout: PositiveDuration = 2.0  # of all that a scrape reads; a server that is late keeps its last counts
    max_bytes: Size = 4 * 1024 * 1024  # of one server; a longer text is not shown


@dataclass(frozen=True, slots=True)
class KvEventsSpec:
    """Events of the endpoints' prefix caches: which blocks they have. vLLM's format, which SGLang and `pointsman llm`
    have too."""

    # The model's folder, with tokenizer.json and its chat template: events name tokens, and requests have text
    tokenizer: str
    port: Port = 5557  # of ZeroMQ at each endpoint's host
    # Where events that were missed are sent again; None: an endpoint that some are missed of is begun with anew
    replay_port: Port | None = None
    topic: str = ""  # of the messages; empty: any


@dataclass(frozen=True, slots=True)
class PrefixSpec:
    """`balance: prefix`: prompts with equal beginnings go where that beginning was seen, per worker."""

    # Of the prompt, compared as one; about 64 tokens
    block_bytes: Annotated[int, values.at_least(16, values.size)] = 256
    max_blocks: PositiveCount = 256  # of one prompt; later blocks are ignored
    max_entries: PositiveCount = 200_000  # blocks remembered, about 120 bytes each; those not seen for longest go first
    ttl: PositiveDuration = 600.0  # seconds that a block is remembered: engines forget too
    imbalance: PositiveCount = 8  # requests more than the least busy endpoint, from which on load decides
    imbalance_ratio: Ratio = 1.5  # and this many times as many
    events: KvEventsSpec | None = None  # None: what endpoints have is guessed from what they were sent


@dataclass(frozen=True, slots=True)
class AffinitySpec:
    """`balance: session`: when a new session avoids its hashed endpoint because that is overloaded."""

    imbalance: PositiveCount = 8  # requests more than the least busy endpoint, from which on load decides
    imbalance_ratio: Ratio = 1.5  # and this many times as many


@dataclass(frozen=True, slots=True)
class LocalitySpec:
    """Which endpoints get work first: those of the lowest `priority`, and of these the ones in the gateway's zone."""

    zone: Annotated[str, values.name] | None = None  # the gateway's own; None: all zones are alike
    # Where less of the first endpoints is healthy, the others get a part of the work; Envoy's is 1 / 1.4
    healthy_share: Annotated[float, values.between(0.01, 1.0, value_parsers.share)] = 0.7


@dataclass(frozen=True, slots=True)
class ModelsSpec:
    """Which endpoint serves which model."""

    # probe: the endpoints' own lists, read with the probes; none: all endpoints serve the same models
    source: Literal["probe", "none"] = "probe"
    # Where an endpoint lists them in OpenAI's form, Ollama's or TorchServe's; `:8081/models` at another port of its
    # host. None: where its protocol has them
    path: Annotated[str, value_parsers.metrics_path] | None = None
    # The answer to clients that query V2's repository index: known: from these lists, as far as they are known, which
    # are read again for it at most once a second; live: all endpoints are queried each time
    index: Literal["known", "live"] = "known"
    # A model that no endpoint lists: forward it to any of them, or refuse it with 404 where all lists are known
    unknown: Literal["forward", "refuse"] = "forward"
    remember: Duration = 5.0  # for how long an endpoint that refused a model gets no request for it; 0: never learn
    max_remembered: PositiveCount = 1000  # models with such endpoints, per worker; beyond, all are forgotten


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """A separately-run service that answers requests; its endpoints may serve different models."""

    name: str
    endpoints: tuple[EndpointSpec, ...]
    protocol: EngineProtocol = EngineProtocol.KSERVE  # what its endpoints speak; `kserve` is Triton's
    balance: Balance = Balance.POWER_OF_TWO  # near the best queueing at a constant price
    timeout: Duration = 60.0  # from the request's arrival to the first byte of the reply (0: none)
    try_timeout: Duration = 0.0  # one try's share of it, from sending to the first byte (0: all of it)
    idle_timeout: Duration = 60.0  # longest silence inside a streamed body (0: none)
    # How long requests wait for an endpoint while none is up, beside `timeout` (0: they are refused at once); at most
    # `connections.max_pending` of a worker
    wait_for_endpoint: Duration = 0.0
    activator: ActivatorSpec | None = None  # starts it when requests wait for it
    api_key: Text | None = field(default=None, repr=False)  # a secret; sent as `authorization: Bearer ...`
    # Added to each request; None: the client's own does not go on, as in `strip`
    headers: Mapping[HeaderName, Text | None] = field(default_factory=dict, repr=False)
    strip: tuple[StrippedHeaderName, ...] = ()  # fields of clients that the engine does not receive
    # Of language models
    base_path: Annotated[str, value_parsers.base_path] = "/v1"  # where OpenAI's API begins; empty: at the root
    dialects: tuple[str, ...] = ("chat", "completions", "embeddings")  # of OpenAI's API and Anthropic's, passed through
    # Request a stream even if the client wants none: some engines notice a disconnect only then
    always_stream: bool = False
    # Whose prefix cache a request shares: as the client says, or its tenant's alone
    cache_salt: Literal["client", "tenant"] = "client"
    # Request fields that the engine does not support, in a translation
    unsupported: Literal["refuse", "drop"] = "refuse"
    # For engines without a chat endpoint: the text of a Jinja file or of a tokenizer_config.json, named by its path
    chat_template: str | None = field(default=None, repr=False)
    # TorchServe's service envelope, as set in a model archive or the configuration
    envelope: Literal["body", "json", "kserve", "kservev2"] = "body"
    load: LoadSpec = LoadSpec()
    metrics: MetricsSpec = MetricsSpec()
    # Over which the share of an endpoint that joins or recovers grows to its full one, from a tenth (0: at once)
    slow_start: Annotated[float, values.between(0.0, 3600.0, values.duration)] = 0.0
    prefix: PrefixSpec = PrefixSpec()
    affinity: AffinitySpec = AffinitySpec()
    locality: LocalitySpec = LocalitySpec()
    models: ModelsSpec = ModelsSpec()
    health: HealthSpec = HealthSpec()
    breaker: BreakerSpec = BreakerSpec()
    retry: RetrySpec = RetrySpec()
    connections: ConnectionSpec = ConnectionSpec()
    overload: OverloadSpec | None = None  # None: endpoints get all requests for which there is a connection
    hedging: HedgingSpec | None = None  # None: a request is at one endpoint at a time
    tls: TlsSpec = TlsSpec()
    sources: tuple[SourceSpec, ...] = ()  # of further endpoints; rules write them among the endpoints
    location: Location | None = None

    @property
    def declared(self) -> tuple[EndpointSpec | SourceSpec, ...]:
        return (*self.endpoints, *self.sources)

    @property
    def speaks_rest(self) -> bool:
        return all(each.speaks_rest for each in self.declared)

    @property
    def speaks_grpc(self) -> bool:
        return all(each.speaks_grpc for each in self.declared)

    @property
    def is_encrypted(self) -> bool:
        """Whether some endpoint is, or may be."""
        return any(each.is_encrypted for each in self.declared)

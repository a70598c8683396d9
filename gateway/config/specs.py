"""Declarations of rule files as values: created by `config.rules`, immutable.

Times are seconds (float), sizes are bytes (int). Each field documents its meaning, unit and default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from gateway.config.experiment_specs import ExperimentSpec, ForcingSpec, LayerSpec, ShadowSpec
from gateway.config.rule_test_specs import RuleTestSpec
from gateway.protocol.engine_protocols import EngineProtocol
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

    url: str  # http://host:port or https://host:port, no path; grpc://... or grpcs://... where it has no REST
    grpc: str | None = None  # host:port of its gRPC, where it has one; encrypted where the url is https
    weight: float = 1.0  # its share of the work, beside the others of its engine; 0: as if it were drained

    @property
    def speaks_rest(self) -> bool:
        return self.url.startswith("http")

    @property
    def speaks_grpc(self) -> bool:
        return self.grpc is not None


@dataclass(frozen=True, slots=True)
class HealthSpec:
    """Active probes, sent by the control process to every endpoint."""

    path: str | None = None  # None: what engines of this protocol answer, as /v2/health/ready or /health
    interval: float = 2.0  # between probes; 0 switches probing off
    timeout: float = 1.0  # a probe that takes longer has failed
    unhealthy_after: int = 3  # failed probes in a row; 3 rides out one lost packet
    healthy_after: int = 1  # good probes in a row before an endpoint serves again


@dataclass(frozen=True, slots=True)
class BreakerSpec:
    """Passive ejection: what requests show about an endpoint.

    Only transport failures (connect, reset, timeout) and `statuses` count: a 4xx is the caller's fault and a 500 is
    mostly one model's, so neither means that the endpoint is down.
    """

    failures: int = 5  # in a row, until the endpoint is left out; 0 switches the breaker off
    open_for: float = 5.0  # seconds left out before one trial request; doubles up to 12 times that
    statuses: frozenset[int] = frozenset({502, 504})


@dataclass(frozen=True, slots=True)
class RetrySpec:
    """When a failed attempt is retried at another endpoint.

    Any request that did not reach an engine (refused connection) is retried. If it may have, only an idempotent one is:
    `safe` means GET and HEAD, `infer` that this engine's inferences without a sequence may run twice.
    """

    attempts: int = 2  # retries after the first try; 0 switches retries off
    idempotent: str = "safe"  # safe | infer
    budget: float = 0.2  # retries per request over the last 10 s: a failing fleet is not flooded
    budget_floor: int = 10  # retries that are always allowed in 10 s, so that small traffic can retry at all


@dataclass(frozen=True, slots=True)
class ConnectionSpec:
    """Limits of the connection pool, per worker and endpoint."""

    max_connections: int = 512
    max_pending: int = 1024  # requests that may wait for a connection; more are answered `overloaded`
    idle_timeout: float = 55.0  # idle connections are closed before common engines' 60 s; 0 disables reuse
    connect_timeout: float = 2.0
    max_streams: int = 100  # gRPC calls on one HTTP/2 connection before another one is made
    window_bytes: int = 1024 * 1024  # the flow-control window of a gRPC stream


@dataclass(frozen=True, slots=True)
class TlsSpec:
    """TLS to an https engine."""

    verify: bool = True
    ca: str | None = None  # PEM file; None: the system's authorities
    cert: str | None = None  # client certificate, PEM
    key: str | None = None
    server_name: str | None = None  # when the certificate names another host


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """Load that engines report, for balancing: other gateways and workers send them requests too."""

    source: str = "none"  # none | metrics: read with each probe | orca: read from each reply, on request
    path: str = "/metrics"  # where metrics are, as vLLM's; `:8002/metrics` where they have a port of their own


@dataclass(frozen=True, slots=True)
class PrefixSpec:
    """`balance: prefix`: prompts with equal beginnings go where that beginning was seen, per worker."""

    block_bytes: int = 256  # of the prompt, compared as one; about 64 tokens
    max_blocks: int = 256  # of one prompt; later blocks are ignored
    max_entries: int = 200_000  # blocks remembered, about 120 bytes each; those not seen for longest go first
    ttl: float = 600.0  # seconds that a block is remembered: engines forget too
    imbalance: int = 8  # requests more than the least busy endpoint, from which on load decides
    imbalance_ratio: float = 1.5  # and this many times as many


@dataclass(frozen=True, slots=True)
class AffinitySpec:
    """`balance: session`: when a new session avoids its hashed endpoint because that is overloaded."""

    imbalance: int = 8  # requests more than the least busy endpoint, from which on load decides
    imbalance_ratio: float = 1.5  # and this many times as many


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """A separately-run service that answers requests; all its endpoints serve the same models."""

    name: str
    endpoints: tuple[EndpointSpec, ...]
    protocol: EngineProtocol = EngineProtocol.KSERVE
    balance: Balance = Balance.POWER_OF_TWO  # near the best queueing at a constant price
    timeout: float = 60.0  # from the request's arrival to the first byte of the reply (0: none)
    try_timeout: float = 0.0  # one try's share of it, from sending to the first byte (0: all of it)
    idle_timeout: float = 60.0  # longest silence inside a streamed body (0: none)
    api_key: str | None = field(
        default=None, repr=False
    )  # a secret, so no repr shows it; sent as `authorization: Bearer ...`
    headers: Mapping[str, str] = field(default_factory=dict)  # added to each request
    # Of language models
    base_path: str = "/v1"  # where OpenAI's API begins; no slash at its end, empty where it begins at the root
    dialects: tuple[str, ...] = ("chat", "completions", "embeddings")  # of OpenAI's API and Anthropic's, passed through
    # Request a stream even if the client wants none: some engines notice a disconnect only then
    always_stream: bool = False
    unsupported: str = "refuse"  # refuse | drop: request fields that the engine does not support, in a translation
    # For engines without a chat endpoint: the text of a Jinja file or of a tokenizer_config.json, named by its path
    chat_template: str | None = field(default=None, repr=False)
    envelope: str = "body"  # how a TorchServe's handlers take their input: body | json | kserve | kservev2
    load: LoadSpec = LoadSpec()
    prefix: PrefixSpec = PrefixSpec()
    affinity: AffinitySpec = AffinitySpec()
    health: HealthSpec = HealthSpec()
    breaker: BreakerSpec = BreakerSpec()
    retry: RetrySpec = RetrySpec()
    connections: ConnectionSpec = ConnectionSpec()
    tls: TlsSpec = TlsSpec()
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class InputMatch:
    """Conditions on one input tensor; all of them must hold for the same tensor."""

    names: tuple[str, ...] = ()  # globs
    datatypes: tuple[str, ...] = ()
    rank: int | None = None
    shape: tuple[int, ...] | None = None  # -1 matches any length of that axis
    bytes_at_least: int | None = None  # size of the tensor's data


@dataclass(frozen=True, slots=True)
class MatchSpec:
    """Conditions of a route; all of them must hold, and within one a list means any of.

    Texts are globs (`*`, `?`, `[...]`), case-sensitive.
    """

    model: tuple[str, ...] = ()
    version: tuple[str, ...] = ()
    protocol: tuple[str, ...] = ()  # rest | grpc | openai
    operation: tuple[str, ...] = ()  # values of protocol.operations.Operation
    header: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # names in lower case
    parameter: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    input: tuple[InputMatch, ...] = ()  # each must be met by some input
    tenant: tuple[str, ...] = ()
    has_image: bool | None = None


@dataclass(frozen=True, slots=True)
class HistorySpec:
    """`session: {history: ...}`: conversations are stored in Redis and complete each request."""

    max_turns: int = 100  # messages of all roles; the oldest exchanges are dropped first
    max_tokens: int = 8000  # counted by engines or estimated; about a small model's context
    max_bytes: int = 1_000_000  # of one conversation in Redis, pictures included
    ttl: float = 86400.0  # seconds after the last exchange
    system: str = "keep"  # keep | request: system messages are stored, or sent with each request
    on_overflow: str = "drop_oldest"  # | refuse: a request that does not fit any more
    # | text: a prompt (V2, completions) is the user's message, or the continuation of one text
    prompts: str = "message"
    required: bool = False  # refuse what cannot be completed, since Redis does not answer
    patience: float = 0.05  # seconds to wait for Redis: losing the history is worse than 50 ms
    engine_holds_state: bool = False  # nothing is stored: the engine receives the session's id instead
    session_field: str | None = None  # the body's field for that id; None: the protocol's own, where it has one


@dataclass(frozen=True, slots=True)
class ReplaySpec:
    """`session: {sequences: replay}`: the inputs of Triton's sequences are stored and replayed at another endpoint when
    theirs is lost."""

    max_steps: int = 1000  # inputs of one sequence: replaying takes about as long as the first time
    max_bytes: int = 16 * 1024 * 1024  # of one sequence's inputs, in Redis or in memory
    ttl: float = 600.0  # seconds after the last input; Triton itself forgets a sequence after one second by default
    patience: float = 0.25  # seconds that a request waits for Redis, and is refused then: it would go the wrong way


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """`session:` of a route: state that is kept between requests."""

    history: HistorySpec | None = None
    replay: ReplaySpec | None = None  # None: a sequence ends with its endpoint


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """One rule: if `match` holds, go to `engine` or to an arm of `experiment`."""

    name: str
    match: MatchSpec
    engine: str | None = None
    experiment: str | None = None
    model: str | None = None  # the model's name at the engine; None: the requested name
    resume: bool = False  # a generation that breaks off continues elsewhere
    session: SessionSpec = SessionSpec()
    shadow: ShadowSpec | None = None  # a second engine that gets copies, for comparison
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class LimitSpec:
    """A limit on requests, shared by all workers of all gateways of one Redis.

    Each combination of the values of `per` has its own allowance; requests without a value (no tenant, no key) share
    one. Only inferences count.
    """

    name: str
    routes: tuple[str, ...] = ()  # the routes whose requests count; empty: all
    per: tuple[str, ...] = ()  # route | tenant | key | session | header:NAME; empty: one allowance for all
    requests_per_second: float | None = None
    burst: int | None = None  # requests at once after a pause; None: as many as a second brings, and at least 1
    tokens_per_minute: int | None = None  # of language models, prompts and completions; a minute's worth at once
    concurrency: int | None = None  # requests at the same time
    max_wait: float = 0.0  # seconds that a request may wait for its turn; 0: refuse at once
    location: Location | None = field(default=None, compare=False)

    @property
    def full(self) -> float:
        """Requests at once after a pause."""
        return float(self.burst) if self.burst is not None else max(1.0, self.requests_per_second or 0.0)

    @property
    def text(self) -> str:
        """The limit in words."""
        amounts = []
        if self.requests_per_second is not None:
            amounts.append(f"{self.requests_per_second:g} requests per second")
        if self.tokens_per_minute is not None:
            amounts.append(f"{self.tokens_per_minute} tokens per minute")
        if self.concurrency is not None:
            amounts.append(f"{self.concurrency} requests at the same time")
        return ", ".join(amounts) + (f" for each {' and '.join(self.per)}" if self.per else "")


@dataclass(frozen=True, slots=True)
class IdentitySpec:
    """Where requests carry their identity."""

    session_header: str = "x-session-id"
    # Read where the head names none: V2's parameters, and of OpenAI's bodies the scalar fields and the metadata
    session_parameters: tuple[str, ...] = ("session_id", "sequence_id")
    tenant_header: str = "x-tenant"
    session_cookie: str | None = None  # the name of a cookie, read where the header is missing
    session_ttl: float = 3600.0  # how long a session that is not seen is remembered


@dataclass(frozen=True, slots=True)
class RulesSpec:
    """All rule files together, checked: what one snapshot is compiled from."""

    engines: Mapping[str, EngineSpec]
    routes: tuple[RouteSpec, ...]
    experiments: Mapping[str, ExperimentSpec] = field(default_factory=dict)
    identity: IdentitySpec = IdentitySpec()
    digest: str = ""  # of the files' contents: the same text has the same digest everywhere
    limits: tuple[LimitSpec, ...] = ()
    layers: Mapping[str, LayerSpec] = field(default_factory=dict)
    forcing: ForcingSpec = field(default_factory=ForcingSpec)
    tests: tuple[RuleTestSpec, ...] = ()

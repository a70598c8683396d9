"""Declarations of rule files as values: created by `config.rules`, immutable.

A field's type determines how its key is read. Times are seconds (float), sizes are bytes (int). Each field documents
its meaning, unit and default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from gateway.config import value_parsers
from gateway.config.auth_specs import AccessSpec, AuthSpec, Network
from gateway.config.engine_specs import EndpointSpec, EngineSpec
from gateway.config.experiment_specs import ExperimentSpec, ForcingSpec, LayerSpec, ShadowSpec
from gateway.config.fallback_specs import FallbackSpec
from gateway.config.hook_specs import HookSpec
from gateway.config.limit_specs import BudgetSpec, LimitSpec, PriceSpec
from gateway.config.overload_specs import PriorityClassSpec
from gateway.config.value_parsers import (
    ClientHeaderName,
    Count,
    Datatype,
    EngineName,
    ExperimentName,
    FrontProtocol,
    Glob,
    HeaderName,
    Name,
    OperationName,
    PositiveCount,
    PositiveDuration,
    PositiveSize,
    Size,
    Text,
    TimeToLive,
)
from gateway.yaml.problems import Location


@dataclass(frozen=True, slots=True)
class InputMatch:
    """Conditions on one input tensor; all of them must hold for the same tensor."""

    name: tuple[Glob, ...] = ()  # of the tensor
    datatype: tuple[Datatype, ...] = ()  # of the tensor
    rank: Count | None = None  # number of axes
    shape: tuple[int, ...] | None = None  # -1 matches any length of that axis
    bytes_at_least: Size | None = None  # size of the tensor's data


@dataclass(frozen=True, slots=True)
class MatchSpec:
    """Conditions of a route; all of them must hold, and within one a list means any of.

    Texts are globs (`*`, `?`, `[...]`), case-sensitive.
    """

    model: tuple[Glob, ...] = ()  # the requested name
    version: tuple[Glob, ...] = ()  # the requested version; a request without one matches none
    protocol: tuple[FrontProtocol, ...] = ()  # rest | grpc | openai
    operation: tuple[OperationName, ...] = ()  # values of protocol.operations.Operation
    header: Mapping[HeaderName, tuple[Glob, ...]] = field(default_factory=dict)  # names in lower case
    # Of the body; numbers and booleans are compared as text
    parameter: Mapping[Text, tuple[Annotated[str, value_parsers.parameter_glob], ...]] = field(default_factory=dict)
    input: tuple[InputMatch, ...] = ()  # each must be met by some input
    tenant: tuple[Glob, ...] = ()  # by the tenant header, or with `auth:` the verified one
    has_image: bool | None = None  # whether some message of a chat has an image


@dataclass(frozen=True, slots=True)
class HistorySpec:
    """`session: {history: ...}`: conversations are stored in Redis and complete each request."""

    max_turns: PositiveCount = 100  # messages of all roles; the oldest exchanges are dropped first
    max_tokens: PositiveCount = 8000  # counted by engines or estimated; about a small model's context
    max_bytes: PositiveSize = 1_000_000  # of one conversation in Redis, pictures included
    ttl: TimeToLive = 86400.0  # seconds after the last exchange
    system: Literal["keep", "request"] = "keep"  # system messages are stored, or sent with each request
    on_overflow: Literal["drop_oldest", "refuse"] = "drop_oldest"  # or refuse a request that does not fit
    prompts: Literal["message", "text"] = "message"  # of V2 and completions: a user's message, or more of one text
    required: bool = False  # refuse what cannot be completed, since Redis does not answer
    patience: PositiveDuration = 0.05  # seconds to wait for Redis: losing the history is worse than 50 ms
    engine_holds_state: bool = False  # nothing is stored: the engine receives the session's id instead
    session_field: Text | None = None  # the body's field for that id; None: the protocol's own, where it has one


@dataclass(frozen=True, slots=True)
class ReplaySpec:
    """`session: {sequences: replay}`: the inputs of Triton's sequences are stored and replayed at another endpoint when
    theirs is lost."""

    max_steps: PositiveCount = 1000  # inputs of one sequence: replaying takes about as long as the first time
    max_bytes: PositiveSize = 16 * 1024 * 1024  # of one sequence's inputs, in Redis or in memory
    ttl: TimeToLive = 600.0  # seconds after the last input; Triton's own default is one second
    patience: PositiveDuration = 0.25  # seconds to wait for Redis; then the request is refused


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """`session:` of a route: state that is kept between requests."""

    history: HistorySpec | None = None
    replay: ReplaySpec | None = None  # None: a sequence ends with its endpoint


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """One rule: if `match` holds, go to `engine` or to an arm of `experiment`."""

    name: Name  # in replies, metrics and logs; each once
    match: MatchSpec = MatchSpec()
    engine: EngineName | None = None  # where requests go; this or `experiment`
    experiment: ExperimentName | None = None  # whose arms requests go to; this or `engine`
    model: Text | None = None  # the model's name at the engine; None: the requested name
    fallback: tuple[FallbackSpec, ...] = ()  # engines that answer where the first one cannot, in order
    resume: bool = False  # a generation that breaks off continues elsewhere
    max_body_bytes: PositiveSize | None = None  # of a request; None, or more than --max-body-bytes: that option
    session: SessionSpec = SessionSpec()
    shadow: ShadowSpec | None = None  # a second engine that gets copies, for comparison
    hooks: tuple[HookSpec, ...] = ()  # code of the operator that its requests pass, in this order
    allow: tuple[AccessSpec, ...] = ()  # the callers who may use it; empty: all
    refuse: tuple[AccessSpec, ...] = ()  # those who may not, whatever `allow` says
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class IdentitySpec:
    """Where requests carry their identity."""

    session_header: ClientHeaderName = "x-session-id"  # names the session of a request
    # Read where the head names none: V2's parameters, and of OpenAI's bodies the scalar fields and the metadata
    session_parameters: tuple[Text, ...] = ("session_id", "sequence_id")
    tenant_header: ClientHeaderName = "x-tenant"  # names its tenant
    trust_header: bool = False  # with `auth:`, the tenant header of a client is believed instead of its key's tenant
    trusted_proxies: tuple[Network, ...] = ()  # the same for clients that connect from there
    session_cookie: Text | None = None  # the name of a cookie, read where the header is missing
    session_ttl: PositiveDuration = 3600.0  # how long a session that is not seen is remembered


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input of a request."""

    name: str  # of the tensor
    datatype: Datatype  # of the tensor
    shape: tuple[int, ...]  # of the tensor
    bytes: Size | None = None  # None: the size of the shape; 0 for BYTES, whose elements have any length


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """The facts of a request that rules may use, under their names in `match:`."""

    model: str  # the requested name
    version: str | None = None  # the requested version
    protocol: FrontProtocol = "rest"  # rest | grpc | openai
    operation: OperationName = "infer"  # what is asked for
    header: Mapping[HeaderName, str] = field(default_factory=dict)  # names in lower case
    # Of the body
    parameter: Mapping[Text, Annotated[bool | int | float | str, value_parsers.parameter]] = field(default_factory=dict)
    input: tuple[TensorSpec, ...] = ()
    session: str | None = None  # as the session header has it
    tenant: str | None = None  # as the tenant header has it, or with `auth:` the verified caller
    key: str | None = None  # of the verified caller
    claim: Mapping[Text, tuple[str, ...]] = field(default_factory=dict)  # of the verified caller's token
    has_image: bool = False  # of a chat
    force: str | None = None  # EXPERIMENT=ARM, of a caller who may choose


@dataclass(frozen=True, slots=True)
class ExpectSpec:
    """The expected decision; None accepts anything."""

    route: Name | None = None  # the route that is taken
    engine: Name | None = None  # the engine that answers
    model: Text | None = None  # as sent to the engine
    experiment: Name | None = None  # the experiment of the route
    arm: Name | None = None  # the arm that is chosen
    no_route: bool = False  # the request is refused

    @property
    def needs_arm(self) -> bool:
        """Whether it depends on an experiment's choice."""
        return not self.no_route and (self.arm or self.engine or self.model) is not None


@dataclass(frozen=True, slots=True)
class RuleTestSpec:
    """A test case in a rule file."""

    name: str  # what it shows
    request: RequestSpec
    expect: ExpectSpec
    location: Location | None = field(default=None, compare=False)
    places: Mapping[str, Location] = field(default_factory=dict, compare=False)  # the location of each expectation


@dataclass(frozen=True, slots=True)
class RulesSpec:
    """All rule files together, checked: what one snapshot is compiled from."""

    engines: Mapping[str, EngineSpec]
    routes: tuple[RouteSpec, ...]
    experiments: Mapping[str, ExperimentSpec] = field(default_factory=dict)
    identity: IdentitySpec = IdentitySpec()
    auth: AuthSpec | None = None  # None: callers are not authenticated
    digest: str = ""  # of the files' contents: the same text has the same digest everywhere
    limits: tuple[LimitSpec, ...] = ()
    budgets: tuple[BudgetSpec, ...] = ()
    prices: tuple[PriceSpec, ...] = ()
    classes: tuple[PriorityClassSpec, ...] = ()  # priority classes, the highest first; empty: one for all
    layers: Mapping[str, LayerSpec] = field(default_factory=dict)
    forcing: ForcingSpec = field(default_factory=ForcingSpec)
    tests: tuple[RuleTestSpec, ...] = ()

    @property
    def of_files(self) -> tuple[object, ...]:
        """What is read from other files than the rule files, whose digest does not cover it."""
        return self.auth, self.engines, tuple(route.hooks for route in self.routes if route.hooks)


def with_endpoints(rules: RulesSpec, endpoints: Mapping[str, tuple[EndpointSpec, ...]]) -> RulesSpec:
    """The same rules with these endpoints of engines that have sources."""
    found = {
        name: replace(engine, endpoints=endpoints[name])
        for name, engine in rules.engines.items()
        if engine.sources and name in endpoints
    }
    return replace(rules, engines={**rules.engines, **found}) if found else rules

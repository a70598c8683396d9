"""Messages between the control process and its children: workers and the shadow process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.config.auth_specs import ApiKeySpec
from gateway.config.engine_specs import EndpointSpec, EngineSpec
from gateway.config.settings import Settings
from gateway.config.specs import RouteSpec, RulesSpec
from gateway.limits.budget_window import SpendingByBudget
from gateway.observability.audit_record import AuditRecord
from gateway.observability.metrics import CountersSnapshot
from gateway.protocol.advertised_models import AdvertisedModels
from gateway.protocol.engine_load import Load, Readiness
from gateway.protocol.feedback import Rating
from gateway.redis.address import RedisAddress
from gateway.shadow.comparison.report import RouteReport
from gateway.upstream.cached_blocks import BlockChanges
from gateway.upstream.tracked_prefix_index import SeenPrompt


@dataclass(frozen=True, slots=True)
class Start:
    """The first message to a child. `state` is all that was set so far. `listener_fds` are inherited listening sockets;
    a worker without any binds the settings' ports itself, with SO_REUSEPORT. `redis` is None where the gateway has
    none."""

    settings: Settings
    rules: RulesSpec
    number: int
    state: tuple[Setting, ...] = ()
    listener_fds: tuple[int, ...] = ()
    redis: RedisAddress | None = None
    captures: str = ""  # path of the socket of the shadow process
    handover: str = ""  # folder where a worker offers its listening sockets to a later gateway
    control_pid: int = 0


@dataclass(frozen=True, slots=True)
class RulesPart:
    """Engines and routes of the rules of the next `Start` or `UseRules`: they come before it, in parts, so that no part
    takes long to read."""

    engines: tuple[EngineSpec, ...] = ()
    routes: tuple[RouteSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class UseRules:
    """Swap to this snapshot of the rules."""

    rules: RulesSpec
    number: int


@dataclass(frozen=True, slots=True)
class SetHealth:
    """Results of the probes, by engine and endpoint URL. An endpoint without a condition has not been probed, one
    without models reports none."""

    health: Mapping[tuple[str, str], Readiness]
    models: Mapping[tuple[str, str], AdvertisedModels]


@dataclass(frozen=True, slots=True)
class UpdateHealth:
    """What has changed in them, and the loads reported since the last such message; None: the endpoint has no
    condition or no models any more, or has stopped reporting its load."""

    health: Mapping[tuple[str, str], Readiness | None] = field(default_factory=dict)
    models: Mapping[tuple[str, str], AdvertisedModels | None] = field(default_factory=dict)
    loads: Mapping[tuple[str, str], Load | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SetEndpoints:
    """The endpoints of engines that have sources, by engine: all that they have now."""

    endpoints: Mapping[str, tuple[EndpointSpec, ...]]


@dataclass(frozen=True, slots=True)
class UpdateCachedBlocks:
    """The prefix caches of an engine's endpoints have changed, by URL."""

    engine: str
    changes: Mapping[str, BlockChanges]


@dataclass(frozen=True, slots=True)
class PromptsSeen:
    """From a worker: prompts that are new to the index of an engine whose caches are followed."""

    engine: str
    prompts: Sequence[SeenPrompt]


@dataclass(frozen=True, slots=True)
class SetDrained:
    """Send no new work to these endpoints, by engine and URL, and to all others again."""

    endpoints: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class SetKeys:
    """These are the API keys in Redis; unless they are current, others may be valid, too."""

    keys: tuple[ApiKeySpec, ...]
    is_current: bool


@dataclass(frozen=True, slots=True)
class SetWeights:
    """Each experiment's share of units by arm; an experiment that is absent uses the rules' weights. `runs` are the
    numbers of the runs that set them: a session keeps an arm that the same run assigned."""

    weights: Mapping[str, Mapping[str, float]]
    runs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SetLogLevel:
    """Log from this level on: debug, info, warning or error."""

    level: str


@dataclass(frozen=True, slots=True)
class SetUnready:
    """Readiness says no from now on: the gateway will drain."""


@dataclass(frozen=True, slots=True)
class SetSpending:
    """Totals of budgets that have changed; they have the reports of these workers in them, up to a number."""

    budgets: SpendingByBudget
    confirmed: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RenameRegions:
    """Clients share memory: name its regions at engines by this secret."""

    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SealPins:
    """Sign what clients keep of the arms of their sessions by this key."""

    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ShareMemory:
    """From a worker: have all workers rename regions; reply with True once they do."""


@dataclass(frozen=True, slots=True)
class LookAtModels:
    """From a worker: these endpoints, by engine and URL, may serve other models; reply with True once all workers have
    been sent their lists."""

    endpoints: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Watch:
    """Report a share of the requests that end, at most `rate` a second; a rate of 0 stops the reports.

    `with_body_facts` adds what rules can match in bodies. `redacted` headers and parameters (lower case) are reported
    without their values."""

    rate: float
    with_body_facts: bool = False
    share: float = 1.0
    redacted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UseReports:
    """To the shadow process: continue these reports of its predecessor, by route."""

    reports: Mapping[str, RouteReport]


@dataclass(frozen=True, slots=True)
class ForgetReport:
    """To the shadow process: reset this route's report."""

    route: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Stop accepting, let requests in flight finish within the settings' limit, and exit."""


@dataclass(frozen=True, slots=True)
class AwaitRules:
    """Reply once all rules that came before are used, or refused."""


@dataclass(frozen=True, slots=True)
class GetCounters:
    """Reply with a `CountersSnapshot`."""


@dataclass(frozen=True, slots=True)
class ListRequests:
    """Reply with a list of the oldest requests under way, `limit` at most."""

    limit: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Reply with anything: whoever does not for too long hangs."""


@dataclass(frozen=True, slots=True)
class GetReadiness:
    """Reply whether readiness says yes."""


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Cancel the requests with this id; reply with their number."""

    id: str


@dataclass(frozen=True, slots=True)
class GetReports:
    """To the shadow process: reply with its reports, by route."""


@dataclass(frozen=True, slots=True)
class Query:
    """A request for a `QueryReply` with the same token. A `Rating` is to be counted by the worker that answered the
    rated request; from a worker, by another one. The reply is whether it was counted."""

    token: int
    request: _Request


@dataclass(frozen=True, slots=True)
class QueryReply:
    """The result of a `Query`. A worker sends its counters with token 0 before it exits."""

    token: int
    result: Any


@dataclass(frozen=True, slots=True)
class CountersPart:
    """A part of the counters that the next `QueryReply` has the last part of: a worker that serves does not stop to
    write the counters of thousands of routes."""

    counters: CountersSnapshot


@dataclass(frozen=True, slots=True)
class Decisions:
    """From a worker: requests that have ended, and how many were left out because of the rate."""

    decisions: list[dict[str, Any]]
    skipped: int


@dataclass(frozen=True, slots=True)
class Spans:
    """From a child: requests that are traced, as `gateway.observability.spans` encodes them, and how many were left
    out; `clock` is the wall clock's lead over `time.monotonic`."""

    encoded: bytes
    dropped: int
    clock: float


@dataclass(frozen=True, slots=True)
class Audited:
    """From a worker: an operation that changes engines has ended."""

    record: AuditRecord


@dataclass(frozen=True, slots=True)
class Spent:
    """From a worker: what it has counted for budgets since its last report; `batch` numbers its reports."""

    worker: str
    batch: int
    budgets: SpendingByBudget


@dataclass(frozen=True, slots=True)
class EngineWanted:
    """From a worker: requests wait for an engine that is down."""

    engine: str


@dataclass(frozen=True, slots=True)
class Serving:
    """From a child: it accepts connections."""


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """From a child: why it cannot start, or cannot use what it was sent."""

    message: str


_Question = AwaitRules | GetCounters | GetReadiness | GetReports | ListRequests | Ping
_Request = _Question | CancelRequest | Rating | ShareMemory | LookAtModels
# What holds until another one of its kind comes.
Setting = (
    SetEndpoints
    | SetHealth
    | SetSpending
    | SetDrained
    | SetUnready
    | SetKeys
    | SetLogLevel
    | SetWeights
    | RenameRegions
    | SealPins
    | Watch
    | UseReports
)
_Rules = Start | RulesPart | UseRules
_Command = UpdateHealth | UpdateCachedBlocks | ForgetReport | Drain | Query
_Status = Serving | WorkerFailed
_Report = QueryReply | CountersPart | PromptsSeen | Decisions | Spans | Audited | Spent | EngineWanted | _Status
Message = _Rules | Setting | _Command | _Report

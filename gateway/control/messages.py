"""Messages between the control process and its children: workers and the shadow process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.config.settings import Settings
from gateway.config.specs import RulesSpec
from gateway.observability.metrics import CountersSnapshot
from gateway.observability.stats import LiveRequest
from gateway.protocol.engine_load import Load, Readiness
from gateway.protocol.feedback import Rating
from gateway.redis.address import RedisAddress
from gateway.shadow.comparison.report import RouteReport


@dataclass(frozen=True, slots=True)
class Start:
    """The first message to a child. `listener_fds` are inherited listening sockets; a worker without any binds the
    settings' ports itself, with SO_REUSEPORT. `redis` is None where the gateway has none."""

    settings: Settings
    rules: RulesSpec
    number: int
    health: Mapping[tuple[str, str], Readiness] = field(default_factory=dict)
    models: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    listener_fds: tuple[int, ...] = ()
    redis: RedisAddress | None = None
    drained: frozenset[tuple[str, str]] = frozenset()
    log_level: str = "info"
    weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    runs: Mapping[str, int] = field(default_factory=dict)
    captures: str = ""  # path of the socket of the shadow process
    watch: Watch | None = None


@dataclass(frozen=True, slots=True)
class UseRules:
    """Swap to this snapshot of the rules."""

    rules: RulesSpec
    number: int


@dataclass(frozen=True, slots=True)
class SetHealth:
    """Results of the probes, by engine and endpoint URL. An endpoint without a condition has not been probed, one
    without models reports none. `models` None: unchanged. `loads` are those reported since the last such message;
    None: the endpoint has stopped reporting its load."""

    health: Mapping[tuple[str, str], Readiness]
    models: Mapping[tuple[str, str], frozenset[str]] | None = None
    loads: Mapping[tuple[str, str], Load | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SetDrained:
    """Send no new work to these endpoints, by engine and URL, and to all others again."""

    endpoints: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class SetWeights:
    """Each experiment's share of units by arm; an experiment that is absent uses the rules' weights. `runs` are the
    numbers of the runs that set them: a session keeps an arm that the same run assigned."""

    weights: Mapping[str, Mapping[str, float]]
    runs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drain:
    """Stop accepting, let requests in flight finish within the settings' limit, and exit."""


@dataclass(frozen=True, slots=True)
class GetCounters:
    """Reply with `Counters`."""

    token: int


@dataclass(frozen=True, slots=True)
class SetLogLevel:
    """Log from this level on: debug, info, warning or error."""

    level: str


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
class ListRequests:
    """Reply with the oldest requests under way, `limit` at most."""

    token: int
    limit: int


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Cancel the requests with this id; reply with `Cancelled`."""

    token: int
    id: str


@dataclass(frozen=True, slots=True)
class ActiveRequests:
    """From a worker: its requests under way."""

    token: int
    requests: list[LiveRequest]


@dataclass(frozen=True, slots=True)
class Cancelled:
    """From a worker: how many requests it has cancelled."""

    token: int
    count: int


@dataclass(frozen=True, slots=True)
class UseReports:
    """To the shadow process: continue these reports of its predecessor, by route."""

    reports: Mapping[str, RouteReport]


@dataclass(frozen=True, slots=True)
class GetReports:
    """To the shadow process: reply with `Reports`."""

    token: int


@dataclass(frozen=True, slots=True)
class ForgetReport:
    """To the shadow process: reset this route's report."""

    route: str


@dataclass(frozen=True, slots=True)
class Reports:
    """From the shadow process: its reports, by route."""

    token: int
    reports: Mapping[str, RouteReport]


@dataclass(frozen=True, slots=True)
class TakeFeedback:
    """To a worker: count this rating if you answered the request. From a worker that did not: pass it to the others."""

    token: int
    rating: Rating


@dataclass(frozen=True, slots=True)
class FeedbackCounted:
    """The reply to `TakeFeedback`: whether a worker has counted the rating."""

    token: int
    is_counted: bool


@dataclass(frozen=True, slots=True)
class Decisions:
    """From a worker: requests that have ended, and how many were left out because of the rate."""

    decisions: list[dict[str, Any]]
    skipped: int


@dataclass(frozen=True, slots=True)
class Serving:
    """From a worker: it accepts connections."""

    pid: int


@dataclass(frozen=True, slots=True)
class Counters:
    """From a worker: its counters; `token` is 0 for those that it sends unrequested before it exits."""

    token: int
    snapshot: CountersSnapshot


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """From a worker: why it cannot start, or cannot use what it was sent."""

    message: str


WorkerSetting = UseRules | SetHealth | SetDrained | SetLogLevel | SetWeights | Watch
WorkerRequest = GetCounters | ListRequests | CancelRequest | TakeFeedback
WorkerMessage = Start | WorkerSetting | WorkerRequest | Drain | FeedbackCounted
Answer = Counters | ActiveRequests | Cancelled | FeedbackCounted  # replies that carry a token
ShadowMessage = UseReports | GetReports | ForgetReport | Reports
Message = WorkerMessage | Serving | WorkerFailed | Decisions | Answer | ShadowMessage

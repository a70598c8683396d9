"""Values that travel from workers to the control process, beside the series of requests, and how they are summed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.redis.bounded_client import StoreCounts

# Accounts shown of each limit: those with the most requests under way, then the last used.
MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """A request under way, as operators see it. `age` is in seconds; `stage` is what it waits for: reading, limited,
    connecting, asking or answering."""

    id: str
    worker: int
    protocol: str
    method: str
    path: str
    peer: str
    stage: str
    age: float
    route: str
    arm: str
    engine: str
    endpoint: str
    model: str


@dataclass(slots=True)
class StoreUse(StoreCounts):
    """The use of Redis by a worker since its start, or by several. `available` and `live` are current: how many of them
    call it, and receive its events."""

    received: int = 0  # events
    gaps: int = 0  # times that events were missed, and all state was read again
    available: int = 0
    live: int = 0


@dataclass(slots=True)
class PrefixUse:
    """The requests of an engine with `balance: prefix` since a worker's start, and the blocks of their prompts."""

    requests: int = 0
    followed: int = 0  # went to an endpoint that has seen the beginning of the prompt
    blocks: int = 0
    followed_blocks: int = 0  # that the endpoint has seen


@dataclass(frozen=True, slots=True)
class CacheEvents:
    """What a gateway has received of one engine's KV events, and knows by them now."""

    events: int = 0
    gaps: int = 0  # after which an endpoint was begun with anew
    prompts: int = 0  # of clients, that were joined with the engine's tokens
    unplaced: int = 0  # stored blocks that follow unknown ones, or found no room
    blocks: int = 0  # known now


@dataclass(slots=True)
class SessionUse:
    """The sessions of a worker since its start, or of several; `known` are those in its cache now."""

    read: int = 0  # from Redis
    unread: int = 0  # continued without Redis, which was late or away
    created: int = 0
    shed: int = 0  # new ones, sent elsewhere than their overloaded home
    moved: Mapping[tuple[str, str, str], int] = field(default_factory=dict)  # by engine, endpoint they left, and reason
    sequences_lost: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by engine and endpoint
    known: int = 0
    sequences_moved: Mapping[tuple[str, str, str], int] = field(default_factory=dict)  # as `moved`


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The state of a run at this gateway; `step` is 0 outside a ramp."""

    status: str
    step: int
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ShadowCounts:
    """The mirrored requests of one route."""

    captured: int = 0  # copied by workers
    mirrored: int = 0  # of these, sent to the candidate
    outcomes: Mapping[str, int] = field(default_factory=dict)  # by ComparisonOutcome
    dropped: Mapping[str, int] = field(default_factory=dict)  # by reason


@dataclass(slots=True)
class AccountSnapshot:
    """One key of a limit. `requests` and `tokens` are the workers' remaining allowance, None where not limited."""

    in_use: int = 0
    requests: float | None = None
    tokens: float | None = None


@dataclass(slots=True)
class LimitSnapshot:
    """One limit. `accounts` is the sum of the workers' numbers of accounts, `shown` are some of them, by key;
    `is_local`: some worker decides without Redis."""

    name: str
    admitted: int = 0
    refused: int = 0
    waited: int = 0
    accounts: int = 0
    in_use: int = 0
    shown: Mapping[str, AccountSnapshot] = field(default_factory=dict)
    is_local: bool = False


@dataclass(slots=True)
class OverloadSnapshot:
    """The admission of one engine with `overload:`; classes by name."""

    in_flight: int = 0
    admitted: int = 0
    queued: int = 0  # requests that had to wait
    waiting: Mapping[str, int] = field(default_factory=dict)  # in the queue, by class
    refused: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # by class and reason
    limits: Mapping[str, int] = field(default_factory=dict)  # requests at a time, by endpoint

    def totals(self) -> OverloadSnapshot:
        """What remains of it when its worker has ended."""
        return OverloadSnapshot(admitted=self.admitted, queued=self.queued, refused=self.refused)


@dataclass(slots=True)
class BudgetAccountUse:
    """What one account of a budget has used in the current window; `used` is the largest share of what it may."""

    account: str
    used: float


@dataclass(slots=True)
class BudgetUse:
    """One budget in the current window: `spent` by unit, and the accounts that have used most of theirs."""

    accounts: int
    exhausted: int
    reset_at: int  # in seconds since 1970
    spent: Mapping[str, float]
    shown: list[BudgetAccountUse]


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """A source of an engine's endpoints as operators see it.

    `answered_at` is the time of its last answer, in seconds since 1970, 0 before the first; `error` is why it has none
    since, empty where it has; `left_out` are endpoints beyond its limit.
    """

    engine: str
    source: str
    endpoints: int
    leaving: int
    answered_at: float
    failures: int
    error: str
    is_empty: bool = False  # it has no endpoint any more, and those that it had are kept
    left_out: int = 0


def add_up(parts: Iterable[Any]) -> Any:
    """The sum of values of one type, leaf by leaf; None counts as absent. Numbers are added, of truths one suffices;
    lists, mappings and dataclasses are added by their items. Anything else, frozen dataclasses too, is the first's."""
    present = [part for part in parts if part is not None]
    if len(present) < 2:
        return present[0] if present else None
    first: Any = present[0]
    kind = type(first)
    if kind is int or kind is float:
        return sum(present)
    if kind is bool:
        return any(present)
    if kind is list:
        return [sum(items) for items in zip(*present, strict=True)]
    if isinstance(first, Mapping):
        by_key: dict[Any, list[Any]] = {}
        for part in present:
            for key, value in part.items():
                by_key.setdefault(key, []).append(value)
        return {key: values[0] if len(values) == 1 else add_up(values) for key, values in by_key.items()}
    parameters = getattr(kind, "__dataclass_params__", None)
    if parameters is None or parameters.frozen:
        return first
    return kind(*[add_up([getattr(part, name) for part in present]) for name in kind.__dataclass_fields__])

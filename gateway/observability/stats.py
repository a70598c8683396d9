"""Values that travel from workers to the control process, beside the series of requests, and how they are summed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

T = TypeVar("T")

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


@dataclass(frozen=True, slots=True)
class StoreUse:
    """The use of Redis by a worker since its start, or by several. `available` and `live` are current: how many of them
    call it, and receive its events."""

    calls: int = 0
    late: int = 0  # the reply missed its deadline
    failed: int = 0  # unreachable, or not serving
    refused: int = 0  # a wrong type, no memory
    skipped: int = 0  # not sent, after earlier failures
    dropped: int = 0  # queued and never written
    seconds: float = 0.0  # of all calls with a reply
    received: int = 0  # events
    gaps: int = 0  # times that events were missed, and all state was read again
    available: int = 0
    live: int = 0

    @property
    def ended(self) -> StoreUse:
        """What remains of it when its worker has ended."""
        return replace(self, available=0, live=0)


@dataclass(frozen=True, slots=True)
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

    @property
    def ended(self) -> SessionUse:
        """What remains of it when its worker has ended."""
        return replace(self, known=0)


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


@dataclass(frozen=True, slots=True)
class AccountSnapshot:
    """One key of a limit. `requests` and `tokens` are the workers' remaining allowance, None where not limited."""

    who: str
    in_use: int = 0
    requests: float | None = None
    tokens: float | None = None


@dataclass(frozen=True, slots=True)
class LimitSnapshot:
    """One limit. `accounts` is the sum of the workers' numbers of accounts, `shown` are some of them; `is_shared`:
    Redis decides in all workers."""

    name: str
    admitted: int = 0
    refused: int = 0
    waited: int = 0
    accounts: int = 0
    in_use: int = 0
    shown: tuple[AccountSnapshot, ...] = ()
    is_shared: bool = True


def without_worker(limit: LimitSnapshot) -> LimitSnapshot:
    """What remains of it when its worker has ended."""
    return replace(limit, accounts=0, in_use=0, shown=(), is_shared=True)


def add_up_limits(workers: Iterable[Iterable[LimitSnapshot]]) -> dict[str, LimitSnapshot]:
    """Sum several workers' limits by name."""
    sums: dict[str, LimitSnapshot] = {}
    for limits in workers:
        for limit in limits:
            current = sums.get(limit.name)
            sums[limit.name] = limit if current is None else _sum_limits(current, limit)
    return sums


def _sum_limits(one: LimitSnapshot, other: LimitSnapshot) -> LimitSnapshot:
    return LimitSnapshot(
        name=one.name,
        admitted=one.admitted + other.admitted,
        refused=one.refused + other.refused,
        waited=one.waited + other.waited,
        accounts=one.accounts + other.accounts,
        in_use=one.in_use + other.in_use,
        shown=_sum_accounts((*one.shown, *other.shown)),
        is_shared=one.is_shared and other.is_shared,
    )


def _sum_accounts(accounts: Iterable[AccountSnapshot]) -> tuple[AccountSnapshot, ...]:
    sums: dict[str, AccountSnapshot] = {}
    for account in accounts:
        current = sums.get(account.who)
        if current is not None:
            account = AccountSnapshot(
                account.who,
                current.in_use + account.in_use,
                _sum_amounts(current.requests, account.requests),
                _sum_amounts(current.tokens, account.tokens),
            )
        sums[account.who] = account
    return tuple(sorted(sums.values(), key=lambda account: -account.in_use)[:MAX_SHOWN])


def _sum_amounts(one: float | None, other: float | None) -> float | None:
    return other if one is None else one + (other or 0)


def total(uses: Iterable[T | None]) -> T | None:
    """The sum of dataclasses of numbers and of mappings to numbers, field by field; None where there is none."""
    present = [use for use in uses if use is not None]
    if not present:
        return None
    kind: Any = type(present[0])
    summed: T = kind(**{field.name: _sum([getattr(use, field.name) for use in present]) for field in fields(kind)})
    return summed


def _sum(values: list[Any]) -> Any:
    if not isinstance(values[0], Mapping):
        return sum(values)
    counted: Counter[Any] = Counter()
    for value in values:
        counted.update(value)
    return dict(counted)

"""What happened to limits: what travels from a worker to the control process, and how several workers' add up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

# Accounts that are shown of each limit: those with the most under way, then the last used.
MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class AccountSnapshot:
    """One of those whom a limit tells apart. `requests` and `tokens` are what workers have at hand of the allowance,
    None where these are not limited."""

    who: str
    in_use: int = 0
    requests: float | None = None
    tokens: float | None = None


@dataclass(frozen=True, slots=True)
class LimitSnapshot:
    """One limit. `accounts` are how many the workers know (one that several know counts for each), `shown` some of
    them; `is_shared`: Redis decides in all workers."""

    name: str
    admitted: int = 0
    refused: int = 0
    waited: int = 0
    accounts: int = 0
    in_use: int = 0
    shown: tuple[AccountSnapshot, ...] = ()
    is_shared: bool = True


def without_worker(limit: LimitSnapshot) -> LimitSnapshot:
    """What stays of it when its worker is gone."""
    return replace(limit, accounts=0, in_use=0, shown=(), is_shared=True)


def add_up_limits(workers: Iterable[Iterable[LimitSnapshot]]) -> dict[str, LimitSnapshot]:
    """Sum several workers' limits by name."""
    sums: dict[str, LimitSnapshot] = {}
    for limits in workers:
        for limit in limits:
            known = sums.get(limit.name)
            sums[limit.name] = limit if known is None else _sum(known, limit)
    return sums


def _sum(one: LimitSnapshot, other: LimitSnapshot) -> LimitSnapshot:
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
        known = sums.get(account.who)
        if known is not None:
            account = AccountSnapshot(
                account.who,
                known.in_use + account.in_use,
                _sum_amounts(known.requests, account.requests),
                _sum_amounts(known.tokens, account.tokens),
            )
        sums[account.who] = account
    return tuple(sorted(sums.values(), key=lambda account: -account.in_use)[:MAX_SHOWN])


def _sum_amounts(one: float | None, other: float | None) -> float | None:
    return other if one is None else one + (other or 0)

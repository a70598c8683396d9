"""A worker's limits as the control process counts and shows them."""

from __future__ import annotations

from heapq import nlargest

from gateway.limits.account import Account
from gateway.limits.limit import Limit
from gateway.limits.limiter import Limiter
from gateway.observability.limit_stats import MAX_SHOWN, AccountSnapshot, LimitSnapshot


def limits_counted(limiter: Limiter) -> list[LimitSnapshot]:
    """All limits in force."""
    return [_counted(limit, limiter.is_shared) for limit in limiter.limits]


def _counted(limit: Limit, is_shared: bool) -> LimitSnapshot:
    accounts = limit.accounts.values()
    shown = nlargest(MAX_SHOWN, accounts, key=lambda account: (_in_use(account), account.used_at))
    counts = limit.counts
    return LimitSnapshot(
        name=limit.spec.name,
        admitted=counts.admitted,
        refused=counts.refused,
        waited=counts.waited,
        accounts=len(accounts),
        in_use=sum(map(_in_use, accounts)),
        shown=tuple(_shown(account) for account in shown),
        is_shared=is_shared,
    )


def _in_use(account: Account) -> int:
    return account.slots.in_use if account.slots is not None else 0


def _shown(account: Account) -> AccountSnapshot:
    return AccountSnapshot(
        account.shown,
        _in_use(account),
        account.requests.available if account.requests is not None else None,
        account.tokens.available if account.tokens is not None else None,
    )

"""All that a worker counts, as the control process collects it."""

from __future__ import annotations

from dataclasses import asdict
from heapq import nlargest

from gateway.dataplane.context.data_plane import DataPlane
from gateway.limits.account import Account
from gateway.limits.limit import Limit
from gateway.limits.limiter import Limiter
from gateway.net import descriptors
from gateway.observability.metrics import CountersSnapshot
from gateway.observability.stats import MAX_SHOWN, AccountSnapshot, LimitSnapshot, SessionUse, StoreUse


def counters_of(plane: DataPlane) -> CountersSnapshot:
    """The counters of a worker, and the state of its endpoints, limits, sessions and Redis."""
    endpoints = [(name, endpoint) for name, engine in plane.snapshot.engines.items() for endpoint in engine.endpoints]
    return CountersSnapshot(
        series=plane.metrics.snapshot(),
        connections=len(plane.connections),
        rules_number=plane.snapshot.number,
        breakers_open={(name, endpoint.url): not endpoint.breaker.is_closed for name, endpoint in endpoints},
        loads={
            (name, endpoint.url): endpoint.load
            for name, endpoint in endpoints
            if endpoint.load is not None and endpoint.engine.load.source == "orca"
        },
        limits=limits_of(plane.limiter),
        arms=plane.metrics.arms.counted(),
        store=_store_use(plane),
        sessions=_session_use(plane),
        captures=dict(plane.tap.counts),
        descriptors=(descriptors.num_open(), descriptors.limit()),
    )


def _session_use(plane: DataPlane) -> SessionUse:
    book = plane.affinity.book
    counts = book.counts
    return SessionUse(
        read=counts.read,
        unread=counts.unread,
        created=counts.created,
        shed=counts.shed,
        moved=dict(counts.moved),
        sequences_lost=dict(counts.sequences_lost),
        sequences_moved=dict(counts.sequences_moved),
        known=book.num_sessions,
    )


def _store_use(plane: DataPlane) -> StoreUse | None:
    store, news = plane.store, plane.news
    if store is None or news is None:
        return None
    return StoreUse(
        **asdict(store.counts), received=news.received, gaps=news.gaps, available=store.is_available, live=news.is_live
    )


def limits_of(limiter: Limiter) -> list[LimitSnapshot]:
    """All limits in force."""
    return [_limit(limit, limiter.is_shared) for limit in limiter.limits]


def _limit(limit: Limit, is_shared: bool) -> LimitSnapshot:
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
        shown=tuple(_account(account) for account in shown),
        is_shared=is_shared,
    )


def _in_use(account: Account) -> int:
    return account.slots.in_use if account.slots is not None else 0


def _account(account: Account) -> AccountSnapshot:
    return AccountSnapshot(
        account.shown,
        _in_use(account),
        account.requests.available if account.requests is not None else None,
        account.tokens.available if account.tokens is not None else None,
    )

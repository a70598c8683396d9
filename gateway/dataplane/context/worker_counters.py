"""All that a worker counts, as the control process collects it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from heapq import nlargest
from itertools import islice

from gateway.dataplane.context.data_plane import DataPlane
from gateway.limits.account import Account
from gateway.limits.limit import Limit
from gateway.limits.limiter import Limiter
from gateway.net import descriptors
from gateway.observability.metrics import CountersSnapshot, joined
from gateway.observability.stats import (
    MAX_SHOWN,
    AccountSnapshot,
    LimitSnapshot,
    OverloadSnapshot,
    PrefixUse,
    SessionUse,
    StoreUse,
)

# Series or endpoints of one part, which takes less than a millisecond.
_PART_SIZE = 24


def counters_of(plane: DataPlane) -> CountersSnapshot:
    """The counters of a worker, and the state of its endpoints, limits, sessions and Redis."""
    return joined(list(counters_in_parts(plane)))


def counters_in_parts(plane: DataPlane) -> Iterator[CountersSnapshot]:
    """The same in parts, of which none takes long: the series, the endpoints, and last the rest."""
    series = iter(list(plane.metrics.by_key.items()))
    while batch := dict(islice(series, _PART_SIZE)):
        yield CountersSnapshot(series=batch)
    engines = plane.snapshot.engines.items()
    endpoints = iter([(name, endpoint) for name, engine in engines for endpoint in engine.endpoints])
    while several := list(islice(endpoints, _PART_SIZE * 8)):
        yield CountersSnapshot(
            breakers_open={(name, endpoint.url): not endpoint.breaker.is_closed for name, endpoint in several},
            loads={
                (name, endpoint.url): endpoint.load
                for name, endpoint in several
                if endpoint.load is not None and endpoint.engine.load.source == "orca"
            },
        )
    yield CountersSnapshot(
        connections=len(plane.connections),
        limits=limits_of(plane.limiter),
        overloads=_overloads(plane),
        prefixes={
            name: PrefixUse(each.num_requests, each.num_followed, each.num_blocks, each.num_followed_blocks)
            for name, engine in plane.snapshot.engines.items()
            if (each := engine.prefixes) is not None
        },
        budgets_refused={budget.spec.name: budget.refused for budget in plane.budgets.budgets},
        arms=plane.metrics.arms.counted(),
        fallbacks=plane.metrics.fallbacks,
        hedges=plane.metrics.hedges,
        hedges_suppressed=plane.metrics.hedges_suppressed,
        endpoint_waits=plane.endpoint_waits.outcomes,
        endpoint_waiting=plane.endpoint_waits.waiting,
        store=_store_use(plane),
        sessions=_session_use(plane),
        captures=plane.tap.counts,
        descriptors={os.getpid(): (descriptors.num_open(), descriptors.limit())},
    )


def _session_use(plane: DataPlane) -> SessionUse:
    book = plane.affinity.book
    counts = book.counts
    return SessionUse(
        read=counts.read,
        unread=counts.unread,
        created=counts.created,
        shed=counts.shed,
        moved=counts.moved,
        sequences_lost=counts.sequences_lost,
        sequences_moved=counts.sequences_moved,
        known=book.num_sessions,
    )


def _store_use(plane: DataPlane) -> StoreUse | None:
    store, event_bus = plane.store, plane.event_bus
    if store is None or event_bus is None:
        return None
    counts = Counter(asdict(store.counts))
    if plane.arm_store is not None:
        counts.update(asdict(plane.arm_store.counts))
    return StoreUse(
        **counts,
        received=event_bus.received,
        gaps=event_bus.gaps,
        available=int(store.is_available),
        live=int(event_bus.is_live),
    )


def limits_of(limiter: Limiter) -> dict[str, LimitSnapshot]:
    """All limits in force, by name."""
    return {limit.spec.name: _limit(limit, limiter.is_shared) for limit in limiter.limits}


def _overloads(plane: DataPlane) -> dict[str, OverloadSnapshot]:
    """Those of all engines with `overload:`."""
    admissions = ((name, engine.overload) for name, engine in plane.snapshot.engines.items())
    found: dict[str, OverloadSnapshot] = {}
    for name, admission in admissions:
        if admission is None:
            continue
        refused: dict[str, dict[str, int]] = {}
        for (of_class, why), number in admission.refused.items():
            refused.setdefault(of_class, {})[why] = number
        found[name] = OverloadSnapshot(
            in_flight=admission.in_flight,
            admitted=admission.admitted,
            queued=admission.queued,
            waiting=admission.waiting,
            refused=refused,
            limits=admission.limits,
        )
    return found


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
        shown={account.shown: _account(account) for account in shown},
        is_local=not is_shared,
    )


def _in_use(account: Account) -> int:
    return account.slots.in_use if account.slots is not None else 0


def _account(account: Account) -> AccountSnapshot:
    return AccountSnapshot(
        _in_use(account),
        account.requests.available if account.requests is not None else None,
        account.tokens.available if account.tokens is not None else None,
    )

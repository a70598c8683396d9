"""A queue with priority classes, fair between tenants, last in first out where it is overloaded. Pure.

A higher class is always served first. Within a class, tenants with waiting requests have turns, each as many requests
as its weight (deficit round robin; Shreedhar and Varghese, 1995). A tenant whose requests have waited longer than
`target` for a whole `interval` is overloaded: its latest request is served first, since the oldest are about to time
out (CoDel; Nichols and Jacobson, 2012; adaptive LIFO: Maurer, Fail at Scale, 2015). It stays so until its queue is
short again.

A full queue gives up a request of its lowest class, of the tenant with the most of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Generic, Protocol, TypeVar

from gateway.config.overload_specs import QueueSpec

# Tenants that are compared for the longest queue: more would take too long.
_MAX_COMPARED = 64

Weights = Sequence[Mapping[bytes, int]]  # of tenants, by class


class Waiting(Protocol):
    """A request in the queue. `level` is its class: 0 is the highest."""

    @property
    def level(self) -> int: ...
    @property
    def tenant(self) -> bytes: ...
    @property
    def queued_at(self) -> float: ...


Entry = TypeVar("Entry", bound=Waiting)


class _TenantQueue(Generic[Entry]):
    """The waiting requests of one tenant in one class, the oldest first. It ends when it is empty."""

    __slots__ = ("above_since", "credit", "entries", "is_overloaded", "weight")

    def __init__(self, weight: int) -> None:
        self.entries: dict[Entry, None] = {}
        self.weight = weight
        self.credit = 0
        self.above_since = -1.0  # since when requests have waited for too long; below 0: they have not
        self.is_overloaded = False

    def judge(self, spec: QueueSpec, now: float) -> None:
        oldest = next(iter(self.entries))
        if now - oldest.queued_at < spec.target:
            self.above_since, self.is_overloaded = -1.0, False
        elif self.above_since < 0:
            self.above_since = now
        elif now - self.above_since >= spec.interval:
            self.is_overloaded = True


class FairQueue(Generic[Entry]):
    """Holds each entry until it is popped, removed or displaced."""

    __slots__ = ("_spec", "_weights", "levels", "size", "sizes")

    def __init__(self, spec: QueueSpec, weights: Weights = ({},)) -> None:
        """`weights` are those of tenants in each class, the highest class first."""
        self._spec = spec
        self._weights = weights
        self.levels: list[dict[bytes, _TenantQueue[Entry]]] = [{} for _ in weights]  # by tenant, in turn
        self.sizes = [0] * len(weights)  # of the classes
        self.size = 0

    def __repr__(self) -> str:
        return f"<FairQueue {self.sizes} wait>"

    def ahead_of(self, level: int, tenant: bytes) -> int:
        """About how many requests are served before a new one."""
        higher = sum(self.sizes[:level])
        tenants = self.levels[level]
        own = tenants.get(tenant)
        if own is None or own.is_overloaded:
            return higher + len(tenants)
        turns = len(own.entries) // own.weight + 1
        return higher + min(self.sizes[level], len(own.entries) + turns * (len(tenants) - 1))

    def add(self, entry: Entry) -> None:
        tenants = self.levels[entry.level]
        queue = tenants.get(entry.tenant)
        if queue is None:
            weight = self._weights[entry.level].get(entry.tenant, 1)
            queue = tenants[entry.tenant] = _TenantQueue(weight)
        queue.entries[entry] = None
        self.sizes[entry.level] += 1
        self.size += 1

    def pop(self, now: float) -> Entry:
        """The next request; the queue must not be empty."""
        level = next(level for level, size in enumerate(self.sizes) if size)
        tenants = self.levels[level]
        tenant, queue = next(iter(tenants.items()))
        queue.judge(self._spec, now)
        if not queue.credit:
            queue.credit = queue.weight
        queue.credit -= 1
        entry = next(reversed(queue.entries)) if queue.is_overloaded else next(iter(queue.entries))
        if not queue.credit:  # the others' turn
            del tenants[tenant]
            tenants[tenant] = queue
        self.remove(entry)
        return entry

    def remove(self, entry: Entry) -> None:
        """Take out an entry that is in the queue."""
        tenants = self.levels[entry.level]
        queue = tenants[entry.tenant]
        del queue.entries[entry]
        if not queue.entries:
            del tenants[entry.tenant]
        self.sizes[entry.level] -= 1
        self.size -= 1

    def displace(self, level: int, tenant: bytes) -> Entry | None:
        """Remove the request that gives way to a new one in a full queue; None where the new one has to."""
        lowest = max((level for level, size in enumerate(self.sizes) if size), default=-1)
        if lowest < level:
            return None
        tenants = self.levels[lowest]
        longest = max(islice(tenants.values(), _MAX_COMPARED), key=lambda queue: len(queue.entries) / queue.weight)
        if lowest == level:
            own = tenants.get(tenant)
            if own is not None and len(own.entries) / own.weight >= len(longest.entries) / longest.weight:
                longest = own
                if not own.is_overloaded:
                    return None
        entries = longest.entries
        entry = next(iter(entries)) if longest.is_overloaded else next(reversed(entries))
        self.remove(entry)
        return entry

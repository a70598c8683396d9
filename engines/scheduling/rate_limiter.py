"""Rate limiting by resources: an instance runs a batch only while its resources are free.

Instances of all models share one limiter. Of the waiting ones, the one with the least executions × priority is first,
and a waiting one reserves its resources against those behind it, so that a large demand is eventually met.

Source: Triton core `rate_limiter.cc`; `--rate-limit`, `--rate-limit-resource` of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engines.core.errors import invalid
from engines.scheduling.interfaces import Instance

GLOBAL = -1
PER_DEVICE = -2  # a limit for each device

# The place of a resource (GLOBAL, PER_DEVICE or a device's number), and its name.
Resource = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Demand:
    """The resources of one execution; `priority` 2 gets half the executions of 1."""

    resources: Mapping[Resource, int] = field(default_factory=dict)
    priority: int = 1


# Gives an instance its quota; the callable is called when the requested resources are granted.
Enrol = Callable[[Instance, Callable[[], None]], "Quota"]


def enrolment(limiter: RateLimiter, config: Any) -> Enrol:
    """Enrols the instances of a model, each with the demand of its instance group."""

    def enrol(instance: Instance, granted: Callable[[], None]) -> Quota:
        return limiter.enrol(demand_of(config, instance), granted)

    return enrol


def demand_of(config: Any, instance: Instance) -> Demand:
    """The demand of an instance; resources of a device are those of `instance.device_id`, 0 if it has none."""
    device = getattr(instance, "device_id", 0)
    group_name = instance.name.rpartition("_")[0]
    for index, group in enumerate(config.instance_group):
        if group_name == (group.name or f"{config.name}_{index}"):
            limits = group.rate_limiter
            resources = {(GLOBAL if getattr(r, "global") else device, r.name): r.count for r in limits.resources}
            return Demand(resources, max(limits.priority, 1))
    return Demand()


class RateLimiter:
    """`limits` are the configured ones; without any, each resource has the count of its largest user."""

    def __init__(self, limits: Mapping[Resource, int] | None = None) -> None:
        self._configured = dict(limits or {})
        self._quotas: list[Quota] = []
        self._limits: dict[Resource, int] = {}
        self._in_use: dict[Resource, int] = {}
        self._waiting: list[Quota] = []
        self._is_granting = False

    def __repr__(self) -> str:
        used = ", ".join(
            f"{name}@{'global' if where == GLOBAL else where} {self._in_use.get((where, name), 0)}/{limit}"
            for (where, name), limit in sorted(self._limits.items())
        )
        return f"<RateLimiter: {used or 'no resources'}; {len(self._waiting)} waiting>"

    def enrol(self, demand: Demand, granted: Callable[[], None]) -> Quota:
        """Register an instance. Raises: EngineError INVALID_ARG if there is less of a resource than it needs, or one is
        both global and per device."""
        quota = Quota(self, demand, granted)
        self._limits = self._limits_with([*self._quotas, quota])
        self._quotas.append(quota)
        return quota

    def acquire(self, quota: Quota) -> bool:
        """Grant the quota its resources, or queue it."""
        if not quota.demand.resources:
            return True
        if quota not in self._waiting:
            self._waiting.append(quota)
        if self._first_to_run(only=quota) is quota:
            self._hand_out(quota)
            return True
        return False

    def take_back(self, quota: Quota) -> None:
        """Take back the resources of a quota and remove it from the queue; `grant` follows."""
        if quota.is_held:
            quota.is_held = False
            for resource, count in quota.demand.resources.items():
                self._in_use[resource] -= count
        elif quota in self._waiting:
            self._waiting.remove(quota)

    def remove(self, quota: Quota) -> None:
        if quota in self._quotas:
            self._quotas.remove(quota)
            self._limits = self._limits_with(self._quotas)

    def grant(self) -> None:
        """Grant free resources to the waiting quotas."""
        if self._is_granting:
            return
        self._is_granting = True
        try:
            while (quota := self._first_to_run()) is not None:
                self._hand_out(quota)
                quota.granted()
        finally:
            self._is_granting = False

    def _hand_out(self, quota: Quota) -> None:
        self._waiting.remove(quota)
        for resource, count in quota.demand.resources.items():
            self._in_use[resource] = self._in_use.get(resource, 0) + count
        quota.is_held = True

    def _first_to_run(self, only: Quota | None = None) -> Quota | None:
        """The first waiting quota whose resources are free and not reserved by one before it."""
        reserved: set[Resource] = set()
        for quota in sorted(self._waiting, key=Quota.turn):
            wanted = quota.demand.resources
            fits = all(self._in_use.get(each, 0) + count <= self._limits[each] for each, count in wanted.items())
            if (only is None or quota is only) and fits and not wanted.keys() & reserved:
                return quota
            reserved |= wanted.keys()
        return None

    def _limits_with(self, quotas: list[Quota]) -> dict[Resource, int]:
        limits: dict[Resource, int] = {}
        for quota in quotas:
            for resource, count in quota.demand.resources.items():
                limits[resource] = max(limits.get(resource, 0), count)
        for where, name in limits:
            if where != GLOBAL and (GLOBAL, name) in limits:
                raise invalid(
                    f'Resource "{name}" is present as both global and device-specific resource in the model '
                    "configuration."
                )
        if self._configured:
            for resource, needed in limits.items():
                limits[resource] = self._configured_limit(resource)
                if limits[resource] < needed:
                    raise invalid(
                        f'Resource count for "{resource[1]}" is limited to {limits[resource]} which will prevent '
                        f"scheduling of one or more model instances, the minimum required count is {needed}"
                    )
        return limits

    def _configured_limit(self, resource: Resource) -> int:
        where, name = resource
        if where == GLOBAL:
            return max((count for (_, configured), count in self._configured.items() if configured == name), default=0)
        return max(self._configured.get(resource, 0), self._configured.get((PER_DEVICE, name), 0))


class Quota:
    """The share of one instance in the limiter's resources."""

    __slots__ = ("_limiter", "demand", "granted", "is_held", "num_executions")

    def __init__(self, limiter: RateLimiter, demand: Demand, granted: Callable[[], None]) -> None:
        self._limiter = limiter
        self.demand = demand
        self.granted = granted
        self.is_held = False
        self.num_executions = 0

    def turn(self) -> int:
        """The order in the queue: the least first."""
        return self.num_executions * self.demand.priority

    def acquire(self) -> bool:
        """Whether it may run now; if not, it is queued."""
        return self.is_held or self._limiter.acquire(self)

    def release(self) -> None:
        """An execution has ended. `pass_on` grants the free resources, after this quota could be queued again."""
        self.num_executions += 1
        self._limiter.take_back(self)

    def pass_on(self) -> None:
        self._limiter.grant()

    def withdraw(self) -> None:
        """It has nothing to run: return its resources and leave the queue."""
        self._limiter.take_back(self)
        self._limiter.grant()

    def leave(self) -> None:
        """The instance is removed."""
        self.withdraw()
        self._limiter.remove(self)

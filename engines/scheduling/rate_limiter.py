"""Rate limiting by resources: an instance runs a batch only while what it needs is free.

Instances of all models share one limiter. Of those that wait, the one with the least executions × priority goes first,
and one that waits keeps what it needs from those behind it, so that a large demand is met in the end.

Source: Triton core `rate_limiter.cc`; `--rate-limit`, `--rate-limit-resource` of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engines.core.errors import invalid
from engines.scheduling.interfaces import Instance

GLOBAL = -1
PER_DEVICE = -2  # a limit that holds for each device by itself

# Where a resource lives (GLOBAL, PER_DEVICE or a device's number), and its name.
Resource = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Demand:
    """What one execution of an instance takes; `priority` 2 gets half the executions of 1."""

    resources: Mapping[Resource, int] = field(default_factory=dict)
    priority: int = 1


# Gives an instance its quota; the callable is called when what the instance waited for is set aside.
Enrol = Callable[[Instance, Callable[[], None]], "Quota"]


def enrolment(limiter: RateLimiter, config: Any) -> Enrol:
    """How the instances of a model come under the limiter, each with what its group of the configuration needs."""

    def enrol(instance: Instance, granted: Callable[[], None]) -> Quota:
        return limiter.enrol(demand_of(config, instance), granted)

    return enrol


def demand_of(config: Any, instance: Instance) -> Demand:
    """What an instance needs; resources of a device are those of `instance.device_id`, 0 where it has none."""
    device = getattr(instance, "device_id", 0)
    group_name = instance.name.rpartition("_")[0]
    for index, group in enumerate(config.instance_group):
        if group_name == (group.name or f"{config.name}_{index}"):
            limits = group.rate_limiter
            resources = {(GLOBAL if getattr(r, "global") else device, r.name): r.count for r in limits.resources}
            return Demand(resources, max(limits.priority, 1))
    return Demand()


class RateLimiter:
    """`limits` are those given by hand; without any, each resource is there as often as its largest user needs it."""

    def __init__(self, limits: Mapping[Resource, int] | None = None) -> None:
        self._given = dict(limits or {})
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
        """A place for an instance.

        Raises: EngineError INVALID_ARG where there is less of a resource than it needs, or one is both global and of
        devices.
        """
        quota = Quota(self, demand, granted)
        self._limits = self._limits_with([*self._quotas, quota])
        self._quotas.append(quota)
        return quota

    def fits(self, demand: Demand) -> bool:
        return all(
            self._in_use.get(resource, 0) + count <= self._limits[resource]
            for resource, count in demand.resources.items()
        )

    def acquire(self, quota: Quota) -> bool:
        """Set aside what it needs, or line it up."""
        if not quota.demand.resources:
            return True
        if quota not in self._waiting:
            self._waiting.append(quota)
        if self._first_to_run(only=quota) is quota:
            self._hand_out(quota)
            return True
        return False

    def take_back(self, quota: Quota) -> None:
        """It holds nothing and stands in line no more; `grant` is to follow."""
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
        """Give what is free to those who wait for it."""
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
        """The first of those in line whose resources are free and not kept for one before it."""
        kept: set[Resource] = set()
        for quota in sorted(self._waiting, key=Quota.turn):
            wanted = quota.demand.resources.keys()
            if (only is None or quota is only) and not wanted & kept and self.fits(quota.demand):
                return quota
            kept |= wanted
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
        if self._given:
            for resource, needed in limits.items():
                limits[resource] = self._given_limit(resource)
                if limits[resource] < needed:
                    raise invalid(
                        f'Resource count for "{resource[1]}" is limited to {limits[resource]} which will prevent '
                        f"scheduling of one or more model instances, the minimum required count is {needed}"
                    )
        return limits

    def _given_limit(self, resource: Resource) -> int:
        where, name = resource
        if where == GLOBAL:
            return max((count for (_, given), count in self._given.items() if given == name), default=0)
        return max(self._given.get(resource, 0), self._given.get((PER_DEVICE, name), 0))


class Quota:
    """What one instance may hold of the limiter's resources."""

    __slots__ = ("_limiter", "demand", "granted", "is_held", "num_executions")

    def __init__(self, limiter: RateLimiter, demand: Demand, granted: Callable[[], None]) -> None:
        self._limiter = limiter
        self.demand = demand
        self.granted = granted
        self.is_held = False
        self.num_executions = 0

    def turn(self) -> int:
        """Where it stands in line: the least first."""
        return self.num_executions * self.demand.priority

    def acquire(self) -> bool:
        """Whether it may run now; where not, it is in line."""
        return self.is_held or self._limiter.acquire(self)

    def release(self) -> None:
        """An execution is over. Others get what is free by `pass_on`: this one may stand in line again before."""
        self.num_executions += 1
        self._limiter.take_back(self)

    def pass_on(self) -> None:
        self._limiter.grant()

    def withdraw(self) -> None:
        """It has nothing to run: give back what it holds, stand in line no more."""
        self._limiter.take_back(self)
        self._limiter.grant()

    def leave(self) -> None:
        """The instance is no more."""
        self.withdraw()
        self._limiter.remove(self)

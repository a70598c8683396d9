"""The arms of one route's experiment: which of its targets a unit gets, without the rules."""

from __future__ import annotations

import random
from zlib import crc32

from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.context.snapshot import Snapshot
from gateway.observability.arm_stats import NUM_BUCKETS
from gateway.protocol.operations import ApiCall
from gateway.routing.assignment import Split, encoded
from gateway.routing.route import Route


class ArmSelector:
    """The arms of one route's experiment, so that the rules need not be applied again to requests of the same head.

    `by_session`: the session is the unit; else `header` names it, or is None where each request is assigned by chance.
    `needs_session`: the session is required anyway. `is_sticky`: the target of a session is worth caching. `passes`:
    all targets take REST requests of this kind as they are.
    """

    def __init__(self, route: Route, split: Split, snapshot: Snapshot, call: ApiCall | None) -> None:
        self._split = split
        targets = [snapshot.route_target(target) for target in route.targets]
        self._arms = [target for target in targets if target.spec.is_measured]
        self._bucket_targets = [arm.bucket_targets() for arm in self._arms]
        self._out = next((target for target in targets if target.spec.is_outside), self._arms[0])
        self.by_session = route.by_session
        self.needs_session = route.needs_session
        self.header = route.unit_header
        self.passes = call is not None and all(target.passes(call) and target.shadow is None for target in targets)
        self.is_sticky = self.by_session and self.passes

    def route_target(self, unit: str | None) -> RouteTarget:
        if unit is None:
            arm = self._split.assign_by_chance(random.random)
            return self._out if arm is None else self._arms[arm]
        text = encoded(unit)
        arm = self._split.assign_encoded(text)
        return self._out if arm is None else self._bucket_targets[arm][crc32(text) % NUM_BUCKETS]


def arm_selector_of(route: Route | None, snapshot: Snapshot, call: ApiCall | None = None) -> ArmSelector | None:
    """The selector of a route; None where more than the unit decides. `call` is that of REST requests."""
    if route is None or route.split is None or not route.is_fork:
        return None
    return ArmSelector(route, route.split, snapshot, call)

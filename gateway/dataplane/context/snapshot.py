"""The compiled rules with their engines: numbered, immutable, swapped as a whole.

A request keeps the snapshot that it started with. Endpoints with an unchanged declaration keep their state
(connections, health, breaker, latency).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from copy import copy
from types import MappingProxyType
from zlib import crc32

from gateway.config.experiment_specs import ShadowSpec
from gateway.config.settings import Settings
from gateway.config.specs import RulesSpec
from gateway.dataplane.context.reply_fields import decision_fields
from gateway.limits.limit import Limit
from gateway.observability.arm_stats import NUM_BUCKETS
from gateway.observability.arms import Meter
from gateway.observability.metrics import Metrics, RequestSeries, SeriesKey
from gateway.protocol.engine_load import Load, Readiness
from gateway.protocol.operations import OF_TEXT, ApiCall, LlmApi
from gateway.routing.assignment import Split, encoded
from gateway.routing.decision import Decision, Target
from gateway.routing.route import Route
from gateway.routing.table import Table, unit_headers, used_headers
from gateway.routing.unit_lookup import session_lookup
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.engine import Engine

# What probes found, by engine and endpoint url
Health = Mapping[tuple[str, str], Readiness]
Models = Mapping[tuple[str, str], frozenset[str]]
Loads = Mapping[tuple[str, str], Load | None]
NO_LOADS: Loads = MappingProxyType({})
# Weights of arms that differ from the rules, by experiment and arm
Weights = Mapping[str, Mapping[str, float]]
NO_WEIGHTS: Weights = MappingProxyType({})
# The number of the run that has set an experiment's weights
Runs = Mapping[str, int]
NO_RUNS: Runs = MappingProxyType({})


class RouteTarget:
    """A target of the rules with its engine, its counters and the fields of its replies.

    An experiment's arm has one target for each bucket of its units as well, copies of `base` that differ in `meter`.
    """

    __slots__ = (
        "_bucket_targets",
        "_metrics",
        "_series",
        "_unmeasured",
        "arms",
        "base",
        "bucket",
        "engine",
        "is_sticky",
        "limits",
        "meter",
        "needs_session",
        "replay",
        "reply_fields",
        "reply_lines",
        "shadow",
        "spec",
        "split",
        "sticky_endpoint",
    )

    def __init__(
        self, target: Target, engine: Engine, metrics: Metrics, name_decision: bool, limits: tuple[Limit, ...] = ()
    ) -> None:
        self.spec = target
        self.is_sticky = target.is_sticky
        self.sticky_endpoint = target.sticky_endpoint
        self.needs_session = target.needs_session
        self.replay = target.replay
        self.arms: dict[str, RouteTarget] = {}  # of the same route, those that may take requests, by what sessions keep
        self.split: Split | None = None  # of its experiment
        self.engine = engine
        self.limits = limits  # that its requests meet
        self.shadow: ShadowSpec | None = None  # of its route
        self.reply_fields = decision_fields(target) if name_decision else []
        self.reply_lines = b"".join(b"%b: %b\r\n" % field for field in self.reply_fields)
        self._metrics = metrics
        self._series: dict[Endpoint | None, RequestSeries] = {}
        self.base = self
        self.bucket: int | None = None
        self.meter: Meter | None = None  # where an experiment measures it
        if target.experiment is not None and target.arm is not None:
            self.meter = metrics.arms.meter(target.experiment, target.arm, is_forced=target.is_forced)
        self._bucket_targets: list[RouteTarget] = []
        self._unmeasured: RouteTarget | None = None

    def passes(self, call: ApiCall) -> bool:
        """Whether all requests of this kind go to the engine unchanged, by REST."""
        engine, spec = self.engine, self.engine.spec
        if not engine.speaks_rest or not engine.passes(call) or self.spec.resume:
            return False
        if self.spec.history is not None and call.api in OF_TEXT:
            return False
        traits = spec.protocol.traits
        if traits.has_dialects and spec.always_stream and call.api is not LlmApi.EMBEDDINGS:
            return False
        return traits.takes_binary_tensors

    def for_bucket(self, bucket: int | None) -> RouteTarget:
        """The same for requests of the units in this bucket; None: for those of no unit."""
        base = self.base
        return base if bucket is None or base.meter is None else base.bucket_targets()[bucket]

    def bucket_targets(self) -> list[RouteTarget]:
        """Those of all buckets, built once; none without a meter."""
        base = self.base
        if not base._bucket_targets and base.meter is not None:
            for bucket in range(NUM_BUCKETS):
                route_target = copy(base)
                route_target.bucket = bucket
                route_target.meter = base.meter.of_bucket(bucket)
                base._bucket_targets.append(route_target)
        return base._bucket_targets

    @property
    def unmeasured(self) -> RouteTarget:
        """The same for requests that another handler measures."""
        base = self.base
        if base.meter is None:
            return base
        if base._unmeasured is None:
            base._unmeasured = copy(base)
            base._unmeasured.meter = None
        return base._unmeasured

    def series(self, endpoint: Endpoint | None) -> RequestSeries:
        """The counters of requests that went this way; endpoint None: of those that reached none."""
        found = self._series.get(endpoint)
        if found is None:
            target = self.spec
            key = SeriesKey(target.route, target.arm or "", target.engine, endpoint.url if endpoint else "")
            found = self._series[endpoint] = self._metrics.series(key)
        return found


class Snapshot:
    """The rules in force, and what it takes to serve by them."""

    def __init__(
        self, rules: RulesSpec, number: int, settings: Settings, metrics: Metrics, previous: Snapshot | None = None
    ) -> None:
        self.number = number
        self.table = Table(rules, number)
        self.limits = {spec.name: Limit(spec, rules.identity) for spec in rules.limits}
        # Headers that only experiments assign by: few requests share them.
        units = unit_headers(rules)
        self.unit_fields = frozenset(name.encode() for name in units)
        self.headers_used = used_headers(rules) - units
        # The header and the cookie that name sessions, empty where no target needs them.
        needs_session = any(target.needs_session for target in self.table.targets)
        self.session_field = rules.identity.session_header.encode() if needs_session else b""
        cookie = rules.identity.session_cookie if needs_session else None
        self.session_is_own = not self.headers_used & {rules.identity.session_header, "cookie"}
        self.session_lookup = session_lookup(rules.identity)
        # Words of a body that names a session; any name may be written with escapes.
        names = [name.encode() for name in rules.identity.session_parameters]
        self.session_words = (*names, b"\\u") if needs_session and names else ()
        self.session_cookie = cookie.encode() if cookie is not None else b""
        self.engines: dict[str, Engine] = {}
        for name, spec in rules.engines.items():
            before = previous.engines.get(name) if previous else None
            known = {endpoint.url: endpoint for endpoint in before.endpoints} if before else {}
            self.engines[name] = Engine(spec, known, before.prefixes if before else None)
        # By identity: comparing the fields of targets would cost more than the rest of the decision.
        self._route_targets = {}
        for target in self.table.targets:
            limits = [limit for limit in self.limits.values() if target.route in (limit.spec.routes or [target.route])]
            engine = self.engines[target.engine]
            self._route_targets[id(target)] = RouteTarget(
                target, engine, metrics, settings.name_decision, tuple(limits)
            )
        self._by_route: dict[str, list[RouteTarget]] = {}
        for route_target in self._route_targets.values():
            arms = self._by_route.setdefault(route_target.spec.route, [])
            if route_target.spec.is_measured or route_target.spec.experiment is None:
                arms.append(route_target)
        self.set_weights(NO_WEIGHTS)
        # The fields that force arms are for the gateway alone
        forcing = rules.forcing
        self.own_fields = frozenset({forcing.header.encode(), forcing.key_header.encode()})
        shadows = {route.name: route.shadow for route in rules.routes if route.shadow is not None}
        self.is_mirrored = bool(shadows)
        for route_target in self._route_targets.values():
            route_target.shadow = shadows.get(route_target.spec.route)

    def route_target(self, target: Target) -> RouteTarget:
        return self._route_targets[id(target)]

    def target_of(self, decision: Decision) -> RouteTarget:
        """The target that a request takes: of its unit's bucket, where an experiment has assigned it."""
        route_target = self._route_targets[id(decision.target)]
        if decision.unit is None or route_target.meter is None:
            return route_target
        return route_target.for_bucket(crc32(encoded(decision.unit)) % NUM_BUCKETS)

    def set_weights(self, weights: Weights, runs: Runs = NO_RUNS) -> None:
        """Set the weights of arms; experiments without an entry get those of the rules. Cached decisions are void."""
        for name, split in self.table.splits.items():
            split.weigh(weights.get(name), runs.get(name, 0))
        for route_target in self._route_targets.values():
            spec = route_target.spec
            if spec.experiment is not None:
                route_target.split = split = self.table.splits[spec.experiment]
                route_target.arms.clear()
                route_target.arms |= {
                    split.arm_tokens[arm]: other
                    for other in self._by_route[spec.route]
                    if (arm := other.spec.arm) and split.shares[arm]
                }

    def other_arms(self, route_target: RouteTarget) -> list[RouteTarget]:
        """The targets of the same route's other arms."""
        return [other for other in self._by_route[route_target.spec.route] if other is not route_target.base]

    def set_health(self, health: Health, models: Models, loads: Loads = NO_LOADS) -> None:
        """Take over the probes' findings; endpoints without one become unknown. Loads without a report stay."""
        for engine in self.engines.values():
            for endpoint in engine.endpoints:
                key = engine.name, endpoint.url
                endpoint.condition = health.get(key)
                endpoint.models = models.get(key, frozenset())
                if key in loads:
                    endpoint.observe_load(loads[key])

    def set_drained(self, drained: Collection[tuple[str, str]]) -> None:
        """These endpoints, by engine and url, get no new work; nor do those of weight 0. All others do."""
        for engine in self.engines.values():
            weightless = {spec.url for spec in engine.spec.endpoints if not spec.weight}
            for endpoint in engine.endpoints:
                endpoint.is_draining = endpoint.url in weightless or (engine.name, endpoint.url) in drained

    def retire(self, successor: Snapshot) -> None:
        """Close the idle connections of endpoints that the successor no longer has."""
        retained = {endpoint for engine in successor.engines.values() for endpoint in engine.endpoints}
        for engine in self.engines.values():
            for endpoint in engine.endpoints:
                if endpoint not in retained:
                    endpoint.retire()

    def is_ready(self, ready_when: str) -> bool:
        """Whether every route ('all'), or some route ('any'), has an engine with a healthy endpoint."""
        ready = [target.engine.is_ready for target in self._route_targets.values()]
        return any(ready) if ready_when == "any" else all(ready)


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

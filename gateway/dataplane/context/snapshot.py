"""The compiled rules with their engines: numbered, immutable, swapped as a whole.

A request keeps the snapshot that it started with. Endpoints with an unchanged declaration keep their state
(connections, health, breaker, latency).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from zlib import crc32

from gateway.config.settings import Settings
from gateway.config.specs import RulesSpec
from gateway.dataplane.context.fallbacks import Fallbacks
from gateway.dataplane.context.identification import Identification
from gateway.dataplane.context.priority_classes import PriorityClasses
from gateway.dataplane.context.route_target import RouteTarget
from gateway.limits.budget import Budget
from gateway.limits.limit import Limit
from gateway.limits.limits_of_routes import LimitsOfRoutes
from gateway.limits.prices import Prices
from gateway.observability.arm_stats import NUM_BUCKETS
from gateway.observability.metrics import Metrics
from gateway.protocol.advertised_models import AdvertisedModels
from gateway.protocol.engine_load import Load, Readiness
from gateway.protocol.remembered_names import RememberedNames
from gateway.routing.assignment import encoded
from gateway.routing.decision import Decision, Target
from gateway.routing.flags import FlagTable
from gateway.routing.steps import Steps, run_now
from gateway.routing.table import Table
from gateway.routing.unit_lookup import session_lookup
from gateway.routing.used_fields import find_used_fields
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.engine import Engine
from gateway.upstream.engine_admission import admission_of_engine
from gateway.upstream.hedging_policy import hedging_of_engine

if TYPE_CHECKING:
    pass

# What probes found, by engine and endpoint url
Health = Mapping[tuple[str, str], Readiness]
Models = Mapping[tuple[str, str], AdvertisedModels]
Loads = Mapping[tuple[str, str], Load | None]
# Weights of arms that differ from the rules, by experiment and arm
Weights = Mapping[str, Mapping[str, float]]
NO_WEIGHTS: Weights = MappingProxyType({})
# The number of the run that has set an experiment's weights
Runs = Mapping[str, int]
NO_RUNS: Runs = MappingProxyType({})
# What a snapshot consists of, in lists
Parts = list[list[Any]]

# Fields that the gateway reads in heads whatever the rules: they stand in the plans of HTTP or gRPC.
READ_OF_HEADS = frozenset(
    {
        "accept-encoding",
        "content-type",
        "host",
        "proxy-authorization",
        "proxy-authenticate",
        "user-agent",
        "via",
        "x-forwarded-host",
        "x-forwarded-proto",
    }
)


class Snapshot:
    """The rules in force, and what it takes to serve by them."""

    def __init__(
        self, rules: RulesSpec, number: int, settings: Settings, metrics: Metrics, previous: Snapshot | None = None
    ) -> None:
        run_now(self._compile(rules, number, settings, metrics, previous))

    @classmethod
    def compiled(
        cls, rules: RulesSpec, number: int, settings: Settings, metrics: Metrics, previous: Snapshot | None
    ) -> Steps[Snapshot]:
        """Compile in steps."""
        snapshot = cls.__new__(cls)
        yield from snapshot._compile(rules, number, settings, metrics, previous)
        return snapshot

    def _compile(
        self, rules: RulesSpec, number: int, settings: Settings, metrics: Metrics, previous: Snapshot | None
    ) -> Steps[None]:
        self.number = number
        self._rules = rules
        self.table = yield from Table.compiled(rules, number, names_routes=settings.name_decision)
        self.remembered_names = RememberedNames()
        self._flags: FlagTable | None = None
        self.renames_regions = False  # whether clients share memory: see RegionNames
        # Finds callers; None where the rules do not ask who calls
        self.identification: Identification | None = None
        if rules.auth is not None:
            self.identification = Identification(rules, rules.auth, previous.identification if previous else None)
        is_verified = rules.auth is not None
        self.limits = {spec.name: Limit(spec, rules.identity, is_verified=is_verified) for spec in rules.limits}
        self.budgets = {spec.name: Budget(spec, rules.identity, is_verified=is_verified) for spec in rules.budgets}
        self.prices = Prices(rules.prices)
        self.limit_fields = frozenset[bytes]().union(
            *(limit.header_names for limit in self.limits.values()),
            *(budget.header_names for budget in self.budgets.values()),
        )
        self.classes = PriorityClasses(rules)
        if any(spec.overload is not None for spec in rules.engines.values()):
            self.limit_fields |= self.classes.fields
        used = yield from find_used_fields(rules)
        self.parameters_used = used.parameters
        # Headers that only experiments assign by: few requests share them.
        self.unit_fields = frozenset(name.encode() for name in used.unit_headers)
        self.headers_used = used.headers - used.unit_headers
        # The header and the cookie that name sessions, empty where no target needs them.
        needs_session = any(target.needs_session for target in self.table.targets)
        # Whether clients keep the arms of their sessions, and how long requests wait for those in Redis
        by_session = [split.spec for split in self.table.splits.values() if split.spec.is_by_session]
        self.pins_sessions = any(spec.pin == "client" for spec in by_session)
        self.arm_wait = max((spec.lookup_timeout for spec in by_session), default=0.0)
        # Whether a body of unknown length may turn out to be too long for its route.
        self.bounds_bodies = any(target.max_body_bytes is not None for target in self.table.targets)
        yield
        self.session_field = rules.identity.session_header.encode() if needs_session else b""
        cookie = rules.identity.session_cookie if needs_session else None
        session_names = {rules.identity.session_header, "cookie"}
        # Whether the session and units stand in no plan: rules do not read them, nor does the gateway itself.
        self.session_is_own = not self.headers_used & session_names and not READ_OF_HEADS & session_names
        self.units_are_own = not READ_OF_HEADS & used.unit_headers
        self.session_lookup = session_lookup(rules.identity, by_tenant=is_verified)
        # Words of a body that names a session; any name may be written with escapes.
        names = [name.encode() for name in rules.identity.session_parameters]
        self.session_words = (*names, b"\\u") if needs_session and names else ()
        self.session_cookie = cookie.encode() if cookie is not None else b""
        self.engines: dict[str, Engine] = {}
        for name, spec in rules.engines.items():
            before = previous.engines.get(name) if previous else None
            known = {endpoint.url: endpoint for endpoint in before.endpoints} if before else {}
            engine = self.engines[name] = Engine(spec, known, before.prefixes if before else None)
            if spec.overload is not None:
                engine.overload = admission_of_engine(engine, self.classes.names, self.classes.weights, before)
            if spec.hedging is not None:
                engine.hedging = hedging_of_engine(spec.hedging, before, monotonic())
            yield
        limits, budgets = LimitsOfRoutes(self.limits.values()), LimitsOfRoutes(self.budgets.values())
        # By identity: comparing the fields of targets would cost more than the rest of the decision.
        self._route_targets: dict[int, RouteTarget] = {}
        self._of_experiments: list[RouteTarget] = []
        self._by_route: dict[str, list[RouteTarget]] = {}  # their arms
        used_engines: dict[object, list[Engine]] = {}
        for target in self.table.targets:
            engine = self.engines[target.engine]
            used_engines[target.engine, target.fallbacks] = [self.engines[name] for name, _ in target.destinations]
            limited = limits.of(target.route), budgets.of(target.route)
            route_target = RouteTarget(target, engine, metrics, settings.name_decision, *limited)
            self._route_targets[id(target)] = route_target
            if target.fallbacks:
                stand_in = partial(_stand_in, metrics, settings.name_decision, limited)
                route_target.fallbacks = Fallbacks(target, self.engines, stand_in)
                route_target.is_plain = False
            if target.experiment is not None:
                self._of_experiments.append(route_target)
                route_target.split = self.table.splits[target.experiment]
                arms = self._by_route.setdefault(target.route, [])
                if target.is_measured:
                    arms.append(route_target)
            yield
        self._used_engines = list(used_engines.values())
        self.set_weights(NO_WEIGHTS)
        # The fields that force arms are for the gateway alone
        self.forcing_field = rules.forcing.header.encode()
        self.forcing_key_field = rules.forcing.key_header.encode()
        self.own_fields = frozenset({self.forcing_field, self.forcing_key_field})
        # Fields that decide what happens to a request: rules read the first of a name, engines may read another
        headers = {name.encode() for name in self.headers_used}
        self.deciding_fields = frozenset(
            {*headers, self.session_field, *self.unit_fields, *self.limit_fields, *self.own_fields} - {b"", b"cookie"}
        )
        self.is_mirrored = False
        for route, declared in zip(self.table.routes, rules.routes, strict=True):
            if declared.hooks:
                from gateway.hooks.chain import HookChain  # rules without hooks load none of it

                chain = HookChain(declared.name, declared.hooks)
                for target in route.targets:
                    self._route_targets[id(target)].hooks = chain
                    self._route_targets[id(target)].is_plain = False
            if declared.shadow is not None:
                self.is_mirrored = True
                for target in route.targets:
                    self._route_targets[id(target)].shadow = declared.shadow
                    self._route_targets[id(target)].is_plain = False
            yield

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
        for route_target in self._of_experiments:
            shared = route_target.split
            assert shared is not None
            route_target.arms.clear()
            route_target.arms |= {
                shared.arm_tokens[arm]: other
                for other in self._by_route[route_target.spec.route]
                if (arm := other.spec.arm) and shared.shares[arm]
            }

    @property
    def flags(self) -> FlagTable:
        """The experiments, for applications; made when one asks first."""
        if self._flags is None:
            self._flags = FlagTable(self.table, by_tenant=self.identification is not None)
        return self._flags

    def other_arms(self, route_target: RouteTarget) -> list[RouteTarget]:
        """The targets of the same route's other arms."""
        arms = self._by_route.get(route_target.spec.route, ())
        return [other for other in arms if other is not route_target.origin]

    def set_health(self, health: Health, models: Models) -> None:
        """Take over the probes' findings; endpoints without one become unknown."""
        for engine in self.engines.values():
            engine.set_health(health, models)

    def set_drained(self, drained: Collection[tuple[str, str]]) -> None:
        """These endpoints, by engine and url, get no new work; nor do those of weight 0. All others do."""
        for engine in self.engines.values():
            engine.set_drained(drained)

    def forget(self, engine: str, endpoints: Collection[Endpoint]) -> Steps[None]:
        """Forget the counters of endpoints that have left an engine."""
        for route_target in list(self._route_targets.values()):
            if route_target.engine.name == engine:
                route_target.forget_series(endpoints)
            yield

    def retire(self, successor: Snapshot) -> Steps[None]:
        """Close the idle connections of endpoints that the successor no longer has."""
        for name, engine in self.engines.items():
            after = successor.engines.get(name)
            retained = set(after.endpoints) if after is not None else ()
            for endpoint in engine.endpoints:
                if endpoint not in retained:
                    endpoint.retire()
                    yield
            yield

    def parts(self) -> Parts:
        """All that takes long to free."""
        compiled, declared = [self.table.routes, self._route_targets.values(), self.engines.values()], self._rules
        return [list(part) for part in (*compiled, declared.routes, declared.engines.values())]

    def is_ready(self, ready_when: str) -> bool:
        """Whether every route ('all'), or some route ('any'), has a healthy endpoint, of a fallback at least."""
        ready = (any(engine.is_ready for engine in engines) for engines in self._used_engines)
        return any(ready) if ready_when == "any" else all(ready)


def free(parts: Parts) -> Steps[None]:
    """Free the parts of a snapshot that no request uses any more: at once it would take longer than a request may
    wait."""
    for part in parts:
        while part:
            one = part.pop()
            if isinstance(one, RouteTarget):
                one.forget_others()
            del one
            yield


def _stand_in(
    metrics: Metrics,
    name_decision: bool,
    limited: tuple[tuple[Limit, ...], tuple[Budget, ...]],
    target: Target,
    engine: Engine,
    fallbacks: Fallbacks[RouteTarget] | None,
    was_admitted: bool,
) -> RouteTarget:
    """The compiled target of a fallback. Experiments do not count its requests: their arm's engine has failed."""
    route_target = RouteTarget(target, engine, metrics, name_decision, *limited)
    route_target.meter = None
    route_target.fallbacks = fallbacks
    route_target.was_admitted = was_admitted
    return route_target

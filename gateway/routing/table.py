"""The compiled rules: one immutable snapshot, replaced as a whole. A request keeps the one that it started with; only
the weights of experiments may change meanwhile.

A model name selects the routes that can take it, in file order: from a dict if a rule names the model exactly, else by
matching globs, with a cache of recent names. Then conditions are evaluated in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.config.globs import is_exact
from gateway.config.specs import RulesSpec
from gateway.protocol.operations import INFERENCE_OPERATIONS
from gateway.routing.assignment import Forcing, Split
from gateway.routing.decision import Decision, Facts, Target, Undecided
from gateway.routing.layout import memberships
from gateway.routing.matchers import all_hold
from gateway.routing.route import Route

_HEADER = "header:"


def used_parameters(rules: RulesSpec) -> frozenset[str]:
    """The body parameters that rules use."""
    names = {name for route in rules.routes for name in route.match.parameter}
    return _units(rules, "parameter:") | names | {*rules.identity.session_parameters}


def used_headers(rules: RulesSpec) -> frozenset[str]:
    """The names of all header fields that a decision may depend on, except the session's."""
    return _headers_of_routes(rules) | _units(rules, _HEADER)


def unit_headers(rules: RulesSpec) -> frozenset[str]:
    """The header fields that only experiments use, as units."""
    return _units(rules, _HEADER) - _headers_of_routes(rules)


def _headers_of_routes(rules: RulesSpec) -> frozenset[str]:
    names = {name for route in rules.routes for name in route.match.header}
    if any(route.match.tenant or route.session.history is not None for route in rules.routes):
        names.add(rules.identity.tenant_header)
    return frozenset(names)


def _units(rules: RulesSpec, kind: str) -> frozenset[str]:
    """The names of the units of this kind."""
    units = [each.unit for each in rules.experiments.values()] + [each.unit for each in rules.layers.values()]
    return frozenset(unit.removeprefix(kind) for unit in units if unit.startswith(kind))


# Bounds the cache, because clients choose these names; enough for any real fleet.
MAX_REMEMBERED_MODELS = 4096


class Table:
    """All routes of one snapshot, ready to decide."""

    def __init__(self, rules: RulesSpec, number: int = 0) -> None:
        experiments = rules.experiments
        members = memberships(tuple(experiments.values()), tuple(rules.layers.values()))
        self.splits = {name: Split(experiment, members.get(name)) for name, experiment in experiments.items()}
        self.forcing = Forcing(rules.forcing, experiments)
        self.number = number
        self.digest = rules.digest
        self.engines = rules.engines
        self.identity = rules.identity
        self.routes = tuple(
            Route(
                spec,
                self.splits[spec.experiment] if spec.experiment else None,
                rules.engines,
                rules.identity,
                self.forcing,
            )
            for spec in rules.routes
        )
        self.targets = tuple(target for route in self.routes for target in route.targets)
        patterns = {pattern for spec in rules.routes for pattern in spec.match.model}
        self._by_model = {model: self._routes_for(model) for model in patterns if is_exact(model)}
        self._any_model = _until_certain(route for route in self.routes if route.model is None)
        self._has_globs = not all(is_exact(pattern) for pattern in patterns)
        self._remembered: dict[str, tuple[Route, ...]] = {}

    def decide(self, facts: Facts, chance: Callable[[], float]) -> Decision | Undecided:
        """The decision for a request; `chance` returns a number in [0, 1), for requests without a unit.

        Undecided.NEEDS_BODY: read the body's facts (NO_BODY if they cannot be read) and decide again.
        """
        in_head = True
        for route in self._by_model.get(facts.model) or self.candidates(facts.model):
            if route.always is not None and in_head:
                return route.always
            if not all_hold(route.head, facts):
                continue
            if route.body:
                if facts.operation not in INFERENCE_OPERATIONS:
                    continue  # only inferences have parameters and inputs
                if facts.body is None:
                    return Undecided.NEEDS_BODY
                in_head = False
                if not all_hold(route.body, facts.body):
                    continue
            return route.choose(facts, chance, in_head)
        return Undecided.NO_ROUTE

    def route_of(self, facts: Facts) -> Route | None:
        """The route of all requests with this head; None if it depends on their bodies."""
        for route in self.candidates(facts.model):
            if all_hold(route.head, facts):
                return None if route.body and facts.operation in INFERENCE_OPERATIONS else route
        return None

    def targets_for(self, facts: Facts) -> tuple[Target, ...]:
        """The targets of a control operation on the model (load, unload), each engine and model name once.

        They are those of the first route whose head conditions hold, with all arms, and of earlier routes with body
        conditions, because requests of this model may go there.
        """
        targets: dict[tuple[str, str | None], Target] = {}
        for route in self.candidates(facts.model):
            if all_hold(route.head, facts):
                for target in route.targets:
                    targets.setdefault((target.engine, target.model), target)
                if not route.body:
                    break
        return tuple(targets.values())

    def candidates(self, model: str) -> tuple[Route, ...]:
        """The routes that can take a model, in order, up to the first that takes all of its requests."""
        routes = self._by_model.get(model)
        if routes is not None:
            return routes
        if not self._has_globs:
            return self._any_model
        routes = self._remembered.get(model)
        if routes is None:
            if len(self._remembered) >= MAX_REMEMBERED_MODELS:
                del self._remembered[next(iter(self._remembered))]
            routes = self._remembered[model] = self._routes_for(model)
        return routes

    def _routes_for(self, model: str) -> tuple[Route, ...]:
        facts = Facts(model)
        return _until_certain(route for route in self.routes if route.model is None or route.model.holds(facts))


def _until_certain(routes: Iterable[Route]) -> tuple[Route, ...]:
    """The routes up to the first one without conditions other than the model."""
    reachable = []
    for route in routes:
        reachable.append(route)
        if not route.head and not route.body:
            break
    return tuple(reachable)

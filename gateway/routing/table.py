"""The rules, compiled: one immutable snapshot, swapped whole. A request keeps the one that it started with. Only the
weights of experiments may change under it.

A model's name leads to the routes that can take it, in the order of the files: by a dict where a rule names the model
exactly, else by the globs, remembered for the names last asked. Then the conditions are asked in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.config.globs import is_exact
from gateway.config.specs import RulesSpec
from gateway.protocol.operations import INFERENCE_OPERATIONS
from gateway.routing.assignment import Forcing, Split
from gateway.routing.decision import Decision, Facts, Target, Undecided
from gateway.routing.layers import memberships
from gateway.routing.matchers import all_hold
from gateway.routing.route import Route

_PARAMETER = "parameter:"
_HEADER = "header:"


def asked_parameters(rules: RulesSpec) -> frozenset[str]:
    """The parameters of bodies that some rule asks for."""
    asked = {name for route in rules.routes for name in route.match.parameter}
    asked |= {unit.removeprefix(_PARAMETER) for unit in _units(rules) if unit.startswith(_PARAMETER)}
    return frozenset(asked | {*rules.identity.session_parameters})


def asked_headers(rules: RulesSpec) -> frozenset[str]:
    """The names of all request fields that a decision may depend on, but for that of the session."""
    return _headers_of_routes(rules) | _headers_of_units(rules)


def unit_headers(rules: RulesSpec) -> frozenset[str]:
    """Those by which experiments assign, and that nobody else asks for."""
    return _headers_of_units(rules) - _headers_of_routes(rules)


def _headers_of_routes(rules: RulesSpec) -> frozenset[str]:
    names = {name for route in rules.routes for name in route.match.header}
    if any(route.match.tenant or route.session.history is not None for route in rules.routes):
        names.add(rules.identity.tenant_header)
    return frozenset(names)


def _headers_of_units(rules: RulesSpec) -> frozenset[str]:
    return frozenset(unit.removeprefix(_HEADER) for unit in _units(rules) if unit.startswith(_HEADER))


def _units(rules: RulesSpec) -> list[str]:
    return [each.unit for each in rules.experiments.values()] + [each.unit for each in rules.layers.values()]


# Names that no rule spells out come from callers: enough for any real fleet, and a bound for who invents names.
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
                may_be_forced=self.forcing.is_open,
                asks_body_for_arm=self.forcing.asks_bodies,
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
        """Where the request goes; `chance` gives a number in [0, 1) and is asked only where no unit sticks.

        Undecided.NEEDS_BODY: read the body's facts, NO_BODY where they cannot be read, and decide again.
        """
        in_head = True
        for route in self._by_model.get(facts.model) or self.candidates(facts.model):
            if route.always is not None and in_head:
                return route.always
            if not all_hold(route.head, facts):
                continue
            if route.body:
                if facts.operation not in INFERENCE_OPERATIONS:
                    continue  # only an inference has parameters and inputs to ask for
                if facts.body is None:
                    return Undecided.NEEDS_BODY
                in_head = False
                if not all_hold(route.body, facts.body):
                    continue
            return route.choose(facts, chance, in_head)
        return Undecided.NO_ROUTE

    def route_of(self, facts: Facts) -> Route | None:
        """The route of all requests with this head, whatever their bodies say; None where bodies decide."""
        for route in self.candidates(facts.model):
            if all_hold(route.head, facts):
                return None if route.body and facts.operation in INFERENCE_OPERATIONS else route
        return None

    def targets_for(self, facts: Facts) -> tuple[Target, ...]:
        """All targets that a control operation on the model (load, unload) concerns, each engine and name there once.

        They are those of the first route whose head conditions hold: all arms of an experiment. Routes before it that
        also ask for the body count as well: requests of this model may go there.
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
        """The routes that can take a model, in order, up to the first that takes every request of it."""
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

    def __repr__(self) -> str:
        return f"<Table {self.number}: {len(self.routes)} routes, {len(self.engines)} engines, {self.digest[:12]}>"


def _until_certain(routes: Iterable[Route]) -> tuple[Route, ...]:
    """Drop what stands after a route that has no conditions but the model."""
    kept = []
    for route in routes:
        kept.append(route)
        if not route.head and not route.body:
            break
    return tuple(kept)

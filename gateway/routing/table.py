"""The compiled rules: one immutable snapshot, replaced as a whole. A request keeps the one that it started with; only
the weights of experiments may change meanwhile.

A model name selects the routes that can take it, in file order: those that name it exactly, those with a glob that
matches it, and those for any model, with a cache of recent names. Then conditions are evaluated in order. Where one
model has many routes, tenant and headers select as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from heapq import merge

from gateway.config.globs import PatternIndex
from gateway.config.specs import RulesSpec
from gateway.protocol.operations import INFERENCE_OPERATIONS
from gateway.protocol.remembered_names import MAX_LENGTH
from gateway.routing.assignment import Forcing, Split
from gateway.routing.decision import Decision, Facts, Target, Undecided
from gateway.routing.layout import memberships
from gateway.routing.matchers import all_hold
from gateway.routing.route import Route
from gateway.routing.route_index import RouteIndex
from gateway.routing.steps import Steps, run_now

# Bound the cache, because clients choose these names: names beyond those in the rules, and routes of all names.
MAX_REMEMBERED_MODELS = 4096
MAX_REMEMBERED_ROUTES = 1 << 18
# With more routes for one model, their headers are looked up, instead of asking one route after another.
MANY_ROUTES = 64


class Table:
    """All routes of one snapshot, ready to decide."""

    def __init__(self, rules: RulesSpec, number: int = 0) -> None:
        run_now(self._compile(rules, number, names_routes=True))

    @classmethod
    def compiled(cls, rules: RulesSpec, number: int, *, names_routes: bool = True) -> Steps[Table]:
        """Compile in steps; `names_routes`: errors name routes."""
        table = cls.__new__(cls)
        yield from table._compile(rules, number, names_routes)
        return table

    def _compile(self, rules: RulesSpec, number: int, names_routes: bool) -> Steps[None]:
        self._names_routes = names_routes
        experiments = rules.experiments
        members = memberships(tuple(experiments.values()), tuple(rules.layers.values()))
        self.splits: dict[str, Split] = {}
        for name, experiment in experiments.items():
            self.splits[name] = Split(experiment, members.get(name))
            yield
        self.forcing = Forcing(rules.forcing, experiments)
        self.number = number
        self.digest = rules.digest
        self.engines = rules.engines
        self.identity = rules.identity
        self.routes: list[Route] = []
        self.targets: list[Target] = []
        self._by_pattern: PatternIndex[int] = PatternIndex()  # places of routes
        self._for_any_model: list[int] = []
        self._places = {spec.name: place for place, spec in enumerate(rules.routes)}
        for place, spec in enumerate(rules.routes):
            split = self.splits[spec.experiment] if spec.experiment else None
            route = Route(spec, split, rules.engines, rules.identity, self.forcing, by_tenant=rules.auth is not None)
            route.place = place
            self.routes.append(route)
            self.targets += route.targets
            for pattern in dict.fromkeys(spec.match.model):
                self._by_pattern.add(pattern, place)
            if not spec.match.model:
                self._for_any_model.append(place)
            yield
        self.restricts = any(route.access is not None for route in self.routes)  # to some callers
        self._unnamed = self._until_certain(self._for_any_model)
        # For models that have many routes, which then differ in their headers
        self._index: RouteIndex | None = None
        if self._by_pattern.largest + len(self._unnamed) > MANY_ROUTES:
            index = self._index = RouteIndex()
            for route in self.routes:
                index.add(route)
                yield
        self._by_model: dict[str, tuple[Route, ...]] = {}  # the latest names that rules match
        self._num_remembered = 0  # routes of all names

    def decide(self, facts: Facts, chance: Callable[[], float]) -> Decision | Undecided:
        """The decision for a request; `chance` returns a number in [0, 1), for requests without a unit.

        Undecided.NEEDS_BODY: read the body's facts and decide again.

        Raises: GatewayError where a route asks for a body that cannot be read.
        """
        in_head = True
        index = self._index
        routes = self._by_model.get(facts.model) or self.candidates(facts.model) if index is None else index.of(facts)
        for route in routes:
            if route.always is not None and in_head:
                return route.always
            if not all_hold(route.head, facts):
                continue
            if route.body:
                if facts.operation not in INFERENCE_OPERATIONS:
                    continue  # only inferences have parameters and inputs
                if facts.body is None:
                    return Undecided.NEEDS_BODY
                if facts.body.error is not None:
                    raise facts.body.error.at(route.needed_of_body if self._names_routes else "")
                in_head = False
                if not all_hold(route.body, facts.body):
                    continue
            if route.version_marks and (as_read := self.facts_as_read(route, facts, chance)) is not None:
                return self.decide(as_read, chance)
            return route.choose(facts, chance, in_head)
        return Undecided.NO_ROUTE

    def facts_as_read(self, route: Route, facts: Facts, chance: Callable[[], float]) -> Facts | None:
        """The facts with the model's name as the engines of this route read it, if these facts belong to an earlier
        route, or need the body to tell: `model:label` must not pass by the rules for `model`."""
        model = route.name_as_read(facts.model)
        if model == facts.model:
            return None
        as_read = replace(facts, model=model)
        decision = self.decide(as_read, chance)
        if isinstance(decision, Decision):
            return as_read if self._places[decision.target.route] < route.place else None
        if decision is Undecided.FORBIDDEN:
            forbidding = self.route_of(as_read)
            return as_read if forbidding is None or forbidding.place < route.place else None
        return as_read if decision is Undecided.NEEDS_BODY else None

    def route_of(self, facts: Facts) -> Route | None:
        """The route of all requests with this head; None if it depends on their bodies, or on what an engine reads in
        the model's name."""
        for route in self.candidates(facts.model):
            if all_hold(route.head, facts):
                by_body = route.body and facts.operation in INFERENCE_OPERATIONS
                return None if by_body or route.name_as_read(facts.model) != facts.model else route
        return None

    def targets_for(self, facts: Facts) -> tuple[Target, ...]:
        """The targets of a control operation on the model (load, unload), each engine and model name once.

        They are those of the first route whose head conditions hold, with all arms, and of earlier routes with body
        conditions, because requests of this model may go there.
        """
        targets: dict[tuple[str, str | None], Target] = {}
        for route in self.candidates(facts.model):
            if all_hold(route.head, facts):
                for target in route.targets if route.admits(facts.principal) else ():
                    targets.setdefault((target.engine, target.model), target)
                if not route.body:
                    break
        return tuple(targets.values())

    def hides(self, facts: Facts) -> bool:
        """Whether the caller may not use a model, by the name that clients use or by that at an engine."""
        for route in self.candidates(facts.model):
            if not route.body and all_hold(route.head, facts):
                if not route.admits(facts.principal):
                    return True
                break
        renamed = [
            route
            for route in self.routes
            if any(model == facts.model for target in route.targets for _, model in target.destinations)
        ]
        return bool(renamed) and not any(route.admits(facts.principal) for route in renamed)

    def candidates(self, model: str) -> tuple[Route, ...]:
        """The routes that can take a model, in order, up to the first that takes all of its requests."""
        routes = self._by_model.get(model)
        if routes is None:
            places = self._by_pattern.of(model)
            if not places:
                return self._unnamed
            routes = self._until_certain(merge(*places, self._for_any_model), Facts(model))
            if len(model) <= MAX_LENGTH:
                self._remember(model, routes)
        return routes

    @property
    def exact_models(self) -> Collection[str]:
        """The models that routes name exactly, in their order."""
        return self._by_pattern.exact

    def _remember(self, model: str, routes: tuple[Route, ...]) -> None:
        known, most = self._by_model, MAX_REMEMBERED_MODELS + len(self._by_pattern.exact)
        self._num_remembered += len(routes)
        while known and (len(known) >= most or self._num_remembered > MAX_REMEMBERED_ROUTES):
            self._num_remembered -= len(known.pop(next(iter(known))))
        known[model] = routes

    def _until_certain(self, places: Iterable[int], facts: Facts | None = None) -> tuple[Route, ...]:
        """The routes at these places that take the model, up to the first without other conditions."""
        found, last = [], -1
        for place in places:
            route = self.routes[place]
            if place == last or not (route.model is None or facts is None or route.model.holds(facts)):
                continue
            last = place
            found.append(route)
            if not route.head and not route.body:
                break
        return tuple(found)

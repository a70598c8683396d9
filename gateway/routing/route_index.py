"""Finds routes by what a request has: its model, its tenant and its headers. For rules with many routes of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge

from gateway.config.globs import PatternIndex
from gateway.routing.decision import Facts
from gateway.routing.matchers import Condition
from gateway.routing.route import Route


class RouteIndex:
    """Files each route under one of its conditions on a text: the one that it shares with the fewest others."""

    def __init__(self) -> None:
        self._routes: list[Route] = []
        # By what a condition is about: the request's text, and the places of the routes
        self._filed: dict[str, tuple[Callable[[Facts], str | None], PatternIndex[int]]] = {}
        self._unconditional: list[int] = []

    def add(self, route: Route) -> None:
        """Add the next route in the order of the files."""
        place = len(self._routes)
        self._routes.append(route)
        chosen: Condition[Facts] | None = None
        fewest = place + 1
        for condition in (*([route.model] if route.model is not None else ()), *route.head):
            if condition.key in ("model", "tenant") or condition.key.startswith("header "):
                _, index = self._filed.setdefault(condition.key, (condition.actual, PatternIndex()))
                size = index.size(condition.patterns)
                if size < fewest:
                    chosen, fewest = condition, size
        if chosen is None:
            self._unconditional.append(place)
            return
        for pattern in dict.fromkeys(chosen.patterns):
            self._filed[chosen.key][1].add(pattern, place)

    def of(self, facts: Facts) -> Iterator[Route]:
        """The routes that may take the request, in order; their model does, other conditions may not hold."""
        places = [self._unconditional]
        for actual, index in self._filed.values():
            text = actual(facts)
            if text is not None:
                places += index.of(text)
        last = -1
        for place in merge(*places):
            if place != last:
                last = place
                route = self._routes[place]
                if route.model is None or route.model.holds(facts):
                    yield route

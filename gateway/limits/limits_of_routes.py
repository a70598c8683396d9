"""The limits or the budgets that each route's requests meet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from gateway.limits.budget import Budget
from gateway.limits.limit import Limit

AnyLimit = TypeVar("AnyLimit", Limit, Budget)


class LimitsOfRoutes(Generic[AnyLimit]):
    """Those of each route, in their order."""

    def __init__(self, limits: Iterable[AnyLimit]) -> None:
        self._limits: list[AnyLimit] = list(limits)
        self._of_all: list[int] = []
        self._of_route: dict[str, list[int]] = {}
        for place, limit in enumerate(self._limits):
            for route in set(limit.spec.routes):
                self._of_route.setdefault(route, []).append(place)
            if not limit.spec.routes:
                self._of_all.append(place)

    def of(self, route: str) -> tuple[AnyLimit, ...]:
        places = sorted(self._of_all + self._of_route.get(route, []))
        return tuple([self._limits[place] for place in places])

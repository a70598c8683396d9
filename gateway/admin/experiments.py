"""Experiments by the admin API."""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

from fastapi import FastAPI

from gateway.admin.auth import Viewer
from gateway.config.specs import RulesSpec
from gateway.observability.exposition import ExpositionState

Json = dict[str, Any]


class ExperimentState(Protocol):
    """Whoever knows what experiments are declared, and their traffic."""

    @property
    def rules(self) -> RulesSpec: ...

    async def exposition(self) -> ExpositionState: ...


def add_experiments(app: FastAPI, state: ExperimentState) -> None:
    """Answer for `/experiments`."""

    @app.get("/experiments", tags=["experiments"])
    async def experiments(_: Viewer) -> Json:
        """Every experiment with its arms: weights, shares, traffic."""
        return {"experiments": _experiments(state.rules, await state.exposition())}


def _experiments(rules: RulesSpec, state: ExpositionState) -> list[Json]:
    routes = {route.name: route.experiment for route in rules.routes}
    requests: Counter[tuple[str | None, str]] = Counter()
    errors: Counter[tuple[str | None, str]] = Counter()
    for key, series in state.series.items():
        arm = (routes.get(key.route), key.arm)
        requests[arm] += sum(series.statuses.values())
        errors[arm] += sum(series.errors.values())
    found = []
    for name, experiment in rules.experiments.items():
        total = sum(arm.weight for arm in experiment.arms)
        arms = [
            {
                "name": arm.name,
                "engine": arm.engine,
                "model": arm.model,
                "weight": arm.weight,
                "share": arm.weight / total,
                "requests": requests[name, arm.name],
                "errors": errors[name, arm.name],
            }
            for arm in experiment.arms
        ]
        found.append({"name": name, "unit": experiment.unit, "arms": arms})
    return found

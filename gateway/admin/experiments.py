"""Experiments by the admin API: what is known of them, and what was decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable
from contextlib import suppress
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import FastAPI, Query

from gateway.admin.auth import Viewer
from gateway.admin.experiment_commands import REFUSALS, CommandState, add_commands, unknown
from gateway.admin.redis_errors import answered
from gateway.config.specs import RulesSpec
from gateway.observability.exposition import ExpositionState
from gateway.redis.errors import StoreError

Json = dict[str, Any]
T = TypeVar("T")

# Among so many of the newest decisions an experiment's own are looked for, to stand beside it.
_DECISIONS = 200


class ExperimentDescription(CommandState, Protocol):
    """Whoever knows what experiments are declared, their traffic, and their runs."""

    async def exposition(self) -> ExpositionState: ...


def add_experiments(app: FastAPI, state: ExperimentDescription) -> None:
    """Answer for `/experiments` and `/decisions`."""
    add_commands(app, state)

    @app.get("/experiments", tags=["experiments"])
    async def experiments(_: Viewer) -> Json:
        """Every experiment: arms with shares and traffic, comparisons, guardrails, where its run stands."""
        traffic = _traffic(state.rules, await state.exposition())
        return {"experiments": [_with_traffic(told, traffic) for told in state.experiments.experiments_json()]}

    @app.get("/experiments/{name}", tags=["experiments"], responses=REFUSALS)
    async def experiment(name: str, _: Viewer) -> Json:
        """One of them, with its decisions, newest first, and its series for charts."""
        series = await _known(state, state.experiments.history(name), name)
        traffic = _traffic(state.rules, await state.exposition())
        mine: list[Json] = []
        with suppress(StoreError):  # all else is known without
            mine = [each for each in await state.experiments.decisions(_DECISIONS) if each.get("experiment") == name]
        told = _with_traffic(state.experiments.experiment_json(name), traffic)
        return {**told, "decisions": mine, "series": series}

    @app.get("/experiments/{name}/history", tags=["experiments"], responses=REFUSALS)
    async def history(
        name: str,
        _: Viewer,
        since: Annotated[float, Query(ge=0, allow_inf_nan=False, description="Seconds since 1970.")] = 0.0,
    ) -> Json:
        """Points for charts since then: shares, and each metric's intervals."""
        return {"series": await _known(state, state.experiments.history(name, since), name)}

    @app.get("/decisions", tags=["experiments"], responses={503: REFUSALS[503]})
    async def decisions(_: Viewer, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Json:
        """What was decided of all experiments, newest first: when, by whom, why, and by which numbers."""
        return {"decisions": list(await answered(state.experiments.decisions(limit)))}


async def _known(state: ExperimentDescription, asking: Awaitable[T], name: str) -> T:
    """Raises: HTTPException where there is no such experiment."""
    try:
        return await asking
    except KeyError as error:
        raise unknown(state, name) from error


def _traffic(rules: RulesSpec, state: ExpositionState) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Requests and errors of arms since the workers began, whatever their runs."""
    routes = {route.name: route.experiment for route in rules.routes}
    requests: Counter[tuple[str, str]] = Counter()
    errors: Counter[tuple[str, str]] = Counter()
    for key, series in state.series.items():
        arm = (routes.get(key.route) or "", key.arm)
        requests[arm] += sum(series.statuses.values())
        errors[arm] += sum(series.errors.values())
    return requests, errors


def _with_traffic(told: Json, traffic: tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]) -> Json:
    requests, errors = traffic
    name = told["name"]
    arms = [
        {**arm, "requests": requests[name, arm["name"]], "errors": errors[name, arm["name"]]} for arm in told["arms"]
    ]
    return {**told, "arms": arms}

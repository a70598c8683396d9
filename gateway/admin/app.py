"""The admin API: metrics, what the gateway knows of its engines, experiments and rules, and the conversations that it
keeps. All that it changes is which endpoints are drained, where sessions are, and that these and conversations are
forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Protocol

import uvicorn
from fastapi import FastAPI, Response

from gateway.admin.conversations import add_conversations
from gateway.admin.draining import Drained, DrainState, add_draining
from gateway.admin.limits import limits_told
from gateway.admin.sessions import SessionState, add_sessions
from gateway.config.specs import HistorySpec, MatchSpec, RulesSpec
from gateway.observability.exposition import CONTENT_TYPE, ExpositionState, render
from gateway.protocol.engine_load import Load

Json = dict[str, Any]


class Replica(Protocol):
    """A gateway that shares its Redis with others, and the rules that it has in force."""

    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str: ...

    @property
    def number(self) -> int: ...


class ControlState(DrainState, SessionState, Protocol):
    """What the control process tells."""

    @property
    def rules_number(self) -> int: ...

    @property
    def rule_files(self) -> Sequence[str]: ...

    @property
    def problems(self) -> Sequence[str]:
        """What the last reading of the rule files found, a line each."""
        ...

    @property
    def replicas(self) -> Sequence[Replica]:
        """Those that share its Redis, itself first."""
        ...

    async def exposition(self) -> ExpositionState: ...


def make_app(state: ControlState) -> FastAPI:
    """The app; it reads `state` anew for each request."""
    app = FastAPI(title="Pointsman admin", docs_url="/docs", redoc_url=None)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(render(await state.exposition()), media_type=CONTENT_TYPE)

    @app.get("/healthz")
    async def healthz() -> Json:
        return {"status": "ok"}

    @app.get("/engines")
    async def engines() -> Json:
        return {"engines": _engines(state.rules, await state.exposition(), state.drained)}

    @app.get("/experiments")
    async def experiments() -> Json:
        return {"experiments": _experiments(state.rules, await state.exposition())}

    @app.get("/limits")
    async def limits() -> Json:
        return {"limits": limits_told(state.rules, await state.exposition())}

    @app.get("/rules")
    async def rules() -> Json:
        return {
            "number": state.rules_number,
            "digest": state.rules.digest,
            "files": list(state.rule_files),
            "problems": list(state.problems),
            "replicas": [
                {"name": replica.name, "digest": replica.digest, "number": replica.number} for replica in state.replicas
            ],
            "routes": _routes(state.rules),
        }

    add_draining(app, state)
    add_conversations(app, state)
    add_sessions(app, state)
    return app


class _Server(uvicorn.Server):
    """Leaves signals to the supervisor, which drains before it stops."""

    @contextmanager
    def capture_signals(self) -> Any:
        yield


def admin_server(app: FastAPI) -> uvicorn.Server:
    """A server to be run in the supervisor's loop by `serve([listening socket])` and stopped by `should_exit`."""
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        log_config=None,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    return _Server(config)


def _engines(rules: RulesSpec, state: ExpositionState, drained: Mapping[tuple[str, str], Drained]) -> list[Json]:
    """Every engine with its endpoints; credentials are never told."""
    requests: Counter[tuple[str, str]] = Counter()
    errors: Counter[tuple[str, str]] = Counter()
    in_flight: Counter[tuple[str, str]] = Counter()
    for key, series in state.series.items():
        where = (key.engine, key.endpoint)
        requests[where] += sum(series.statuses.values())
        errors[where] += sum(series.errors.values())
        in_flight[where] += series.in_flight
    moved: Counter[tuple[str, str]] = Counter()
    lost: Mapping[tuple[str, str], int] = {}
    if state.sessions is not None:
        for (left, url, _), number in state.sessions.moved.items():
            moved[left, url] += number
        lost = state.sessions.sequences_lost
    return [
        {
            "name": name,
            "protocol": engine.protocol.value,
            "balance": engine.balance.value,
            "endpoints": [
                {
                    "url": endpoint.url,
                    "condition": _condition(state, name, endpoint.url),
                    "draining": _drained(drained.get((name, endpoint.url))),
                    "breaker_open": state.breakers_open.get((name, endpoint.url), False),
                    "in_flight": in_flight[name, endpoint.url],
                    "requests": requests[name, endpoint.url],
                    "errors": errors[name, endpoint.url],
                    "sessions_moved": moved[name, endpoint.url],
                    "sequences_lost": lost.get((name, endpoint.url), 0),
                    "models": sorted(state.models.get((name, endpoint.url), ())),
                    "load": _load(state.loads.get((name, endpoint.url))),
                }
                for endpoint in engine.endpoints
            ],
        }
        for name, engine in rules.engines.items()
    ]


def _condition(state: ExpositionState, engine: str, url: str) -> str:
    """What the probes last found; "unknown" where none has asked."""
    condition = state.health.get((engine, url))
    return condition.value if condition is not None else "unknown"


def _drained(drained: Drained | None) -> Json | None:
    """Since when, and by whom; None where it gets new work."""
    return {"since": drained.since, "by": drained.by} if drained is not None else None


def _load(load: Load | None) -> Json | None:
    """What the engine says of its own load; None where it does not tell."""
    if load is None:
        return None
    return {"running": load.running, "waiting": load.waiting, "kv_use": load.kv_use}


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


def _routes(rules: RulesSpec) -> list[Json]:
    return [
        {
            "name": route.name,
            "match": _match(route.match),
            "engine": route.engine,
            "experiment": route.experiment,
            "model": route.model,
            "resume": route.resume,
            "history": _history(route.session.history),
            "replay": asdict(route.session.replay) if route.session.replay is not None else None,
            "location": str(route.location) if route.location else None,
        }
        for route in rules.routes
    ]


def _history(history: HistorySpec | None) -> Json | None:
    """What is kept of conversations; None where nothing is."""
    return asdict(history) if history is not None else None


def _match(match: MatchSpec) -> Json:
    """The conditions that are set."""
    told: Json = {name: getattr(match, name) for name in MatchSpec.__slots__ if getattr(match, name)}
    if match.has_image is not None:
        told["has_image"] = match.has_image
    if match.input:
        told["input"] = [{name: getattr(each, name) for name in each.__slots__} for each in match.input]
    return told

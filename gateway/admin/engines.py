"""Engines and their endpoints by the admin API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from fastapi import FastAPI

from gateway.admin.auth import Viewer
from gateway.admin.drain import DrainReply, DrainState
from gateway.config.specs import RulesSpec
from gateway.observability.exposition import ExpositionState
from gateway.protocol.engine_load import Load

Json = dict[str, Any]


class EngineState(DrainState, Protocol):
    """Whoever knows how the engines are."""

    async def exposition(self) -> ExpositionState: ...


def add_engines(app: FastAPI, state: EngineState) -> None:
    """Answer for `/engines`."""

    @app.get("/engines", tags=["engines"])
    async def engines(_: Viewer) -> Json:
        """Every engine with its endpoints: health, load, traffic, drains; credentials are never told."""
        return {"engines": engines_told(state.rules, await state.exposition(), state.drained)}


def engines_told(rules: RulesSpec, state: ExpositionState, drained: Mapping[tuple[str, str], DrainReply]) -> list[Json]:
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
                    "grpc": endpoint.grpc,
                    "weight": endpoint.weight,
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


def _drained(drained: DrainReply | None) -> Json | None:
    """Since when, and by whom; None where it gets new work."""
    return {"since": drained.since, "by": drained.by} if drained is not None else None


def _load(load: Load | None) -> Json | None:
    """What the engine says of its own load; None where it does not tell."""
    if load is None:
        return None
    return {"running": load.running, "waiting": load.waiting, "kv_use": load.kv_use}

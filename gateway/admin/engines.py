"""Engines and their endpoints by the admin API: listed, drained, added, removed and weighted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from time import time
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.api_keys import Caller
from gateway.admin.auth import Admin, Operator, Viewer
from gateway.admin.errors import unknown
from gateway.admin.rule_versions import REFUSED, version_json
from gateway.config.engine_specs import EndpointSpec, EngineSpec
from gateway.config.specs import RulesSpec
from gateway.observability.exposition_state import ExpositionState
from gateway.observability.stats import OverloadSnapshot, SourceStatus
from gateway.rule_versions import editor
from gateway.supervision.control_plane import ControlPlane
from gateway.supervision.drains import DrainedSince

Json = dict[str, Any]

Url = Annotated[
    str, Field(max_length=1000, description="As rules write it: http://host:port, or grpc://host:port without REST.")
]
Weight = Annotated[
    float, Field(ge=0, le=1_000_000, description="Its share of the work, relative to the others; 0: as if drained.")
]
Reason = Annotated[str, Field(max_length=1000, description="The reason, for the history of versions.")]

CHANGED: dict[int | str, dict[str, Any]] = {
    404: {"description": "there is no such engine, endpoint or limit"},
    409: {"description": "the rule files, as they are written, cannot be edited so"},
    422: REFUSED[422],
}


_COUNTS = ("in_flight", "requests", "errors", "sessions_moved", "sequences_lost")


class DrainRequest(BaseModel):
    """The endpoint, and who drains it; the name of a key of the keys file takes precedence over `by`."""

    url: str
    by: str = "the admin API"
    reason: str = ""


class _Edit(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: Reason = ""


class NewEndpoint(_Edit):
    """An endpoint to add."""

    url: Url
    grpc: Annotated[str | None, Field(max_length=1000, description="host:port of its gRPC, where it has one.")] = None
    weight: Weight | None = None


class EndpointWeight(_Edit):
    """A new weight of an endpoint."""

    url: Url
    weight: Weight


def add_engines(app: FastAPI, control: ControlPlane) -> None:
    path = "/engines/{name}/endpoints"
    book, manager = control.book, control.rule_manager

    @app.get("/engines", tags=["engines"])
    async def list_engines(_: Viewer) -> Json:
        """Every engine with its endpoints: health, load, traffic, drains. Credentials are never shown."""
        return {"engines": engines_json(control.rules.engines, await control.exposition(), control.drained)}

    @app.post(f"{path}/drain", tags=["engines"])
    async def drain(name: str, body: DrainRequest, caller: Operator) -> Json:
        """Send an endpoint no new work; requests under way end there, sessions move elsewhere."""
        return await _drain(control, name, body, caller, is_draining=True)

    @app.post(f"{path}/undrain", tags=["engines"])
    async def undrain(name: str, body: DrainRequest, caller: Operator) -> Json:
        """Send an endpoint work again."""
        return await _drain(control, name, body, caller, is_draining=False)

    @app.post(path, tags=["engines"], responses=CHANGED)
    async def add_endpoint(name: str, body: NewEndpoint, caller: Admin) -> Json:
        """Add an endpoint to an engine: it is probed, and gets work once it is ready."""
        check_endpoint(book.rules, name)
        edit = partial(editor.add_endpoint, engine=name, url=body.url, grpc=body.grpc or None, weight=body.weight)
        reason = body.reason or f"{body.url} is added to engine '{name}'"
        version = await manager.use(book.change(edit, caller.name, reason))
        return {"engine": name, "url": body.url, "version": version_json(version)}

    @app.delete(path, tags=["engines"], responses=CHANGED)
    async def remove_endpoint(
        name: str, url: Annotated[str, Query(max_length=1000)], caller: Admin, reason: Reason = ""
    ) -> Json:
        """Remove an endpoint from an engine: it gets no new work, and requests under way end there."""
        check_listed(control, name, url.rstrip("/"))
        edit = partial(editor.remove_endpoint, engine=name, url=url)
        reason = reason or f"{url} is removed from engine '{name}'"
        version = await manager.use(book.change(edit, caller.name, reason))
        return {"engine": name, "url": url, "version": version_json(version)}

    @app.post(f"{path}/weight", tags=["engines"], responses=CHANGED)
    async def set_weight(name: str, body: EndpointWeight, caller: Admin) -> Json:
        """Set an endpoint's share of its engine's work."""
        check_listed(control, name, body.url.rstrip("/"))
        edit = partial(editor.set_endpoint_weight, engine=name, url=body.url, weight=body.weight)
        reason = body.reason or f"{body.url} of engine '{name}' has weight {body.weight:g}"
        version = await manager.use(book.change(edit, caller.name, reason))
        return {"engine": name, "url": body.url, "weight": body.weight, "version": version_json(version)}


async def _drain(control: ControlPlane, name: str, body: DrainRequest, caller: Caller, *, is_draining: bool) -> Json:
    # An endpoint that the rules no longer name may still be drained, and can be put in use again.
    if is_draining or (name, body.url) not in control.replicas.drained:
        check_endpoint(control.rules, name, body.url)
    by = caller.name if caller.id else body.by
    is_shared = await control.replicas.drain((name, body.url), is_draining, by)
    return {"engine": name, "url": body.url, "draining": is_draining, "shared": is_shared}


def check_endpoint(rules: RulesSpec, name: str, url: str | None = None) -> None:
    """Raises: HTTPException where there is no such engine, or it has no such endpoint."""
    engine = rules.engines.get(name)
    if engine is None:
        raise unknown("engine", name, rules.engines)
    urls = [endpoint.url for endpoint in engine.endpoints]
    if url is not None and url not in urls:
        raise HTTPException(404, f"engine '{name}' has no endpoint {url}; it has {', '.join(urls) or 'none'}")


def check_listed(control: ControlPlane, name: str, url: str) -> None:
    """Raises: HTTPException where the rules do not list the endpoint."""
    listed, found = control.book.rules, control.rules.engines.get(name)
    if found is not None and found.sources:
        is_listed = any(each.url == url for each in listed.engines[name].endpoints)
        if not is_listed and any(each.url == url for each in found.endpoints):
            labels = ", ".join(source.label for source in found.sources)
            raise HTTPException(409, f"{url} is found by {labels}, and not listed by the rules: change it there")
    check_endpoint(listed, name, url)


def engines_json(
    engines: Mapping[str, EngineSpec], state: ExpositionState, drained: Mapping[tuple[str, str], DrainedSince]
) -> list[Json]:
    """Every engine with its endpoints, without credentials."""
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for key, series in state.series.items():
        count = counts[key.engine, key.endpoint]
        count["requests"] += sum(series.statuses.values())
        count["errors"] += sum(series.errors.values())
        count["in_flight"] += series.in_flight
    if state.sessions is not None:
        for (engine_name, url, _), number in state.sessions.moved.items():
            counts[engine_name, url]["sessions_moved"] += number
        for place, number in state.sessions.sequences_lost.items():
            counts[place]["sequences_lost"] += number

    sources: dict[str, list[SourceStatus]] = defaultdict(list)
    for status in state.sources:
        sources[status.engine].append(status)

    def endpoint_json(place: tuple[str, str], spec: EndpointSpec) -> Json:
        condition, since, load = state.health.get(place), drained.get(place), state.loads.get(place)
        listed = state.models.get(place)
        return {
            "url": place[1],
            "grpc": spec.grpc,
            "weight": spec.weight,
            "zone": spec.zone,
            "priority": spec.priority,
            "condition": condition.value if condition is not None else "unknown",
            "draining": {"since": since.since, "by": since.by} if since is not None else None,
            "breaker_open": state.breakers_open.get(place, False),
            **{name: counts[place][name] for name in _COUNTS},
            "models": sorted(listed.names) if listed is not None else [],
            "lists_models": listed is not None,
            "load": {"running": load.running, "waiting": load.waiting, "kv_use": load.kv_use}
            if load is not None
            else None,
        }

    return [
        {
            "name": name,
            "protocol": engine.protocol.value,
            "balance": engine.balance.value,
            "overload": _overload_json(state.overloads.get(name, OverloadSnapshot())) if engine.overload else None,
            "endpoints": [endpoint_json((name, each.url), each) for each in engine.endpoints],
            "sources": [_source_json(each) for each in sources[name]],
        }
        for name, engine in engines.items()
    ]


def _overload_json(snapshot: OverloadSnapshot) -> Json:
    """The sums of all workers; `limits` are by endpoint, `waiting` and `refused` by class."""
    refused = {name: dict(reasons) for name, reasons in snapshot.refused.items()}
    limits, waiting = dict(snapshot.limits), dict(snapshot.waiting)
    counts = {"admitted": snapshot.admitted, "queued": snapshot.queued, "in_flight": snapshot.in_flight}
    return {**counts, "limits": limits, "waiting": waiting, "refused": refused}


def _source_json(status: SourceStatus) -> Json:
    """A source of endpoints; `age` is the time since its last answer in seconds."""
    age = max(0.0, time() - status.answered_at) if status.answered_at else None
    return {
        "source": status.source,
        "endpoints": status.endpoints,
        "leaving": status.leaving,
        "left_out": status.left_out,
        "age": round(age, 1) if age is not None else None,
        "error": status.error or None,
        "empty": status.is_empty,
        "failures": status.failures,
    }

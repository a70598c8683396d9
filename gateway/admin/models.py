"""Models over the fleet, by the admin API: where each is ready, loaded and unloaded on all replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

import orjson
from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.auth import Operator, Viewer
from gateway.admin.model_control import EndpointOutcome, Place, control_model, list_models, places_of
from gateway.config.specs import EngineSpec, RulesSpec
from gateway.observability.exposition import ExpositionState
from gateway.protocol.operations import Operation
from gateway.routing.decision import Facts
from gateway.routing.table import Table

Json = dict[str, Any]

_READY = "READY"
_ABSENT = "ABSENT"  # the endpoint does not have it, though another of its engine does


class ModelState(Protocol):
    """Whoever knows the engines, and what they have told."""

    @property
    def rules(self) -> RulesSpec: ...

    async def exposition(self) -> ExpositionState: ...


class ModelControlRequest(BaseModel):
    """Where, how many must succeed, and what an engine is told beside."""

    model_config = ConfigDict(extra="forbid")

    engine: Annotated[
        str | None,
        Field(max_length=100, description="This engine alone, which calls the model so; else wherever the rules lead."),
    ] = None
    quorum: Annotated[
        Literal["all", "majority"] | Annotated[int, Field(ge=1, le=1_000_000)],
        Field(description="How many of the endpoints must succeed for the call to."),
    ] = "all"
    parameters: Annotated[
        dict[str, bool | int | float | str] | None,
        Field(description="As V2's load takes them, `config` for one.", max_length=100),
    ] = None
    reason: Annotated[str, Field(max_length=1000)] = ""


_ANSWERS: dict[int | str, dict[str, Any]] = {
    400: {"description": "the engine knows no loading, or there are fewer endpoints than the quorum"},
    404: {"description": "no such engine; no route takes this model"},
    409: {"description": "fewer than the quorum have done it; `endpoints` says which, and why"},
}


def add_models(app: FastAPI, state: ModelState) -> None:
    """Answer for `/models`."""

    @app.get("/models", tags=["models"])
    async def models(_: Viewer) -> Json:
        """Every model that an engine knows, and at which endpoints it is ready. Engines of V2 are asked now; of others
        it is told what the probes last found."""
        engines = state.rules.engines
        outcomes = await list_models(places_of(engine for engine in engines.values() if engine.protocol.is_v2))
        found = _listed(engines, outcomes, (await state.exposition()).models)
        unanswered = [
            {"engine": outcome.place.engine.name, "url": outcome.place.endpoint.url, "detail": outcome.detail}
            for outcome in outcomes
            if not outcome.is_good
        ]
        return {"models": [_told(name, found[name], engines) for name in sorted(found)], "unanswered": unanswered}

    @app.post("/models/{name:session}/load", tags=["models"], responses=_ANSWERS)
    async def loaded(name: str, wish: ModelControlRequest, _: Operator) -> JSONResponse:
        """Load a model at all replicas at the same time; what succeeded stays, whether the quorum is reached or not."""
        return await _control(state, name, "load", wish)

    @app.post("/models/{name:session}/unload", tags=["models"], responses=_ANSWERS)
    async def unloaded(name: str, wish: ModelControlRequest, _: Operator) -> JSONResponse:
        """Unload a model at all replicas at the same time."""
        return await _control(state, name, "unload", wish)


# What there is

# By model, by engine and URL: its versions, as the index tells them.
Index = dict[str, dict[tuple[str, str], list[Json]]]


def _listed(
    engines: Mapping[str, EngineSpec],
    outcomes: Sequence[EndpointOutcome],
    probed: Mapping[tuple[str, str], frozenset[str]],
) -> Index:
    found: Index = {}
    for outcome in outcomes:
        key = outcome.place.engine.name, outcome.place.endpoint.url
        for each in _index(outcome) if outcome.is_good else ():
            found.setdefault(each["name"], {}).setdefault(key, []).append(each)
    for (engine, url), names in probed.items():
        if engine in engines and not engines[engine].protocol.is_v2:
            for name in names:
                found.setdefault(name, {})[engine, url] = [{"version": "", "state": _READY, "reason": ""}]
    return found


def _index(outcome: EndpointOutcome) -> list[Json]:
    """What an index says, as far as it can be read."""
    try:
        listed = orjson.loads(outcome.body)
    except ValueError:
        return []
    return [
        {
            "name": str(each["name"]),
            "version": str(each.get("version") or ""),
            # Triton tells no state of what it has not tried to load.
            "state": str(each.get("state") or "UNAVAILABLE"),
            "reason": str(each.get("reason") or ""),
        }
        for each in (listed if isinstance(listed, list) else ())
        if isinstance(each, dict) and each.get("name")
    ]


def _told(name: str, places: Mapping[tuple[str, str], list[Json]], engines: Mapping[str, EngineSpec]) -> Json:
    told: list[Json] = []
    for engine in dict.fromkeys(engine for engine, _ in places):
        endpoints = [_at(url.url, places.get((engine, url.url))) for url in engines[engine].endpoints]
        told.append({"engine": engine, "endpoints": endpoints})
    flat = [endpoint for each in told for endpoint in each["endpoints"]]
    return {
        "name": name,
        "engines": told,
        "ready": sum(endpoint["ready"] for endpoint in flat),
        "endpoints": len(flat),
    }


def _at(url: str, versions: list[Json] | None) -> Json:
    """A model at one endpoint: ready where some version is."""
    if versions is None:
        return {"url": url, "ready": False, "state": _ABSENT, "versions": [], "reason": ""}
    ready = [each for each in versions if each["state"] == _READY]
    first = (ready or versions)[0]
    return {
        "url": url,
        "ready": bool(ready),
        "state": first["state"],
        "versions": [each["version"] for each in ready if each["version"]],
        "reason": first["reason"],
    }


# What is done


async def _control(state: ModelState, name: str, verb: str, wish: ModelControlRequest) -> JSONResponse:
    places = await _places(state.rules, name, wish.engine)
    needed = _needed(wish.quorum, len(places))
    outcomes = await control_model(places, verb, wish.parameters)
    succeeded = sum(outcome.is_good for outcome in outcomes)
    told = {
        "model": name,
        "succeeded": succeeded,
        "needed": needed,
        "endpoints": [_done(outcome) for outcome in outcomes],
    }
    if succeeded >= needed:
        return JSONResponse(told)
    detail = f"{verb} of model {name!r}: {succeeded} of {len(places)} endpoints have done it, {needed} were needed"
    return JSONResponse({"detail": detail, **told}, 409)


def _done(outcome: EndpointOutcome) -> Json:
    return {
        "engine": outcome.place.engine.name,
        "url": outcome.place.endpoint.url,
        "model": outcome.place.model,
        "ok": outcome.is_good,
        "status": outcome.status or None,
        "detail": outcome.detail,
        "seconds": round(outcome.seconds, 3),
    }


async def _places(rules: RulesSpec, name: str, engine: str | None) -> list[Place]:
    """Raises: HTTPException where there is none."""
    if engine is not None:
        if engine not in rules.engines:
            raise HTTPException(404, f"there is no engine '{engine}'; there are {', '.join(rules.engines) or 'none'}")
        targets = [(rules.engines[engine], name)]
    else:
        table = await asyncio.to_thread(Table, rules)  # thousands of routes take a moment
        found = table.targets_for(Facts(name, operation=Operation.LOAD))
        targets = [(rules.engines[target.engine], target.model or name) for target in found]
        if not targets:
            raise HTTPException(404, f"no route takes model {name!r}: name the 'engine' that is to have it")
    able = [(spec, model) for spec, model in targets if spec.protocol.is_v2]
    if not able:
        spoken = ", ".join(sorted({spec.protocol.value for spec, _ in targets}))
        raise HTTPException(400, f"engines of protocol {spoken} load and unload no models by their API")
    found_places = [place for spec, model in able for place in places_of([spec], model)]
    # Engines of other limits may stand for the same server.
    return list({(place.endpoint.url, place.model): place for place in found_places}.values())


def _needed(quorum: str | int, number: int) -> int:
    """Raises: HTTPException where there are not so many."""
    if quorum == "all":
        return number
    if quorum == "majority":
        return number // 2 + 1
    if int(quorum) > number:
        raise HTTPException(400, f"a quorum of {quorum} cannot be reached: there are {number} endpoints")
    return int(quorum)

"""Models of the fleet by the admin API: where each is ready; loaded and unloaded at all endpoints at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Annotated, Any, Literal
from urllib.parse import quote

import orjson
from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.api_keys import Role
from gateway.admin.auth import Operator, Viewer
from gateway.admin.engines import check_endpoint
from gateway.config.engine_specs import EndpointSpec, EngineSpec
from gateway.config.specs import RulesSpec
from gateway.protocol.advertised_models import AdvertisedModels
from gateway.protocol.errors import GatewayError
from gateway.protocol.operations import Operation
from gateway.routing.decision import Facts
from gateway.routing.table import Table
from gateway.supervision.control_plane import ControlPlane
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.endpoint_client import HttpReply, fetch
from gateway.upstream.engine import extra_fields
from gateway.upstream.tls import endpoint_tls

Json = dict[str, Any]

# Concurrent calls: a large fleet must not take all file descriptors.
_MAX_CALLS = 64
_LIST_SECONDS = 5.0
# Loading a model can take minutes.
_CONTROL_SECONDS = 600.0
_MAX_DETAIL = 500

_READY = "READY"
_ABSENT = "ABSENT"  # the endpoint does not have it, though another of its engine does


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """An endpoint, and the model's name there."""

    engine: EngineSpec
    endpoint: EndpointSpec
    model: str = ""


@dataclass(frozen=True, slots=True)
class EndpointOutcome:
    """The result of a call at an endpoint: its reply, or the `failure` without one."""

    place: ModelPlace
    seconds: float
    status: int = 0
    body: bytes = b""
    failure: str = ""

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    @property
    def detail(self) -> str:
        """The endpoint's error message, or that of the connection to it."""
        if self.is_good or self.failure:
            return self.failure
        try:
            parsed = orjson.loads(self.body)
            text = str(parsed["error"]) if isinstance(parsed, dict) and "error" in parsed else self.body.decode()
        except ValueError:
            text = self.body.decode("utf-8", "replace")
        return text[:_MAX_DETAIL] or f"it answered {self.status}"


def places_of(engines: Iterable[EngineSpec], model: str = "") -> list[ModelPlace]:
    return [ModelPlace(engine, endpoint, model) for engine in engines for endpoint in engine.endpoints]


async def _call_all(
    places: Sequence[ModelPlace], verb: str, body: bytes = b"{}", seconds: float = _CONTROL_SECONDS
) -> list[EndpointOutcome]:
    """Load or unload the model at each, under its name there; or query the repository's `index` of each."""

    def target(place: ModelPlace) -> str:
        model = f"models/{quote(place.model, safe='')}/" if place.model else ""
        return f"/v2/repository/{model}{verb}"

    return await call_places(places, "POST", target, body, seconds)


async def call_places(
    places: Sequence[ModelPlace], method: str, target: Callable[[ModelPlace], str], body: bytes, seconds: float
) -> list[EndpointOutcome]:
    """Call each endpoint; `target` is the path there."""
    slots = asyncio.Semaphore(_MAX_CALLS)

    async def call(place: ModelPlace) -> EndpointOutcome:
        async with slots:
            since = monotonic()
            try:
                reply = await _fetch(place, method, target(place).encode("ascii"), body, seconds)
            except (GatewayError, OSError) as error:  # OSError: a certificate file
                return EndpointOutcome(place, monotonic() - since, failure=str(error))
            return EndpointOutcome(place, monotonic() - since, reply.status, reply.body)

    return list(await asyncio.gather(*map(call, places)))


async def _fetch(place: ModelPlace, method: str, target: bytes, body: bytes, seconds: float) -> HttpReply:
    engine = place.engine
    endpoint = Endpoint(engine, place.endpoint, endpoint_tls(engine.tls, place.endpoint.url))
    fields = [*extra_fields(engine), (b"content-type", b"application/json")]
    try:
        return await fetch(endpoint, method, target, body, fields=fields, timeout=seconds)
    finally:
        endpoint.retire()


class ModelControlRequest(BaseModel):
    """The engines, the quorum, and parameters for the engine."""

    model_config = ConfigDict(extra="forbid")

    engine: Annotated[
        str | None,
        Field(
            max_length=100,
            description="This engine only, by its own name of the model; else all that the rules lead to.",
        ),
    ] = None
    quorum: Annotated[
        Literal["all", "majority"] | Annotated[int, Field(ge=1, le=1_000_000)],
        Field(description="How many endpoints must succeed."),
    ] = "all"
    parameters: Annotated[
        dict[str, bool | int | float | str] | None,
        Field(description="Parameters of V2's load, such as `config`.", max_length=100),
    ] = None
    reason: Annotated[str, Field(max_length=1000)] = ""


_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "the engine's protocol cannot load models, or there are fewer endpoints than the quorum"},
    404: {"description": "no such engine; no route takes this model"},
    409: {"description": "fewer than the quorum succeeded; see `endpoints`"},
}


def add_models(app: FastAPI, control: ControlPlane) -> None:
    """Add `/models`."""

    @app.get("/models", tags=["models"])
    async def show_models(_: Viewer) -> Json:
        """Every model of the engines, and the endpoints where it is ready. V2 engines are queried now; for others this
        is the last result of the probes."""
        engines = control.rules.engines
        places = places_of(engine for engine in engines.values() if engine.protocol.is_v2)
        outcomes = await _call_all(places, "index", seconds=_LIST_SECONDS)
        index = _index_of(engines, outcomes, (await control.exposition()).models)
        unanswered = [
            {"engine": outcome.place.engine.name, "url": outcome.place.endpoint.url, "detail": outcome.detail}
            for outcome in outcomes
            if not outcome.is_good
        ]
        return {"models": [_model_json(name, index[name], engines) for name in sorted(index)], "unanswered": unanswered}

    @app.post("/models/{name:session}/load", tags=["models"], responses=_ERRORS)
    async def load(name: str, body: ModelControlRequest, caller: Operator) -> JSONResponse:
        """Load a model at all endpoints at the same time. Endpoints that succeeded stay loaded even without a
        quorum. A configuration or files among the parameters are code for the engines, and need the role admin without
        a scope."""
        brings_code = any(key == "config" or key.startswith("file:") for key in body.parameters or ())
        if brings_code and (caller.role < Role.admin or caller.scope):
            text = "'config' and 'file:' are code that engines run: a key of role admin without a scope may send them"
            raise HTTPException(403, f"{text}, not that of {caller.name!r}")
        return await _control(control, name, "load", body)

    @app.post("/models/{name:session}/unload", tags=["models"], responses=_ERRORS)
    async def unload(name: str, body: ModelControlRequest, _: Operator) -> JSONResponse:
        """Unload a model at all endpoints at the same time."""
        return await _control(control, name, "unload", body)


# By model, then by engine and URL: its versions.
Index = dict[str, dict[tuple[str, str], list[Json]]]


def _index_of(
    engines: Mapping[str, EngineSpec],
    outcomes: Sequence[EndpointOutcome],
    probed: Mapping[tuple[str, str], AdvertisedModels],
) -> Index:
    index: Index = {}
    for outcome in outcomes:
        key = outcome.place.engine.name, outcome.place.endpoint.url
        for each in _read_index(outcome) if outcome.is_good else ():
            index.setdefault(each["name"], {}).setdefault(key, []).append(each)
    for (engine, url), listed in probed.items():
        if engine in engines and not engines[engine].protocol.is_v2:
            for name in listed.names:
                index.setdefault(name, {})[engine, url] = [{"version": "", "state": _READY, "reason": ""}]
    return index


def _read_index(outcome: EndpointOutcome) -> list[Json]:
    """The valid entries of a repository index."""
    try:
        listed = orjson.loads(outcome.body)
    except ValueError:
        return []
    return [
        {
            "name": str(each["name"]),
            "version": str(each.get("version") or ""),
            # Triton reports no state for a model that it has not tried to load.
            "state": str(each.get("state") or "UNAVAILABLE"),
            "reason": str(each.get("reason") or ""),
        }
        for each in (listed if isinstance(listed, list) else ())
        if isinstance(each, dict) and each.get("name")
    ]


def _model_json(name: str, places: Mapping[tuple[str, str], list[Json]], engines: Mapping[str, EngineSpec]) -> Json:
    by_engine: list[Json] = []
    for engine in dict.fromkeys(engine for engine, _ in places):
        endpoints = [_place_json(url.url, places.get((engine, url.url))) for url in engines[engine].endpoints]
        by_engine.append({"engine": engine, "endpoints": endpoints})
    flat = [endpoint for each in by_engine for endpoint in each["endpoints"]]
    return {
        "name": name,
        "engines": by_engine,
        "ready": sum(endpoint["ready"] for endpoint in flat),
        "endpoints": len(flat),
    }


def _place_json(url: str, versions: list[Json] | None) -> Json:
    """A model at one endpoint; ready if one of its versions is."""
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


async def _control(control: ControlPlane, name: str, verb: str, body: ModelControlRequest) -> JSONResponse:
    places = await _places(control.rules, name, body.engine)
    needed = _needed(body.quorum, len(places))
    parameters = orjson.dumps({"parameters": body.parameters}) if body.parameters else b"{}"
    outcomes = await _call_all(places, verb, parameters)
    await control.look_at_models({(place.engine.name, place.endpoint.url) for place in places})
    succeeded = sum(outcome.is_good for outcome in outcomes)
    result = {
        "model": name,
        "succeeded": succeeded,
        "needed": needed,
        "endpoints": [_outcome_json(outcome) for outcome in outcomes],
    }
    if succeeded >= needed:
        return JSONResponse(result)
    detail = f"{verb} of model {name!r}: {succeeded} of {len(places)} endpoints have done it, {needed} were needed"
    return JSONResponse({"detail": detail, **result}, 409)


def _outcome_json(outcome: EndpointOutcome) -> Json:
    return {
        "engine": outcome.place.engine.name,
        "url": outcome.place.endpoint.url,
        "model": outcome.place.model,
        "ok": outcome.is_good,
        "status": outcome.status or None,
        "detail": outcome.detail,
        "seconds": round(outcome.seconds, 3),
    }


async def _places(rules: RulesSpec, name: str, engine: str | None) -> list[ModelPlace]:
    """Raises: HTTPException where there is none."""
    if engine is not None:
        check_endpoint(rules, engine)
        targets = [(rules.engines[engine], name)]
    else:
        table = await asyncio.to_thread(Table, rules)  # takes a moment for thousands of routes
        targeted = table.targets_for(Facts(name, operation=Operation.LOAD))
        targets = [(rules.engines[target.engine], target.model or name) for target in targeted]
        if not targets:
            raise HTTPException(404, f"no route takes model {name!r}: name the 'engine' that is to have it")
    able = [(spec, model) for spec, model in targets if spec.protocol.is_v2]
    if not able:
        protocols = ", ".join(sorted({spec.protocol.value for spec, _ in targets}))
        raise HTTPException(400, f"engines of protocol {protocols} load and unload no models by their API")
    places = [place for spec, model in able for place in places_of([spec], model)]
    # Several engines may name the same server.
    return list({(place.endpoint.url, place.model): place for place in places}.values())


def _needed(quorum: str | int, number: int) -> int:
    """Raises: HTTPException where there are fewer endpoints."""
    if quorum == "all":
        return number
    if quorum == "majority":
        return number // 2 + 1
    if int(quorum) > number:
        raise HTTPException(400, f"a quorum of {quorum} cannot be reached: there are {number} endpoints")
    return int(quorum)

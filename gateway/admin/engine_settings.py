"""Log and trace settings of engines by the admin API: read from all endpoints of one, or written to them."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

import orjson
from fastapi import FastAPI, HTTPException, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.auth import Operator, Viewer
from gateway.admin.engines import check_endpoint
from gateway.admin.models import EndpointOutcome, call_places, places_of
from gateway.config.specs import RulesSpec
from gateway.supervision.control_plane import ControlPlane

Json = dict[str, Any]
Kind = Literal["logging", "trace"]

_SECONDS = 10.0
_Scalar = bool | int | float | str | None


class EngineSettings(BaseModel):
    """Settings as V2's extensions name them; null clears one."""

    model_config = ConfigDict(extra="forbid")

    settings: Annotated[dict[str, _Scalar | list[str]], Field(min_length=1, max_length=100)]
    model: Annotated[str, Field(max_length=1000, description="Of this model only; trace settings alone.")] = ""
    reason: Annotated[str, Field(max_length=1000)] = ""


_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "the engine's protocol has no such settings, or they are not of a model"},
    404: {"description": "no such engine"},
    409: {"description": "some endpoint has refused, or did not answer; see `endpoints`"},
}


def add_engine_settings(app: FastAPI, control: ControlPlane) -> None:
    path = "/engines/{name}/settings/{kind}"

    @app.get(path, tags=["engines"], responses=_ERRORS)
    async def show_settings(
        name: str, kind: Kind, _: Viewer, model: Annotated[str, Query(max_length=1000)] = ""
    ) -> JSONResponse:
        """The log or trace settings of each endpoint of an engine."""
        return await _call(control.rules, name, kind, model, "GET", b"")

    @app.post(path, tags=["engines"], responses=_ERRORS)
    async def write_settings(name: str, kind: Kind, body: EngineSettings, _: Operator) -> JSONResponse:
        """Write log or trace settings to all endpoints of an engine. Those that succeeded keep them."""
        return await _call(control.rules, name, kind, body.model, "POST", orjson.dumps(body.settings))


async def _call(rules: RulesSpec, name: str, kind: Kind, model: str, method: str, body: bytes) -> JSONResponse:
    check_endpoint(rules, name)
    engine = rules.engines[name]
    if not engine.protocol.is_v2:
        raise HTTPException(400, f"engines of protocol {engine.protocol.value} have no {kind} settings in their API")
    if model and kind == "logging":
        raise HTTPException(400, "log settings are the server's: leave 'model' out")
    target = "/v2/logging" if kind == "logging" else "/v2/trace/setting"
    if model:
        target = f"/v2/models/{quote(model, safe='')}/trace/setting"
    outcomes = await call_places(places_of([engine]), method, lambda place: target, body, _SECONDS)
    result = {"engine": name, "endpoints": [_outcome_json(outcome) for outcome in outcomes]}
    if all(outcome.is_good for outcome in outcomes):
        return JSONResponse(result)
    done = sum(outcome.is_good for outcome in outcomes)
    return JSONResponse({"detail": f"{done} of {len(outcomes)} endpoints have done it", **result}, 409)


def _outcome_json(outcome: EndpointOutcome) -> Json:
    settings = None
    if outcome.is_good:
        try:
            settings = orjson.loads(outcome.body)
        except orjson.JSONDecodeError:
            settings = None
    return {
        "url": outcome.place.endpoint.url,
        "ok": outcome.is_good,
        "status": outcome.status or None,
        "detail": outcome.detail,
        "settings": settings,
    }

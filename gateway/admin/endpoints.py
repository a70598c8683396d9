"""Endpoints added, removed and weighed by the admin API: each is a version of the rules."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Protocol

from fastapi import FastAPI, HTTPException, Query
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.auth import Admin
from gateway.admin.rule_versions import REFUSED, version_told
from gateway.config.specs import RulesSpec
from gateway.rule_versions import editor
from gateway.rule_versions.version import Version

Json = dict[str, Any]

Url = Annotated[
    str, Field(max_length=1000, description="As rules write it: http://host:port, or grpc://host:port without REST.")
]
Weight = Annotated[
    float, Field(ge=0, le=1_000_000, description="Its share of the work beside the others'; 0: as if drained.")
]
Reason = Annotated[str, Field(max_length=1000, description="Why, for whoever reads the versions later.")]

CHANGED: dict[int | str, dict[str, Any]] = {
    404: {"description": "there is no such engine, endpoint or limit"},
    409: {"description": "the rule files, as they are written, cannot be edited so"},
    422: REFUSED[422],
}


class EditState(Protocol):
    """Whoever has rules in force, and can edit them."""

    @property
    def rules(self) -> RulesSpec: ...

    async def change(self, edit: editor.Edit, author: str, reason: str = "", source: str = "api") -> Version:
        """Raises: EditError, RulesRefused."""
        ...


class _Wish(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: Reason = ""


class NewEndpoint(_Wish):
    """One more endpoint."""

    url: Url
    grpc: Annotated[str | None, Field(max_length=1000, description="host:port of its gRPC, where it has one.")] = None
    weight: Weight | None = None


class EndpointWeight(_Wish):
    """Another weight of an endpoint."""

    url: Url
    weight: Weight


def add_endpoints(app: FastAPI, state: EditState) -> None:
    """Let endpoints come, go, and weigh more or less."""
    path = "/engines/{name}/endpoints"

    @app.post(path, tags=["engines"], responses=CHANGED)
    async def added(name: str, wish: NewEndpoint, caller: Admin) -> Json:
        """Add an endpoint to an engine: it is probed, and gets work once it is ready."""
        _known(state, name)
        edit = partial(editor.add_endpoint, engine=name, url=wish.url, grpc=wish.grpc or None, weight=wish.weight)
        made = await state.change(edit, caller.name, wish.reason or f"{wish.url} is added to engine '{name}'")
        return {"engine": name, "url": wish.url, "version": version_told(made)}

    @app.delete(path, tags=["engines"], responses=CHANGED)
    async def removed(
        name: str, url: Annotated[str, Query(max_length=1000)], caller: Admin, reason: Reason = ""
    ) -> Json:
        """Remove an endpoint from an engine: it gets nothing more, and what is under way there ends."""
        _known(state, name, url)
        edit = partial(editor.remove_endpoint, engine=name, url=url)
        made = await state.change(edit, caller.name, reason or f"{url} is removed from engine '{name}'")
        return {"engine": name, "url": url, "version": version_told(made)}

    @app.post(path + "/weight", tags=["engines"], responses=CHANGED)
    async def weighed(name: str, wish: EndpointWeight, caller: Admin) -> Json:
        """Give an endpoint another share of its engine's work."""
        _known(state, name, wish.url)
        edit = partial(editor.set_endpoint_weight, engine=name, url=wish.url, weight=wish.weight)
        why = wish.reason or f"{wish.url} of engine '{name}' has weight {wish.weight:g}"
        made = await state.change(edit, caller.name, why)
        return {"engine": name, "url": wish.url, "weight": wish.weight, "version": version_told(made)}


def _known(state: EditState, name: str, url: str | None = None) -> None:
    """Raises: HTTPException where there is no such engine, or it has no such endpoint."""
    engine = state.rules.engines.get(name)
    if engine is None:
        raise HTTPException(404, f"there is no engine '{name}'; there are {', '.join(state.rules.engines) or 'none'}")
    urls = [endpoint.url for endpoint in engine.endpoints]
    if url is not None and url.rstrip("/") not in urls:
        raise HTTPException(404, f"engine '{name}' has no endpoint {url}; it has {', '.join(urls)}")

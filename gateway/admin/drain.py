"""Draining by the admin API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from gateway.admin.auth import ANONYMOUS, Caller, Operator
from gateway.config.specs import RulesSpec

Json = dict[str, Any]


class DrainReply(Protocol):
    """Since when an endpoint is drained, in seconds since 1970, and by whom."""

    @property
    def since(self) -> float: ...

    @property
    def by(self) -> str: ...


class DrainState(Protocol):
    """Whoever can drain."""

    @property
    def rules(self) -> RulesSpec: ...

    @property
    def drained(self) -> Mapping[tuple[str, str], DrainReply]:
        """By engine and url, whether the rules name it or not."""
        ...

    async def drain(self, engine: str, url: str, is_draining: bool, by: str) -> bool:
        """Have an endpoint get no new work, or get it again; tells whether Redis tells the other replicas."""
        ...


class DrainRequest(BaseModel):
    """Which endpoint, and who wants it, as others will read; a key's name goes before `by`."""

    url: str
    by: str = "the admin API"
    reason: str = ""


def add_draining(app: FastAPI, state: DrainState) -> None:
    """Let endpoints be drained and put in use again, at POST /engines/{name}/endpoints/drain and .../undrain."""

    @app.post("/engines/{name}/endpoints/drain", tags=["engines"])
    async def drain(name: str, wish: DrainRequest, caller: Operator) -> Json:
        """Have an endpoint get no new work; what is under way ends there, sessions move elsewhere."""
        return await _obey(state, name, wish, caller, is_draining=True)

    @app.post("/engines/{name}/endpoints/undrain", tags=["engines"])
    async def undrain(name: str, wish: DrainRequest, caller: Operator) -> Json:
        """Have an endpoint get work again."""
        return await _obey(state, name, wish, caller, is_draining=False)


async def _obey(state: DrainState, name: str, wish: DrainRequest, caller: Caller, *, is_draining: bool) -> Json:
    engine = state.rules.engines.get(name)
    urls = [endpoint.url for endpoint in engine.endpoints] if engine is not None else []
    # One that the rules no longer name may still be drained, and be wanted back.
    if wish.url not in urls and (is_draining or (name, wish.url) not in state.drained):
        if engine is None:
            known = ", ".join(state.rules.engines)
            raise HTTPException(404, f"there is no engine '{name}'; there are {known}")
        raise HTTPException(404, f"engine '{name}' has no endpoint {wish.url}; it has {', '.join(urls)}")
    is_shared = await state.drain(name, wish.url, is_draining, wish.by if caller == ANONYMOUS else caller.name)
    return {"engine": name, "url": wish.url, "draining": is_draining, "shared": is_shared}

"""Routes by the admin API."""

from __future__ import annotations

from typing import Any, Protocol

from fastapi import FastAPI

from gateway.admin.auth import Viewer
from gateway.admin.rules import routes_told
from gateway.config.specs import RulesSpec


class RouteState(Protocol):
    """Whoever has rules in force."""

    @property
    def rules(self) -> RulesSpec: ...


def add_routes(app: FastAPI, state: RouteState) -> None:
    """Answer for `/routes`."""

    @app.get("/routes", tags=["rules"])
    async def routes(_: Viewer) -> dict[str, Any]:
        """The routes in the order in which they are tried: what each takes, and where it leads."""
        return {"routes": routes_told(state.rules)}

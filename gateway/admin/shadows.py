"""Mirrored routes by the admin API: how their candidates' answers compare with those that clients had."""

from __future__ import annotations

from typing import Any, Protocol

from fastapi import FastAPI, HTTPException, Response
from fastapi.responses import HTMLResponse

from gateway.admin.auth import Operator, Viewer
from gateway.admin.shadow_page import page_of

Json = dict[str, Any]

# What the list of all leaves for the report of one.
_LONG = ("tensors", "texts", "worst", "failures", "latency", "statuses")


class ShadowReports(Protocol):
    """Whoever has the reports."""

    def reports(self) -> list[Json]: ...

    def report(self, route: str) -> Json | None:
        """A route's; None where it has none, and no shadow."""
        ...

    def forget(self, route: str) -> bool:
        """Begin a route's anew; False where there is none."""
        ...


class ShadowState(Protocol):
    """Whoever mirrors routes."""

    @property
    def shadows(self) -> ShadowReports: ...

    async def count(self) -> None:
        """Bring all counters and reports up to date."""
        ...


def add_shadows(app: FastAPI, state: ShadowState) -> None:
    """Tell reports at /shadows and /shadows/{route}, with a page at /shadows/{route}/report."""

    @app.get("/shadows", tags=["shadows"])
    async def shadows(caller: Viewer) -> Json:
        """All mirrored routes, and those that were, with the sums of their comparisons."""
        await state.count()
        return {
            "shadows": [
                {name: value for name, value in report.items() if name not in _LONG}
                for report in state.shadows.reports()
            ]
        }

    @app.get("/shadows/{route}", tags=["shadows"])
    async def shadow(route: str, caller: Viewer) -> Json:
        """One route's whole report: what agrees, how far, and which requests differ most."""
        return await _report(state, route)

    @app.get("/shadows/{route}/report", tags=["shadows"], response_class=HTMLResponse)
    async def page(route: str, caller: Viewer) -> Response:
        """The same as a page with plots, which needs nothing but itself."""
        return HTMLResponse(page_of(await _report(state, route)))

    @app.delete("/shadows/{route}", tags=["shadows"])
    async def forget(route: str, caller: Operator) -> Json:
        """Begin a route's report anew."""
        if not state.shadows.forget(route):
            raise _unknown(state, route)
        return {"route": route, "begun_anew": True}


async def _report(state: ShadowState, route: str) -> Json:
    await state.count()
    report = state.shadows.report(route)
    if report is None:
        raise _unknown(state, route)
    return report


def _unknown(state: ShadowState, route: str) -> HTTPException:
    known = ", ".join(report["route"] for report in state.shadows.reports())
    told = f"there are reports of {known}" if known else "no route has a 'shadow'"
    return HTTPException(404, f"there is no report of route '{route}'; {told}")

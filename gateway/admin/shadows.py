"""Mirrored routes by the admin API: how their candidates' replies compare with those that clients got."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, HTTPException, Response
from fastapi.responses import HTMLResponse

from gateway.admin.auth import Operator, Viewer
from gateway.admin.shadow_report_html import page_of
from gateway.redis.command import StoreError
from gateway.supervision.control_plane import ControlPlane

Json = dict[str, Any]

# Fields of a report that the list leaves out.
_LONG = ("tensors", "texts", "worst", "failures", "latency", "statuses")


def add_shadows(app: FastAPI, control: ControlPlane) -> None:
    """Add `/shadows`."""

    @app.get("/shadows", tags=["shadows"])
    async def list_reports(caller: Viewer) -> Json:
        """All routes that are or were mirrored, with the counts of their comparisons, by all gateways that share a
        Redis."""
        await control.count()
        await control.shadows.share()
        return {
            "shadows": [
                {name: value for name, value in report.items() if name not in _LONG}
                for report in control.shadows.reports()
            ]
        }

    @app.get("/shadows/{route}", tags=["shadows"])
    async def show_report(route: str, caller: Viewer) -> Json:
        """A route's report: agreement, distances, and the requests that differ most."""
        return await _report(control, route)

    @app.get("/shadows/{route}/report", tags=["shadows"], response_class=HTMLResponse)
    async def show_page(route: str, caller: Viewer) -> Response:
        """The report as a self-contained page with plots."""
        return HTMLResponse(page_of(await _report(control, route)))

    @app.delete("/shadows/{route}", tags=["shadows"])
    async def reset_report(route: str, caller: Operator) -> Json:
        """Reset a route's report."""
        try:
            has_report = await control.shadows.reset(route)
        except StoreError as error:
            raise HTTPException(503, f"only this gateway's part of the report has begun anew: {error}") from error
        if not has_report:
            raise _unknown(control, route)
        return {"route": route, "begun_anew": True}


async def _report(control: ControlPlane, route: str) -> Json:
    await control.count()
    await control.shadows.share()
    report = control.shadows.report(route)
    if report is None:
        raise _unknown(control, route)
    return report


def _unknown(control: ControlPlane, route: str) -> HTTPException:
    known = ", ".join(report["route"] for report in control.shadows.reports())
    others = f"there are reports of {known}" if known else "no route has a 'shadow'"
    return HTTPException(404, f"there is no report of route '{route}'; {others}")

"""The admin API: the modules of its resources, assembled behind authentication and the audit."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from gateway.admin.access import Access
from gateway.admin.audit import AuditMiddleware, add_audit
from gateway.admin.audit_log import AuditFile, AuditLog
from gateway.admin.auth import AuthMiddleware, Operator, Viewer
from gateway.admin.budgets import add_budgets
from gateway.admin.engine_settings import add_engine_settings
from gateway.admin.engines import add_engines
from gateway.admin.errors import add_errors
from gateway.admin.event_feed import Feed, add_events
from gateway.admin.experiments import add_experiments
from gateway.admin.json_route import JsonRoute
from gateway.admin.limits import add_limits
from gateway.admin.models import add_models
from gateway.admin.playground import add_playground
from gateway.admin.recordings import add_recordings
from gateway.admin.rule_trials import add_rule_trials
from gateway.admin.rule_versions import add_rule_versions
from gateway.admin.rules import add_rules
from gateway.admin.sessions import add_sessions
from gateway.admin.shadows import add_shadows
from gateway.admin.sign_in import add_sign_in
from gateway.api_description.inference import inference_document
from gateway.observability.exposition import render, render_openmetrics
from gateway.protocol import prometheus_text
from gateway.supervision.control_plane import ControlPlane

Json = dict[str, Any]

_DESCRIPTION = """
Roles: a *viewer* reads; an *operator* runs the fleet (drains, loads, moves sessions, ramps, cancels); an *admin*
changes what is declared (rules, endpoints, limits) and reads the audit. Errors are `{"detail": "reason"}`.
"""
_PAGE = Path(__file__).with_name("page")
# No foreign and no inline content, no frame around the page: a name that a caller makes up cannot become a script.
_PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # the page is never older than its gateway
}


class LogLevel(BaseModel):
    """A log level, and the reason for it."""

    level: Literal["debug", "info", "warning", "error"]
    reason: str = ""


class _Assets(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_PAGE_HEADERS)
        return response


def make_app(control: ControlPlane, access: Access, log: AuditLog | None = None, feed: Feed | None = None) -> FastAPI:
    """The app. Without `log` the audit stays in memory."""
    log = log if log is not None else AuditFile(None)
    app = FastAPI(
        title="Pointsman admin",
        version=version("pointsman"),
        description=_DESCRIPTION,
        docs_url=None,  # Swagger's page loads its script from elsewhere
        redoc_url=None,
    )
    app.router.route_class = JsonRoute
    app.add_middleware(AuditMiddleware, log=log)
    app.add_middleware(AuthMiddleware, access=access)  # the last one added runs first
    _add_gateway(app, control)
    add_sign_in(app, access)
    for add in (
        add_engines,
        add_engine_settings,
        add_experiments,
        add_rules,
        add_rule_versions,
        add_rule_trials,
        add_recordings,
    ):
        add(app, control)
    for add in (add_limits, add_budgets, add_shadows, add_sessions, add_playground, add_models, _add_requests):
        add(app, control)
    add_audit(app, log)
    add_events(app, feed if feed is not None else Feed(control), access)
    _add_page(app)
    add_errors(app)
    return app


def _add_gateway(app: FastAPI, control: ControlPlane) -> None:
    @app.get(
        "/metrics",
        tags=["gateway"],
        response_class=Response,
        responses={200: {"content": {"text/plain": {}, prometheus_text.OPENMETRICS_TYPE: {}}}},
    )
    async def metrics(request: Request) -> Response:
        """All counters, in Prometheus' text format, and the metrics of engines that the rules ask for. Where they need
        no key, accounts of budgets are not named."""
        own, engines = await asyncio.gather(control.exposition(), control.metrics_of_engines())
        if getattr(request.state, "caller", None) is None:
            own = replace(own, budgets={name: replace(use, shown=[]) for name, use in own.budgets.items()})
        exemplars, accepted = control.exemplars, request.headers.get("accept", "")
        if exemplars is not None and not engines and prometheus_text.OPENMETRICS_TYPE in accepted:
            text = await asyncio.to_thread(render_openmetrics, own, exemplars)
            return Response(text, media_type=prometheus_text.OPENMETRICS_CONTENT_TYPE)
        text = await asyncio.to_thread(render, own)  # of thousands of routes it takes seconds
        return Response(text + engines, media_type=prometheus_text.CONTENT_TYPE)

    @app.get("/healthz", tags=["gateway"])
    async def healthz() -> Json:
        """Liveness of the control process."""
        return {"status": "ok"}

    @app.get("/readyz", tags=["gateway"], responses={503: {"description": "It starts, stops, or no engine is ready."}})
    async def readyz(response: Response) -> Json:
        """Readiness of the gateway, as of `/v2/health/ready`."""
        is_ready = await control.is_ready()
        response.status_code = 200 if is_ready else 503
        return {"ready": is_ready}

    @app.get("/whoami", tags=["gateway"])
    async def whoami(caller: Viewer) -> Json:
        """The name and the role of this call's key."""
        return {"name": caller.name, "role": caller.role.name}

    @app.get("/log-level", tags=["gateway"])
    async def get_log_level(_: Viewer) -> dict[str, str]:
        """The log level of the control process and its workers."""
        return {"level": control.log_level}

    @app.put("/log-level", tags=["gateway"])
    async def set_log_level(_: Operator, body: LogLevel) -> dict[str, str]:
        """Set the log level until the gateway restarts."""
        control.set_log_level(body.level)
        return {"level": body.level}


def _add_requests(app: FastAPI, control: ControlPlane) -> None:
    @app.get("/requests", tags=["requests"])
    async def list_requests(
        _: Viewer, limit: Annotated[int, Query(ge=1, le=10_000, description="Number of the oldest requests.")] = 100
    ) -> Json:
        """The requests under way in all workers, the oldest first: the stage of each, and what it waits for."""
        return {"requests": [asdict(request) for request in await control.workers.requests(limit)]}

    @app.delete("/requests/{id:session}", tags=["requests"], responses={404: {"description": "no such request"}})
    async def cancel_request(
        _: Operator, id: Annotated[str, PathParameter(description="As the list shows it.")]
    ) -> Json:
        """Cancel a request: its engine is notified at once, and its client gets status 499 or CANCELLED."""
        count = await control.workers.cancel_request(id)
        if not count:
            raise HTTPException(404, f"there is no request {id!r} under way")
        return {"id": id, "cancelled": count}


def _add_page(app: FastAPI) -> None:
    """The page of the admin port: static files without secrets; its scripts call the admin API with the reader's
    key."""

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(_PAGE / "index.html", headers=_PAGE_HEADERS)

    @app.get("/openapi-inference.json", include_in_schema=False)
    async def inference_api() -> JSONResponse:
        return JSONResponse(inference_document())

    app.mount("/assets", _Assets(directory=_PAGE / "assets"))

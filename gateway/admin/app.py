"""The admin API: what the gateway knows of itself and its engines, and what an operator may have it do.

One module for each kind of thing; here they are put together, behind the gate and before the audit.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Protocol

from fastapi import FastAPI, Response

from gateway.admin.audit import Auditing, AuditLog, add_audit
from gateway.admin.audit_file import AuditFile
from gateway.admin.auth import Viewer
from gateway.admin.auth_middleware import Access, AuthMiddleware
from gateway.admin.conversations import add_conversations
from gateway.admin.drain import add_draining
from gateway.admin.endpoints import EditState, add_endpoints
from gateway.admin.engines import EngineState, add_engines
from gateway.admin.errors import add_errors
from gateway.admin.event_feed import Feed
from gateway.admin.events import add_events
from gateway.admin.experiments import ExperimentDescription, add_experiments
from gateway.admin.json_route import JsonRoute
from gateway.admin.limits import add_limits
from gateway.admin.log_level import LogState, add_log_level
from gateway.admin.models import add_models
from gateway.admin.page_files import add_page
from gateway.admin.playground import PlaygroundState, add_playground
from gateway.admin.recordings import RecordingState, add_recordings
from gateway.admin.requests import RequestsState, add_requests
from gateway.admin.routes import add_routes
from gateway.admin.rule_trials import add_rule_trials
from gateway.admin.rule_versions import add_rule_versions
from gateway.admin.rules import RulesState, add_rules
from gateway.admin.sessions import SessionState, add_sessions
from gateway.admin.shadows import ShadowState, add_shadows
from gateway.observability.exposition import render
from gateway.protocol import prometheus_text

Json = dict[str, Any]

_DESCRIPTION = """
Roles: a *viewer* reads; an *operator* runs the fleet (drains, loads, moves sessions, ramps, cancels); an *admin*
changes what is declared (rules, endpoints, limits) and reads the audit. Refusals are `{"detail": "why"}`.
"""


class ControlState(
    EditState,
    EngineState,
    ExperimentDescription,
    LogState,
    PlaygroundState,
    RequestsState,
    RulesState,
    SessionState,
    ShadowState,
    RecordingState,
    Protocol,
):
    """What the control process tells, and does."""


def make_app(
    state: ControlState, access: Access | None = None, log: AuditLog | None = None, feed: Feed | None = None
) -> FastAPI:
    """The app; it reads `state` anew for each request. Without `access` it asks for no keys, without `log` the audit is
    in memory; `feed` tells what others publish there."""
    access = access if access is not None else Access()
    log = log if log is not None else AuditFile(None)
    app = FastAPI(
        title="Pointsman admin",
        version=version("pointsman"),
        description=_DESCRIPTION,
        docs_url="/docs",
        redoc_url=None,
    )
    app.router.route_class = JsonRoute
    app.add_middleware(Auditing, log=log)
    app.add_middleware(AuthMiddleware, access=access)  # the last one added comes first

    @app.get("/metrics", tags=["gateway"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """All counters, in Prometheus' text format."""
        return Response(render(await state.exposition()), media_type=prometheus_text.CONTENT_TYPE)

    @app.get("/healthz", tags=["gateway"])
    async def healthz() -> Json:
        """That the control process lives."""
        return {"status": "ok"}

    @app.get("/whoami", tags=["gateway"])
    async def whoami(caller: Viewer) -> Json:
        """Whose key this call came with, and whether the gateway asks for keys at all."""
        return {"name": caller.name, "role": caller.role.name, "keys": access.keyring is not None}

    add_engines(app, state)
    add_endpoints(app, state)
    add_draining(app, state)
    add_routes(app, state)
    add_experiments(app, state)
    add_rules(app, state)
    add_rule_versions(app, state)
    add_rule_trials(app, state)
    add_recordings(app, state)
    add_limits(app, state)
    add_shadows(app, state)
    add_conversations(app, state)
    add_sessions(app, state)
    add_playground(app, state)
    add_models(app, state)
    add_requests(app, state)
    add_log_level(app, state)
    add_audit(app, log)
    add_events(app, feed if feed is not None else Feed(state), access)
    add_page(app)
    add_errors(app)
    return app

"""Limits by the admin API."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.auth import Admin, Viewer
from gateway.admin.engines import CHANGED, Reason
from gateway.admin.errors import unknown
from gateway.admin.rule_versions import version_json
from gateway.config.limit_specs import LimitSpec
from gateway.observability.stats import MAX_SHOWN, LimitSnapshot
from gateway.rule_versions import editor
from gateway.supervision.control_plane import ControlPlane
from gateway.supervision.viewer_digests import ViewerDigests

_AMOUNTS = ("requests_per_second", "burst", "tokens_per_minute", "concurrency")

Count = Annotated[int, Field(ge=1, le=10**15)]


class Amounts(BaseModel):
    """The new amounts; a field that is absent stays as it is, null removes it."""

    model_config = ConfigDict(extra="forbid")

    requests_per_second: Annotated[float, Field(gt=0, le=1e12)] | None = None
    burst: Count | None = None
    tokens_per_minute: Count | None = None
    concurrency: Count | None = None
    max_wait: Annotated[float, Field(ge=0, le=86_400, description="Seconds.")] | None = None
    reason: Reason = ""


def add_limits(app: FastAPI, control: ControlPlane) -> None:
    book = control.book

    @app.get("/limits", tags=["limits"])
    async def list_limits(_: Viewer) -> dict[str, Any]:
        """Every limit with its use."""
        counts = (await control.exposition()).limits
        limits = [
            _limit_json(spec, counts.get(spec.name, LimitSnapshot(spec.name)), control.digests)
            for spec in book.rules.limits
        ]
        return {"limits": limits}

    @app.put("/limits/{name}", tags=["limits"], responses=CHANGED)
    async def set_limit(name: str, amounts: Amounts, caller: Admin) -> dict[str, Any]:
        """Change some of a limit's amounts, as a new version of the rules; null removes an amount."""
        known = [limit.name for limit in book.rules.limits]
        if name not in known:
            raise unknown("limit", name, known)
        changes = {field: getattr(amounts, field) for field in amounts.model_fields_set - {"reason"}}
        if not changes:
            raise HTTPException(400, f"say what is to change: one of {', '.join(editor.LIMIT_FIELDS)}")

        def edit(texts: editor.RuleTexts) -> None:
            for field, value in sorted(changes.items()):
                editor.set_limit(texts, name, field, value)

        summary = ", ".join(f"{field} {value}" for field, value in sorted(changes.items()))
        reason = amounts.reason or f"limit '{name}': {summary}"
        version = await control.rule_manager.use(book.change(edit, caller.name, reason))
        return {"name": name, "version": version_json(version)}


def _limit_json(spec: LimitSpec, snapshot: LimitSnapshot, digests: ViewerDigests) -> dict[str, Any]:
    """A limit with the workers' counts; keys appear as digests only."""
    shown = sorted(snapshot.shown.items(), key=lambda item: -item[1].in_use)
    return {
        "name": spec.name,
        "routes": list(spec.routes),
        "per": list(spec.per),
        "max_wait": spec.max_wait,
        **{name: getattr(spec, name) for name in _AMOUNTS if getattr(spec, name) is not None},
        "admitted": snapshot.admitted,
        "refused": snapshot.refused,
        "waited": snapshot.waited,
        "in_use": snapshot.in_use,
        "accounts": snapshot.accounts,
        "shared": not snapshot.is_local,
        "shown": [{"who": digests.in_text(who), **asdict(account)} for who, account in shown[:MAX_SHOWN]],
    }

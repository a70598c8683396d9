"""Limits by the admin API."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Protocol

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.auth import Admin, Viewer
from gateway.admin.endpoints import CHANGED, EditState, Reason
from gateway.admin.rule_versions import version_told
from gateway.config.specs import LimitSpec, RulesSpec
from gateway.observability.exposition import ExpositionState
from gateway.observability.limit_stats import LimitSnapshot
from gateway.rule_versions import editor

_AMOUNTS = ("requests_per_second", "burst", "tokens_per_minute", "concurrency")


Count = Annotated[int, Field(ge=1, le=10**15)]


class Amounts(BaseModel):
    """What is to be allowed; what is not named stays as it is."""

    model_config = ConfigDict(extra="forbid")

    requests_per_second: Annotated[float, Field(gt=0, le=1e12)] | None = None
    burst: Count | None = None
    tokens_per_minute: Count | None = None
    concurrency: Count | None = None
    max_wait: Annotated[float, Field(ge=0, le=86_400, description="Seconds.")] | None = None
    reason: Reason = ""


class LimitState(EditState, Protocol):
    """Whoever knows how limits stand, and can edit them."""

    async def exposition(self) -> ExpositionState: ...


def add_limits(app: FastAPI, state: LimitState) -> None:
    """Answer for `/limits`."""

    @app.get("/limits", tags=["limits"])
    async def limits(_: Viewer) -> dict[str, Any]:
        """Every limit, and whom it holds back."""
        return {"limits": limits_told(state.rules, await state.exposition())}

    @app.put("/limits/{name}", tags=["limits"], responses=CHANGED)
    async def changed(name: str, amounts: Amounts, caller: Admin) -> dict[str, Any]:
        """Set some of a limit's amounts, which is a version of the rules; null takes one out."""
        if not any(limit.name == name for limit in state.rules.limits):
            known = ", ".join(limit.name for limit in state.rules.limits) or "none"
            raise HTTPException(404, f"there is no limit '{name}'; there are {known}")
        wanted = {field: getattr(amounts, field) for field in amounts.model_fields_set - {"reason"}}
        if not wanted:
            raise HTTPException(400, f"say what is to change: one of {', '.join(editor.LIMIT_FIELDS)}")

        def edit(texts: editor.RuleTexts) -> None:
            for field, value in sorted(wanted.items()):
                editor.set_limit(texts, name, field, value)

        told = ", ".join(f"{field} {value}" for field, value in sorted(wanted.items()))
        made = await state.change(edit, caller.name, amounts.reason or f"limit '{name}': {told}")
        return {"name": name, "version": version_told(made)}


def limits_told(rules: RulesSpec, state: ExpositionState) -> list[dict[str, Any]]:
    """Every limit of the rules with what the workers know of it; keys are told by their digests alone."""
    return [_told(spec, state.limits.get(spec.name, LimitSnapshot(spec.name))) for spec in rules.limits]


def _told(spec: LimitSpec, found: LimitSnapshot) -> dict[str, Any]:
    return {
        "name": spec.name,
        "routes": list(spec.routes),
        "per": list(spec.per),
        "max_wait": spec.max_wait,
        **{name: getattr(spec, name) for name in _AMOUNTS if getattr(spec, name) is not None},
        "admitted": found.admitted,
        "refused": found.refused,
        "waited": found.waited,
        "in_use": found.in_use,
        "accounts": found.accounts,
        "shared": found.is_shared,
        "shown": [asdict(account) for account in found.shown],
    }

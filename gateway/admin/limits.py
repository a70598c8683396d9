"""Limits by the admin API."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Protocol

from fastapi import FastAPI

from gateway.admin.auth import Viewer
from gateway.config.specs import LimitSpec, RulesSpec
from gateway.observability.exposition import ExpositionState
from gateway.observability.limit_counts import LimitSnapshot

_AMOUNTS = ("requests_per_second", "burst", "tokens_per_minute", "concurrency")


class LimitState(Protocol):
    """Whoever knows how limits stand."""

    @property
    def rules(self) -> RulesSpec: ...

    async def exposition(self) -> ExpositionState: ...


def add_limits(app: FastAPI, state: LimitState) -> None:
    """Answer for `/limits`."""

    @app.get("/limits", tags=["limits"])
    async def limits(_: Viewer) -> dict[str, Any]:
        """Every limit, and whom it holds back."""
        return {"limits": limits_told(state.rules, await state.exposition())}


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

"""Budgets by the admin API."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.auth import Operator, Viewer
from gateway.admin.engines import Reason
from gateway.admin.errors import unknown
from gateway.config.limit_specs import AMOUNT_NAMES, BudgetSpec
from gateway.limits.budget_window import BILLION, AccountName, Spending, moment_text
from gateway.supervision.budgets import BudgetStatement, shown
from gateway.supervision.control_plane import ControlPlane

Json = dict[str, Any]

_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"description": "no such budget, or account"}}


class BudgetReset(BaseModel):
    """The account that starts over, by the values that the list shows, in the order of `per`."""

    model_config = ConfigDict(extra="forbid")

    account: Annotated[list[str], Field(max_length=16)] = []
    reason: Reason = ""


def add_budgets(app: FastAPI, control: ControlPlane) -> None:
    @app.get("/budgets", tags=["limits"])
    async def list_budgets(
        _: Viewer,
        name: Annotated[str | None, Query(description="Only this budget.")] = None,
        account: Annotated[str | None, Query(description="Only accounts with this value, such as a tenant.")] = None,
        limit: Annotated[int, Query(ge=1, le=10_000, description="Accounts of each budget: the fullest.")] = 100,
    ) -> Json:
        """Every budget with what its accounts have spent in the current window, what remains, and when it resets."""
        await control.count()
        refused = control.workers.counters.total().budgets_refused
        specs = [spec for spec in control.budgets.specs if name is None or spec.name == name]
        return {"budgets": [_budget_json(control, spec, refused.get(spec.name, 0), account, limit) for spec in specs]}

    @app.post("/budgets/{name}/reset", tags=["limits"], responses=_NOT_FOUND)
    async def reset_budget(name: str, reset: BudgetReset, _: Operator) -> Json:
        """Have one account start over before its window ends, in all gateways of one Redis."""
        await control.count()  # with what workers have not reported
        specs = {spec.name: spec for spec in control.budgets.specs}
        if name not in specs:
            raise unknown("budget", name, list(specs))
        account = tuple(reset.account)
        spent = control.budgets.reset(specs[name], account)
        if spent is None:
            raise HTTPException(404, f"budget '{name}' has no account {shown(account)!r} in this window")
        await control.count()  # the workers answer after they have it
        return {"name": name, "account": list(account), "spent": _amounts(spent)}


def _budget_json(control: ControlPlane, spec: BudgetSpec, refused: int, value: str | None, limit: int) -> Json:
    statements = [each for each in control.budgets.accounts(spec) if value is None or value in each.name]
    start, end = control.budgets.ledger.bounds(spec.id)
    return {
        "name": spec.name,
        "routes": list(spec.routes),
        "per": list(spec.per),
        "window": spec.window.value,
        **_bounded(spec),
        "start": moment_text(start),
        "reset": moment_text(end),
        "refused": refused,
        "accounts": len(statements),
        "shown": [_statement_json(spec, each) for each in statements[:limit]],
    }


def _statement_json(spec: BudgetSpec, statement: BudgetStatement) -> Json:
    allowed, spent = _bounded(statement.amounts), _amounts(statement.spent)
    return {
        "account": list(statement.name),
        "who": _who(spec, statement.name),
        "spent": spent,
        "allowed": allowed,
        "remaining": {unit: max(0, amount - spent[unit]) for unit, amount in allowed.items()},
        "used": round(statement.used, 6),
    }


def _who(spec: BudgetSpec, name: AccountName) -> str:
    if not spec.per:
        return shown(name)
    return ", ".join(f"{part} {value or '(none)'}" for part, value in zip(spec.per, name, strict=False))


def _bounded(amounts: Any) -> Json:
    """The amounts that the rules bound."""
    return {unit: value for unit in AMOUNT_NAMES if (value := getattr(amounts, unit)) is not None}


def _amounts(spent: Spending) -> Json:
    return {"requests": spent.requests, "tokens": spent.tokens, "spend": spent.spend / BILLION}

"""From which level on the gateway logs, by the admin API."""

from __future__ import annotations

from typing import Literal, Protocol

from fastapi import FastAPI
from pydantic import BaseModel

from gateway.admin.auth import Operator, Viewer


class LogState(Protocol):
    """Whoever logs."""

    @property
    def log_level(self) -> str: ...

    def set_log_level(self, level: str) -> None: ...


class LogLevel(BaseModel):
    """A level, and why it is to be that."""

    level: Literal["debug", "info", "warning", "error"]
    reason: str = ""


def add_log_level(app: FastAPI, state: LogState) -> None:
    """Answer for `/log-level`."""

    @app.get("/log-level", tags=["gateway"])
    async def shown(_: Viewer) -> dict[str, str]:
        """The level from which on the control process and its workers log."""
        return {"level": state.log_level}

    @app.put("/log-level", tags=["gateway"])
    async def changed(_: Operator, wish: LogLevel) -> dict[str, str]:
        """Log from another level on, until the gateway is started anew."""
        state.set_log_level(wish.level)
        return {"level": wish.level}

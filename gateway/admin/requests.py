"""Requests under way, by the admin API: listed, and ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Protocol

from fastapi import FastAPI, HTTPException, Path, Query

from gateway.admin.auth import Operator, Viewer
from gateway.observability.active_request import LiveRequest

Json = dict[str, Any]


class RequestsState(Protocol):
    """Whoever knows what is under way."""

    async def requests(self, limit: int) -> Sequence[LiveRequest]:
        """The oldest ones first, so many at most."""
        ...

    async def cancel_request(self, id: str) -> int:
        """End all requests of this id; returns how many there were."""
        ...


def add_requests(app: FastAPI, state: RequestsState) -> None:
    """Answer for `/requests`."""

    @app.get("/requests", tags=["requests"])
    async def listed(
        _: Viewer, limit: Annotated[int, Query(ge=1, le=10_000, description="So many of the oldest.")] = 100
    ) -> Json:
        """The requests under way in all workers, the oldest first: where each is, and what it waits for."""
        return {"requests": [asdict(request) for request in await state.requests(limit)]}

    @app.delete("/requests/{id:session}", tags=["requests"], responses={404: {"description": "no such request"}})
    async def cancelled(_: Operator, id: Annotated[str, Path(description="As the list tells it.")]) -> Json:
        """End a request: its engine is told at once, and its client reads that it was cancelled (499, CANCELLED)."""
        count = await state.cancel_request(id)
        if not count:
            raise HTTPException(404, f"there is no request {id!r} under way")
        return {"id": id, "cancelled": count}

"""Bodies of the admin API: read so that all they hold can be written again, as text or as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute

# The longest bodies are rule files, a few seconds of a slow line.
_SECONDS = 30.0


class _Request(Request):
    async def body(self) -> bytes:
        """Raises: HTTPException where it does not come."""
        try:
            async with asyncio.timeout(_SECONDS):
                return await super().body()
        except TimeoutError as error:
            raise HTTPException(408, f"the body has not come within {_SECONDS:g} s") from error

    async def json(self) -> Any:
        """Strictly: no halves of characters, which cannot be sent back, and no NaN. Raises: json.JSONDecodeError."""
        return orjson.loads(await self.body())


class JsonRoute(APIRoute):
    """An endpoint whose body is read so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return handled

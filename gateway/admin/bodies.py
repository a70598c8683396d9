"""Bodies of the admin API: read so that all they hold can be written again, as text or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute


class _Request(Request):
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

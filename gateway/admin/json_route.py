"""The endpoints of the admin API: names in their paths, and bodies, by who may send how much in how much time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import orjson
from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from starlette.convertors import StringConvertor, register_url_convertor

from gateway.admin.api_keys import Caller, Role
from gateway.admin.auth import admin, operator, viewer
from gateway.admin.playground import MAX_BODY_BYTES as MAX_PLAYGROUND_BYTES
from gateway.protocol.errors import GatewayError
from gateway.protocol.json_bounds import JsonBounds

# The longest bodies are rule files: a few seconds on a slow line.
_BODY_SECONDS = 30.0


class _SessionConvertor(StringConvertor):
    """A session's name in a path, which may contain slashes and line ends."""

    regex = r"[\s\S]*"


register_url_convertor("session", _SessionConvertor())


class _Bounds(NamedTuple):
    """The most that a body has."""

    bytes: int
    values: int


_ANONYMOUS = _Bounds(4096, 4096)  # a token
_OTHER = _Bounds(1024 * 1024, 1_000_000)
_FILES = _Bounds(32 * 1024 * 1024, 4_000_000)
# By the beginning of a path: rule files, the files of a model, and requests with their path and header fields.
_LONGER = (
    ("/rules/", Role.admin, _FILES),
    ("/models/", Role.admin, _FILES),
    ("/playground", Role.operator, _Bounds(MAX_PLAYGROUND_BYTES + 64 * 1024, 1_000_000)),
)
_ROLE_CHECKS = frozenset({viewer, operator, admin})


def _bounds_of(caller: Caller | None, path: str) -> _Bounds:
    if caller is None:
        return _ANONYMOUS
    fitting = (bounds for start, role, bounds in _LONGER if path.startswith(start) and caller.role >= role)
    return next(fitting, _OTHER)


class _Request(Request):
    async def body(self) -> bytes:
        """Raises: HTTPException where it is too long, or does not arrive in time."""
        if not hasattr(self, "_body"):
            try:
                async with asyncio.timeout(_BODY_SECONDS):
                    self._body = await self._read()
            except TimeoutError as error:
                raise HTTPException(408, f"the body has not come within {_BODY_SECONDS:g} s") from error
        return self._body

    async def json(self) -> Any:
        """Strict JSON, without lone surrogates and NaN, so that it can be written again; its values are counted before
        they are made. Raises: json.JSONDecodeError; HTTPException where there are too many."""
        body, most = await self.body(), self._bounds.values
        try:
            JsonBounds(values=most).check_values(body)
        except GatewayError as error:
            raise HTTPException(413, f"the body's JSON has more than {most} values and keys") from error
        return orjson.loads(body)

    @property
    def _bounds(self) -> _Bounds:
        return _bounds_of(getattr(self.state, "caller", None), self.scope["path"])

    async def _read(self) -> bytes:
        """Raises: HTTPException where it is too long, before any of it is read if it says so."""
        most, size, pieces = self._bounds.bytes, 0, []
        too_long = HTTPException(413, f"the body is longer than {most} bytes, the most that this key sends here")
        if int(self.headers.get("content-length", "0")) > most:
            raise too_long
        async for piece in self.stream():
            size += len(piece)
            if size > most:
                raise too_long
            pieces.append(piece)
        return b"".join(pieces)


class JsonRoute(APIRoute):
    """An endpoint that looks at the caller's role before it reads the body, in time and strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        calls = (dependency.call for dependency in self.dependant.dependencies)
        checks = [call for call in calls if call in _ROLE_CHECKS]

        async def handled(request: Request) -> Response:
            for check in checks:
                check(request)
            return await handle(_Request(request.scope, request.receive))

        return handled

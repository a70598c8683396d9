"""The list of an application's replicas, which gateways follow. It calls Ray by the handle that it gets."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engines.ray_app.replica_leases import Entry, ReplicaLeases

_log = logging.getLogger("ray.serve")

# The name of its deployment.
ENDPOINTS = "endpoints"


class EndpointList:
    """`GET /endpoints` answers the list of replicas that are ready; `POST /wake` starts a first one."""

    def __init__(self, engine: Any, lease_seconds: float, token_env: str) -> None:
        """Raises: ValueError where the token is not there."""
        self._engine = engine
        self._token = os.environ.get(token_env, "") if token_env else ""
        if token_env and not self._token:
            raise ValueError(
                f"the environment variable {token_env} (`token_env`) is not set in the replica of the list"
            )
        self._leases = ReplicaLeases(lease_seconds, time.monotonic())
        self._waking: asyncio.Task[Any] | None = None

    async def renew(self, replica: str, entry: Entry) -> None:
        self._leases.renew(replica, entry, time.monotonic())

    async def end(self, replica: str) -> None:
        self._leases.end(replica, time.monotonic())

    async def __call__(self, request: Request) -> Response:
        """Serve's proxies hand requests of clients over."""
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        if (request.method, path) not in (("GET", "/endpoints"), ("POST", "/wake")):
            return JSONResponse({"error": "there are GET /endpoints and POST /wake"}, 404)
        credential = request.headers.get("authorization", "")
        if self._token and not hmac.compare_digest(credential.encode(), f"Bearer {self._token}".encode()):
            return JSONResponse({"error": "the bearer token is missing or wrong"}, 401)
        return self._list() if path == "/endpoints" else self._wake()

    def _list(self) -> Response:
        now = time.monotonic()
        if not self._leases.is_settled(now):
            # An answer would end what replicas that have not renewed their leases yet do
            return JSONResponse({"error": "the list has just started; replicas are still joining"}, 503)
        return JSONResponse(self._leases.entries(now))

    def _wake(self) -> Response:
        """A request that waits for a replica has Serve start one."""
        if self._waking is None or self._waking.done():
            self._waking = asyncio.get_running_loop().create_task(_wait_for(self._engine.entry.remote()))
        return JSONResponse({}, 202)


async def _wait_for(response: Any) -> None:
    try:
        await response
    except Exception as error:  # of any kind, as Ray's are
        _log.warning("no replica could be started: %s", str(error) or type(error).__name__)

"""A replica of an engine: a server on ports of its own, to which gateways talk without Serve's proxies between, at full
speed, with gRPC, streams and all of V2. It renews its lease in the list of endpoints while its server is ready."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

import ray
from ray import serve

from engines.ray_app.endpoint_list import ENDPOINTS
from engines.ray_app.policy import IN_FLIGHT
from engines.ray_app.replica_leases import Entry
from engines.ray_app.server_process import ServerError, ServerProcess

_log = logging.getLogger("ray.serve")

# A lease is renewed so many times while it lasts.
_RENEWALS = 5
_ZONE_LABEL = "ray.io/availability-zone"


class EngineReplica:
    """One server on its node."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, command: Sequence[str], listen_on: str, lease_seconds: float, stop_seconds: float
    ) -> None:
        """Returns once the server serves. Raises: ServerError."""
        context = serve.get_replica_context()
        self._id: str = context.replica_id.unique_id
        self._endpoints = serve.get_deployment_handle(ENDPOINTS, app_name=context.app_name)
        self._pause = lease_seconds / _RENEWALS
        self._stop_seconds = stop_seconds
        address = ray.util.get_node_ip_address()
        self._server = ServerProcess([*command, f"--host={listen_on or address}"], address)
        await self._server.start()
        self._renewing = asyncio.get_running_loop().create_task(self._renew_always())
        # Serve calls it of the instance; a method of the class would be called by Python as well
        self.__del__ = self._stop

    async def check_health(self) -> None:
        """Serve replaces the replica after some failures. Raises: ServerError."""
        await self._server.check()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What the autoscaler goes by."""
        try:
            count = await self._server.num_in_flight()
        except ServerError:
            return {}
        return {} if count is None else {IN_FLIGHT: count}

    async def entry(self) -> Entry:
        """Its entry in the list."""
        labels = ray.get_runtime_context().get_node_labels()
        found = {"url": self._server.url, "grpc": self._server.grpc, "zone": labels.get(_ZONE_LABEL, "")}
        return {name: text for name, text in found.items() if text}

    async def _renew_always(self) -> None:
        entry = await self.entry()
        while True:
            try:
                if await self._server.is_ready():
                    async with asyncio.timeout(self._pause * _RENEWALS):
                        await self._endpoints.renew.remote(self._id, entry)
            except Exception as error:  # of any kind, as Ray's are; the list may start again
                _log.warning("the list of endpoints cannot be reached: %s", str(error) or type(error).__name__)
            await asyncio.sleep(self._pause)

    async def _stop(self) -> None:
        """Leave the list, then drain: gateways learn of it before the server takes no more requests."""
        self._renewing.cancel()
        with suppress(Exception):
            async with asyncio.timeout(self._pause * _RENEWALS):
                await self._endpoints.end.remote(self._id)
        await self._server.stop(self._stop_seconds)

"""Starts engines that requests wait for, by the HTTP request that the rules name (`activator:`).

Once for all workers: again only after `interval` while requests still wait, or with growing pauses where it fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic
from urllib.parse import urlsplit

from gateway.config.engine_specs import ActivatorSpec, EndpointSpec, EngineSpec
from gateway.net.backoff import Backoff
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.endpoint_client import fetch
from gateway.upstream.tls import endpoint_tls

_log = logging.getLogger("pointsman")

_FIRST_PAUSE_SECONDS = 1.0
_MAX_REPLY_BYTES = 1024 * 1024

Send = Callable[[ActivatorSpec], Awaitable[int]]


@dataclass(slots=True)
class _Activator:
    """One engine's; `next_at` is when it may be called again."""

    spec: ActivatorSpec
    backoff: Backoff = field(init=False)
    next_at: float = 0.0
    task: asyncio.Task[None] | None = None
    has_failed: bool = False

    def __post_init__(self) -> None:
        self.backoff = Backoff(_FIRST_PAUSE_SECONDS, self.spec.interval)

    def stays_for(self, spec: ActivatorSpec) -> bool:
        return spec == self.spec or (
            not self.has_failed and replace(spec, headers={}) == replace(self.spec, headers={})
        )


class Activations:
    """The activators of all engines; `send` makes one request, and returns the status of the reply."""

    def __init__(self, send: Send | None = None, clock: Callable[[], float] = monotonic) -> None:
        self._send: Send = send_request if send is None else send
        self._clock = clock
        self._activators: dict[str, _Activator] = {}

    def use(self, engines: Mapping[str, EngineSpec]) -> None:
        """Use the activators of these engines; the pauses of unchanged ones stay, and of those with other credentials,
        unless they have failed."""
        before, self._activators = self._activators, {}
        for name, engine in engines.items():
            if engine.activator is not None:
                known = before.get(name)
                if known is None or not known.stays_for(engine.activator):
                    known = _Activator(engine.activator)
                known.spec = engine.activator
                self._activators[name] = known

    def wanted(self, engine: str) -> None:
        """Requests wait for an engine that is down."""
        activator = self._activators.get(engine)
        if activator is None or activator.task is not None or self._clock() < activator.next_at:
            return
        activator.task = asyncio.get_running_loop().create_task(self._activate(engine, activator))

    async def close(self) -> None:
        tasks = [activator.task for activator in self._activators.values() if activator.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _activate(self, engine: str, activator: _Activator) -> None:
        try:
            status = await self._send(activator.spec)
            if not 200 <= status < 300:
                raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"it answered with status {status}")
        except (GatewayError, OSError) as error:
            pause, activator.has_failed = activator.backoff.failed(), True
            _log.warning("the activator of engine '%s' failed: %s; again in %g s at the earliest", engine, error, pause)
        else:
            activator.backoff.reset()
            pause, activator.has_failed = activator.spec.interval, False
            _log.info("requests wait for engine '%s', and its activator has answered with status %d", engine, status)
        activator.next_at = self._clock() + pause
        activator.task = None


async def send_request(spec: ActivatorSpec) -> int:
    """Send the request; returns the status of the reply, which is read and dropped. Redirects are not followed.

    Raises: GatewayError; OSError where a TLS file cannot be read.
    """
    parts = urlsplit(spec.url)
    origin = f"{parts.scheme}://{parts.netloc}"
    declared = EndpointSpec(origin)
    engine = EngineSpec("activator", (declared,), tls=spec.tls)
    endpoint = Endpoint(engine, declared, endpoint_tls(spec.tls, origin))
    fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in spec.headers.items()]
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        reply = await fetch(
            endpoint,
            spec.method,
            target.encode("ascii"),
            spec.body.encode(),
            fields=fields,
            timeout=spec.timeout,
            max_bytes=_MAX_REPLY_BYTES,
        )
    finally:
        endpoint.retire()
    return reply.status

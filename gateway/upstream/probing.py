"""One probe of an endpoint: is it there, and does it say that it is ready?"""

from __future__ import annotations

import logging
from string import punctuation
from typing import Protocol
from urllib.parse import quote

from gateway.config.specs import EndpointSpec, EngineSpec
from gateway.protocol.condition import Condition
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_methods import RPCS
from gateway.protocol.message_head import fields
from gateway.upstream.ask import ask
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.engine import extra_fields
from gateway.upstream.fetch import Fetched, fetch
from gateway.upstream.tls import endpoint_tls

_log = logging.getLogger(__name__)


class Asker(Protocol):
    """Asks one endpoint, again and again, over a connection that it keeps."""

    async def ask(self) -> Condition: ...

    async def close(self) -> None: ...


def asker_for(engine: EngineSpec, url: str) -> Asker:
    """By REST, or by ServerReady where the URL is a gRPC server's.

    Raises: OSError or ssl.SSLError where a certificate file cannot be read.
    """
    return _GrpcAsker(engine, url) if url.startswith("grpc") else _RestAsker(engine, url)


class _RestAsker:
    def __init__(self, engine: EngineSpec, url: str) -> None:
        self._endpoint = Endpoint(engine, EndpointSpec(url), endpoint_tls(engine.tls, url))
        self._timeout = engine.health.timeout
        self._path = quote(engine.health.path, safe=punctuation).encode("ascii")
        self._lines = b"".join(b"%b: %b\r\n" % field for field in extra_fields(engine))

    async def ask(self) -> Condition:
        try:
            answered = await self._fetch()
        except GatewayError as error:
            _log.debug("a probe of %s failed: %s", self._endpoint.url, error.message)
            return Condition.DOWN
        return Condition.READY if answered.is_good else Condition.UNREADY

    async def _fetch(self) -> Fetched:
        """Once more where the connection of the last probe turns out to be gone: that says nothing of the engine."""
        try:
            return await self._fetch_once()
        except GatewayError as error:
            if error.kind is not ErrorKind.UPSTREAM_RESET:
                raise
            return await self._fetch_once()

    async def _fetch_once(self) -> Fetched:
        return await fetch(self._endpoint, "GET", self._path, b"", lines=self._lines, timeout=self._timeout)

    async def close(self) -> None:
        self._endpoint.retire()


class _GrpcAsker:
    def __init__(self, engine: EngineSpec, url: str) -> None:
        spec = EndpointSpec(url, url.partition("://")[2])
        self._endpoint = Endpoint(engine, spec, endpoint_tls(engine.tls, url))
        self._timeout = engine.health.timeout
        self._fields = extra_fields(engine)

    async def ask(self) -> Condition:
        endpoint = self._endpoint
        assert endpoint.streams is not None
        try:
            answered = await ask(
                endpoint.streams,
                RPCS["ServerReady"].path,
                b"",
                authority=endpoint.authority,
                scheme=endpoint.scheme,
                fields=self._fields,
                timeout=self._timeout,
            )
            is_ready = answered.is_good and any(number == 1 and value for number, _, value in fields(answered.message))
        except GatewayError as error:
            _log.debug("a probe of %s failed: %s", endpoint.url, error.message)
            return Condition.DOWN
        return Condition.READY if is_ready else Condition.UNREADY

    async def close(self) -> None:
        self._endpoint.retire()

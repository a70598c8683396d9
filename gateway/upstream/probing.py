"""One probe of an endpoint: is it there, and does it say that it is ready?"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Protocol

import httpx

from gateway.config.specs import EndpointSpec, EngineSpec
from gateway.protocol.condition import Condition
from gateway.protocol.errors import GatewayError
from gateway.protocol.grpc_methods import RPCS
from gateway.protocol.message_head import fields
from gateway.upstream.ask import ask
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.engine import extra_fields
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
        self._spec = engine.health
        self._server_name = engine.tls.server_name
        verify: ssl.SSLContext | bool = endpoint_tls(engine.tls, url) or False
        self._client = httpx.AsyncClient(
            base_url=url, headers=extra_fields(engine), timeout=engine.health.timeout, verify=verify, trust_env=False
        )

    async def ask(self) -> Condition:
        # The name that the certificate is checked for
        extensions = {"sni_hostname": self._server_name} if self._server_name else {}
        try:
            async with asyncio.timeout(self._spec.timeout):  # httpx's own timeout is for each step
                response = await self._client.get(self._spec.path, extensions=extensions)
        except Exception as error:  # whatever a probe meets, no answer has come
            # Its kind alone: the text of some errors quotes the header that they refuse, and one of these is a secret.
            _log.debug("a probe of %s failed: %s", self._client.base_url, type(error).__name__)
            return Condition.DOWN
        return Condition.READY if response.is_success else Condition.UNREADY

    async def close(self) -> None:
        await self._client.aclose()


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

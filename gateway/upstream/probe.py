"""Probes of one endpoint: its readiness, its models and its load."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from hashlib import blake2b
from string import punctuation
from urllib.parse import quote, urlsplit

from gateway.config.engine_specs import EndpointSpec, EngineSpec
from gateway.protocol.advertised_models import AdvertisedModels, read_index, read_model_list
from gateway.protocol.engine_load import Load, Readiness, read_metrics
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.endpoint_client import HttpReply, call_unary, fetch
from gateway.upstream.engine import extra_fields
from gateway.upstream.tls import endpoint_tls

_log = logging.getLogger(__name__)

# A server that answers so does not have this path: the next one is tried.
_NO_SUCH_PATH = frozenset({404, 405})


# Of any reply to a probe: the control process reads it whole.
_MAX_BYTES = 8 * 1024 * 1024
_READ_AT_ONCE_BYTES = 64 * 1024
# Where V2 lists a server's models.
_INDEX_PATH = b"/v2/repository/index"


class EndpointProbe:
    """Probes one endpoint over connections that it reuses: by REST, or by an RPC where the URL is a gRPC server's.

    `failure` is why the last `check` returned DOWN.
    """

    def __init__(self, engine: EngineSpec, url: str, host: str | None = None) -> None:
        """`host` is the endpoint's name, where the URL has its address.

        Raises: OSError or ssl.SSLError where a certificate file cannot be read."""
        health, traits = engine.health, engine.protocol.traits
        self._timeout = health.timeout
        self._fields = extra_fields(engine)
        self.failure = ""
        self._is_list_unknown = False  # and the log says why
        self._digest = b""  # of the last list
        self._listed: AdvertisedModels | None = None
        self._rpc = None
        if url.startswith("grpc"):
            self._rpc = traits.grpc_check
            assert self._rpc is not None, f"the rules give no gRPC endpoints to engines of {engine.protocol.value}"
        grpc = None if self._rpc is None else url.partition("://")[2]
        self._endpoint = _endpoint(engine, EndpointSpec(url, grpc, host=host))
        # By REST
        self._paths = [path.format(base=engine.base_path) for path in traits.ready_paths]
        self._ready_below = traits.ready_below
        if health.path is not None:
            self._paths, self._ready_below = [health.path], 300
        # The models and the metrics: at the endpoint itself, or at another port of its host
        self._lists: Endpoint | None = self._endpoint if self._rpc is None else None
        self._models_path = None if traits.models_path is None else traits.models_path.format(base=engine.base_path)
        self._reads_index = engine.protocol.is_v2 and engine.models.path is None
        if engine.models.path is not None:
            spec = EndpointSpec(url, host=host)
            self._lists, self._models_path = metrics_endpoint(engine, spec, engine.models.path, self._endpoint)
        if engine.models.source == "none":
            self._models_path, self._reads_index = None, False
        self._metrics, self._metrics_path = None, engine.load.path
        if engine.load.source == "metrics":
            self._metrics, self._metrics_path = metrics_endpoint(
                engine, EndpointSpec(url, host=host), engine.load.path, self._endpoint
            )

    async def check(self) -> Readiness:
        self.failure = ""
        try:
            if self._rpc is None:
                return await self._check_paths()
            timeout = self._timeout
            reply = await call_unary(self._endpoint, self._rpc.path, b"", fields=self._fields, timeout=timeout)
            return Readiness.READY if self._rpc.is_ready(reply.status, reply.message) else Readiness.UNREADY
        except GatewayError as error:
            self.failure = error.message
            _log.debug("a probe of %s failed: %s", self._endpoint.url, error.message)
            return Readiness.DOWN

    async def models(self) -> AdvertisedModels | None:
        """The models that it lists; None where it lists none, its list is too long, or the rules do not read it.

        Raises: GatewayError where it does not answer.
        """
        try:
            if self._reads_index:
                reply = await self._fetch(self._endpoint, "POST", _INDEX_PATH, b"{}")
                return await self._read(read_index, reply)
            if self._models_path is None or self._lists is None:
                return None
            reply = await self._get(self._lists, self._models_path)
            return await self._read(read_model_list, reply)
        except GatewayError as error:
            if error.kind is not ErrorKind.UPSTREAM_PROTOCOL:
                raise
            if not self._is_list_unknown:
                self._is_list_unknown = True
                _log.warning("the models of %s are not known: %s", self._endpoint.url, error.message)
            return None

    async def _read(
        self, read: Callable[[bytes], AdvertisedModels | None], reply: HttpReply
    ) -> AdvertisedModels | None:
        """The models of a list. One that has not changed is not read again, and a long one in a thread: the control
        process answers meanwhile."""
        body = reply.body
        if not reply.is_good:
            return None
        digest = blake2b(body, digest_size=16).digest()
        if digest != self._digest:
            long = len(body) > _READ_AT_ONCE_BYTES
            self._listed = await asyncio.to_thread(read, body) if long else read(body)
            self._digest = digest
        return self._listed

    async def load(self) -> Load | None:
        """Its load; None where it does not report it, or the rules do not query it."""
        body = await self._page(self._metrics, self._metrics_path) if self._metrics is not None else None
        return read_metrics(body) if body is not None else None

    @property
    def num_connections(self) -> int:
        """Open ones to the endpoint itself."""
        return self._endpoint.num_connections

    def disconnect(self) -> None:
        """Close the connections; the next probe opens others."""
        for endpoint in self._endpoints():
            endpoint.close_idle_connections()

    async def close(self) -> None:
        for endpoint in self._endpoints():
            endpoint.retire()

    def _endpoints(self) -> set[Endpoint]:
        return {self._endpoint, *filter(None, (self._lists, self._metrics))}

    async def _check_paths(self) -> Readiness:
        """Query the path that was there last, and where it is not, the others.

        Raises: GatewayError.
        """
        for path in tuple(self._paths):
            reply = await self._get(self._endpoint, path)
            if reply.status not in _NO_SUCH_PATH:
                self._paths.remove(path)
                self._paths.insert(0, path)
                break
        return Readiness.READY if 200 <= reply.status < self._ready_below else Readiness.UNREADY

    async def _page(self, endpoint: Endpoint, path: str) -> bytes | None:
        """The content of a page; None where there is none."""
        try:
            reply = await self._get(endpoint, path)
        except GatewayError as error:
            _log.debug("a probe of %s failed: %s", endpoint.url, error.message)
            return None
        return reply.body if reply.is_good else None

    async def _get(self, endpoint: Endpoint, path: str) -> HttpReply:
        """Try again where the reused connection was closed: that is no failure of the engine."""
        target = quote(path, safe=punctuation).encode("ascii")
        try:
            return await self._fetch(endpoint, "GET", target, b"")
        except GatewayError as error:
            if error.kind is not ErrorKind.UPSTREAM_RESET:
                raise
            return await self._fetch(endpoint, "GET", target, b"")

    async def _fetch(self, endpoint: Endpoint, method: str, target: bytes, body: bytes) -> HttpReply:
        fields, timeout = self._fields, self._timeout
        return await fetch(endpoint, method, target, body, fields=fields, timeout=timeout, max_bytes=_MAX_BYTES)


def _endpoint(engine: EngineSpec, spec: EndpointSpec) -> Endpoint:
    return Endpoint(engine, spec, endpoint_tls(engine.tls, spec.url))


def metrics_endpoint(
    engine: EngineSpec, spec: EndpointSpec, path: str, same: Endpoint | None = None
) -> tuple[Endpoint | None, str]:
    """Where an endpoint's metrics are, and the path there; None where it has no REST and the path no port. `same` is
    that of the endpoint itself. Raises: OSError or ssl.SSLError where a certificate file cannot be read."""
    if path.startswith(":"):
        port, slash, rest = path[1:].partition("/")
        return _endpoint(engine, EndpointSpec(_with_port(spec.url, port), host=spec.host)), slash + rest
    return (same or _endpoint(engine, spec)) if spec.speaks_rest else None, path


def _with_port(url: str, port: str) -> str:
    """Another port of the same host, by HTTP, encrypted where the endpoint is."""
    scheme = url.partition("://")[0]
    host = urlsplit(url).hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if scheme in ('https', 'grpcs') else 'http'}://{host}:{port}"

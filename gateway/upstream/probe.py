"""Probes of one endpoint: its readiness, its models and its load."""

from __future__ import annotations

import logging
from string import punctuation
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import orjson

from gateway.config.specs import EndpointSpec, EngineSpec
from gateway.protocol.engine_load import Load, Readiness, read_metrics
from gateway.protocol.engine_protocols import GrpcCheck
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.upstream.endpoint import Endpoint, endpoint_tls
from gateway.upstream.endpoint_client import HttpReply, call_unary, fetch
from gateway.upstream.engine import extra_fields

_log = logging.getLogger(__name__)

# A server that answers so does not have this path: the next one is tried.
_NO_SUCH_PATH = frozenset({404, 405})


# Where the list stands and what has a model's name in it: OpenAI's form first, then Ollama's, as /api/tags has it.
_FORMS = (("data", ("id",)), ("models", ("name", "model", "id")))


class EndpointProbe(Protocol):
    """Probes one endpoint over connections that it reuses."""

    @property
    def failure(self) -> str:
        """Why the last `check` returned DOWN; "" where it did not."""
        ...

    async def check(self) -> Readiness: ...

    async def models(self) -> frozenset[str] | None:
        """The models that it lists; None where it lists none."""
        ...

    async def load(self) -> Load | None:
        """Its load; None where it does not report it, or the rules do not query it."""
        ...

    async def close(self) -> None: ...


def probe_for(engine: EngineSpec, url: str) -> EndpointProbe:
    """By REST, or by an RPC where the URL is a gRPC server's.

    Raises: OSError or ssl.SSLError where a certificate file cannot be read.
    """
    return _GrpcProbe(engine, url) if url.startswith("grpc") else _RestProbe(engine, url)


class _Getter:
    """Reads pages of one server."""

    def __init__(self, engine: EngineSpec, url: str) -> None:
        self._endpoint = Endpoint(engine, EndpointSpec(url), endpoint_tls(engine.tls, url))
        self._timeout = engine.health.timeout
        self._fields = extra_fields(engine)
        self.failure = ""  # of the last `get`; "" where it was answered

    async def get(self, path: str) -> HttpReply | None:
        """The reply; None where there is none."""
        target = quote(path, safe=punctuation).encode("ascii")
        self.failure = ""
        try:
            return await self._fetch(target)
        except GatewayError as error:
            self.failure = error.message
            _log.debug("a probe of %s failed: %s", self._endpoint.url, error.message)
            return None

    async def _fetch(self, target: bytes) -> HttpReply:
        """Try again where the reused connection was closed: that is no failure of the engine."""
        try:
            return await self._fetch_once(target)
        except GatewayError as error:
            if error.kind is not ErrorKind.UPSTREAM_RESET:
                raise
            return await self._fetch_once(target)

    async def _fetch_once(self, target: bytes) -> HttpReply:
        return await fetch(self._endpoint, "GET", target, b"", fields=self._fields, timeout=self._timeout)

    def close(self) -> None:
        self._endpoint.retire()


class _Metrics:
    """The metrics of one endpoint, at the endpoint itself or at another port of its host."""

    def __init__(self, engine: EngineSpec, url: str, server: _Getter | None) -> None:
        path = engine.load.path
        self._getter = server
        self._own: _Getter | None = None
        if path.startswith(":"):
            port, slash, rest = path[1:].partition("/")
            self._own = self._getter = _Getter(engine, _with_port(url, port))
            path = slash + rest
        self._path = path
        self._is_queried = engine.load.source == "metrics"

    async def load(self) -> Load | None:
        answered = await self._getter.get(self._path) if self._is_queried and self._getter is not None else None
        return read_metrics(answered.body) if answered is not None and answered.is_good else None

    def close(self) -> None:
        if self._own is not None:
            self._own.close()


class _RestProbe:
    def __init__(self, engine: EngineSpec, url: str) -> None:
        self._server = _Getter(engine, url)
        self._metrics = _Metrics(engine, url, self._server)
        own, traits = engine.health.path, engine.protocol.traits
        self._paths = (own,) if own is not None else tuple(_at_base(engine, path) for path in traits.ready_paths)
        self._ready_below = 300 if own is not None else traits.ready_below
        self._path = self._paths[0]  # the one that was there last
        self._models_path = None if traits.models_path is None else _at_base(engine, traits.models_path)

    @property
    def failure(self) -> str:
        return self._server.failure

    async def check(self) -> Readiness:
        answered = await self._server.get(self._path)
        if answered is not None and answered.status in _NO_SUCH_PATH:
            for path in self._paths:
                if path != self._path:
                    other = await self._server.get(path)
                    if other is None or other.status not in _NO_SUCH_PATH:
                        self._path, answered = path, other
                        break
        if answered is None:
            return Readiness.DOWN
        return Readiness.READY if 200 <= answered.status < self._ready_below else Readiness.UNREADY

    async def models(self) -> frozenset[str] | None:
        answered = await self._server.get(self._models_path) if self._models_path is not None else None
        return read_models(answered.body) if answered is not None and answered.is_good else None

    async def load(self) -> Load | None:
        return await self._metrics.load()

    async def close(self) -> None:
        self._server.close()
        self._metrics.close()


class _GrpcProbe:
    def __init__(self, engine: EngineSpec, url: str) -> None:
        spec = EndpointSpec(url, url.partition("://")[2])
        self._endpoint = Endpoint(engine, spec, endpoint_tls(engine.tls, url))
        self._metrics = _Metrics(engine, url, None)
        self._check = _grpc_check(engine)
        self._timeout = engine.health.timeout
        self._fields = extra_fields(engine)
        self.failure = ""

    async def check(self) -> Readiness:
        endpoint = self._endpoint
        self.failure = ""
        assert endpoint.streams is not None
        try:
            answered = await call_unary(
                endpoint.streams,
                self._check.path,
                b"",
                authority=endpoint.authority,
                scheme=endpoint.scheme,
                fields=self._fields,
                timeout=self._timeout,
            )
            is_ready = self._check.is_ready(answered.status, answered.message)
        except GatewayError as error:
            self.failure = error.message
            _log.debug("a probe of %s failed: %s", endpoint.url, error.message)
            return Readiness.DOWN
        return Readiness.READY if is_ready else Readiness.UNREADY

    async def models(self) -> frozenset[str] | None:
        return None

    async def load(self) -> Load | None:
        return await self._metrics.load()

    async def close(self) -> None:
        self._endpoint.retire()
        self._metrics.close()


def _at_base(engine: EngineSpec, path: str) -> str:
    return path.format(base=engine.base_path)


def _grpc_check(engine: EngineSpec) -> GrpcCheck:
    check = engine.protocol.traits.grpc_check
    assert check is not None, f"the rules give no gRPC endpoints to engines that speak {engine.protocol.value}"
    return check


def _with_port(url: str, port: str) -> str:
    """Another port of the same host, by HTTP, encrypted where the endpoint is."""
    scheme = url.partition("://")[0]
    host = urlsplit(url).hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if scheme in ('https', 'grpcs') else 'http'}://{host}:{port}"


def read_models(body: bytes) -> frozenset[str] | None:
    """The names in the answer to GET /v1/models; None where it is no such list."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if isinstance(document, list):  # as Together's
        document = {"data": document}
    if not isinstance(document, dict):
        return None
    for key, names in _FORMS:
        listed = document.get(key, "")
        if listed is None:  # Ollama has no models yet
            return frozenset()
        if isinstance(listed, list):
            return frozenset(name for name in (_name(model, names) for model in listed) if name)
    return None


def _name(model: Any, keys: tuple[str, ...]) -> str | None:
    if not isinstance(model, dict):
        return None
    return next((model[key] for key in keys if isinstance(model.get(key), str)), None)

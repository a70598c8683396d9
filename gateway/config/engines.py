"""The `engines:` section: separately-run services and how to reach them."""

from __future__ import annotations

from dataclasses import replace

from gateway.config import rule_values
from gateway.config.addresses import endpoint_url, host_port
from gateway.config.specs import (
    Balance,
    BreakerSpec,
    ConnectionSpec,
    EndpointSpec,
    EngineProtocol,
    EngineSpec,
    HealthSpec,
    RetrySpec,
    TlsSpec,
)
from gateway.yaml import values
from gateway.yaml.location import Location
from gateway.yaml.nodes import Map, Node
from gateway.yaml.problems import suggest
from gateway.yaml.readers import Reading, Record, keyed, one_or_many, scalar

PLANNED_PROTOCOLS = ("openai", "tfserving", "torchserve")
PLANNED_BALANCES = ("prefix",)


def _protocol(text: str) -> EngineProtocol:
    return EngineProtocol(_available("protocol", text, [member.value for member in EngineProtocol], PLANNED_PROTOCOLS))


def _balance(text: str) -> Balance:
    return Balance(_available("balance", text, [member.value for member in Balance], PLANNED_BALANCES))


def _available(what: str, text: str, available: list[str], planned: tuple[str, ...]) -> str:
    if text in planned:
        raise ValueError(f"{what} {text!r} is not available in this version; available: {', '.join(available)}")
    if text not in available:
        raise ValueError(f"unknown {what} {text!r}{suggest(text, available)}")
    return text


def _status(text: str) -> int:
    status = values.integer(text)
    if not 400 <= status <= 599:
        raise ValueError(f"{text} is not the status of a failure: 400 to 599")
    return status


_count = values.at_least(0, values.integer)
_positive_count = values.at_least(1, values.integer)
_span = scalar(values.duration)
_positive_span = scalar(values.above_zero(values.duration))


def _statuses(node: Node, reading: Reading) -> frozenset[int] | None:
    statuses = one_or_many(scalar(_status))(node, reading)
    return None if statuses is None else frozenset(statuses)


_ENDPOINT = Record(
    "an endpoint", EndpointSpec, {"url": scalar(endpoint_url), "grpc": scalar(host_port)}, required=("url",)
)
_HEALTH = Record(
    "health",
    HealthSpec,
    {
        "path": scalar(rule_values.path),
        "interval": _span,
        "timeout": _positive_span,
        "unhealthy_after": scalar(_positive_count),
        "healthy_after": scalar(_positive_count),
    },
)
_BREAKER = Record(
    "breaker",
    BreakerSpec,
    {"failures": scalar(_count), "open_for": _positive_span, "statuses": _statuses},
)
_RETRY = Record(
    "retry",
    RetrySpec,
    {
        "attempts": scalar(_count),
        "idempotent": scalar(values.one_of(("safe", "infer"))),
        "budget": scalar(values.at_least(0.0, rule_values.share)),
        "budget_floor": scalar(_count),
    },
)
_CONNECTIONS = Record(
    "connections",
    ConnectionSpec,
    {
        "max_connections": scalar(_positive_count),
        "max_pending": scalar(_count),
        "idle_timeout": _positive_span,
        "connect_timeout": _positive_span,
        "max_streams": scalar(_positive_count),
        "window_bytes": scalar(values.at_least(65_535, values.size)),
    },
)
_TLS = Record(
    "tls",
    TlsSpec,
    {
        "verify": scalar(values.boolean),
        "ca": scalar(rule_values.text),
        "cert": scalar(rule_values.text),
        "key": scalar(rule_values.text),
        "server_name": scalar(rule_values.text),
    },
)


def _endpoint(node: Node, reading: Reading) -> EndpointSpec | None:
    """Read `{url, grpc}`, or a URL alone; a gRPC server's URL says both."""
    if isinstance(node, Map):
        endpoint = _ENDPOINT(node, reading)
    else:
        url = scalar(endpoint_url)(node, reading)
        endpoint = None if url is None else EndpointSpec(url)
    if endpoint is None or not endpoint.url.startswith("grpc"):
        return endpoint
    return replace(endpoint, grpc=endpoint.url.partition("://")[2])


_ENGINE = Record(
    "an engine",
    EngineSpec,
    {
        "endpoints": one_or_many(_endpoint),
        "protocol": scalar(_protocol),
        "balance": scalar(_balance),
        "timeout": _span,
        "try_timeout": _span,
        "idle_timeout": _span,
        "api_key": scalar(rule_values.text),
        "headers": keyed(rule_values.header_name, scalar(rule_values.text)),
        "health": _HEALTH,
        "breaker": _BREAKER,
        "retry": _RETRY,
        "connections": _CONNECTIONS,
        "tls": _TLS,
    },
    required=("endpoints",),
)


def read_engine(name: str, location: Location, node: Node, reading: Reading) -> EngineSpec | None:
    """Read one engine; `location` is where its name stands."""
    engine = _ENGINE.read(node, reading, name=name, location=location)
    if engine is not None:
        _check_endpoints(engine, location, reading)
        _check_tls(engine, location, reading)
    return engine


def _check_endpoints(engine: EngineSpec, location: Location, reading: Reading) -> None:
    for spoken, said in (("grpc", "an address for gRPC"), ("rest", "an address for REST")):
        if 0 < sum(getattr(endpoint, f"speaks_{spoken}") for endpoint in engine.endpoints) < len(engine.endpoints):
            what = f"some endpoints of engine {engine.name!r} have {said} and others have none: give it to all, or none"
            reading.error(location, what)
    seen = set()
    for endpoint in engine.endpoints:
        if endpoint.url in seen:
            reading.warn(location, f"engine {engine.name!r} lists endpoint {endpoint.url} twice: it is one endpoint")
        seen.add(endpoint.url)


def _check_tls(engine: EngineSpec, location: Location, reading: Reading) -> None:
    if engine.tls.key is not None and engine.tls.cert is None:
        reading.error(location, f"engine {engine.name!r} has a tls key without its cert")
    if engine.tls != TlsSpec() and not any(
        endpoint.url.startswith(("https:", "grpcs:")) for endpoint in engine.endpoints
    ):
        reading.warn(location, f"engine {engine.name!r} has tls settings, but no endpoint is https or grpcs")

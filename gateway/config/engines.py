"""The `engines:` section: separately-run services and how to reach them."""

from __future__ import annotations

from dataclasses import replace

from gateway.config import value_parsers
from gateway.config.engine_checks import check_engine
from gateway.config.specs import (
    AffinitySpec,
    Balance,
    BreakerSpec,
    ConnectionSpec,
    EndpointSpec,
    EngineSpec,
    HealthSpec,
    LoadSpec,
    PrefixSpec,
    RetrySpec,
    TlsSpec,
)
from gateway.config.templates import read_template
from gateway.config.value_parsers import endpoint_url, host_port
from gateway.protocol.engine_protocols import EngineProtocol
from gateway.yaml import values
from gateway.yaml.nodes import Map, Node
from gateway.yaml.problems import Location, suggest
from gateway.yaml.readers import Reading, Record, keyed, one_or_many, scalar

# The APIs that an openai engine may accept unchanged: OpenAI's and Anthropic's.
DIALECTS = ("chat", "completions", "embeddings", "responses", "messages")

# TorchServe's service envelopes, as set in a model archive or the configuration.
ENVELOPES = ("body", "json", "kserve", "kservev2")


def _protocol(text: str) -> EngineProtocol:
    return EngineProtocol(_known("protocol", text, [member.value for member in EngineProtocol]))


def _balance(text: str) -> Balance:
    return Balance(_known("balance", text, [member.value for member in Balance]))


def _known(what: str, text: str, known: list[str]) -> str:
    if text not in known:
        raise ValueError(f"unknown {what} {text!r}{suggest(text, known)}")
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


_weight = values.between(0.0, 1_000_000.0, values.number)
_ENDPOINT = Record(
    "an endpoint",
    EndpointSpec,
    {"url": scalar(endpoint_url), "grpc": scalar(host_port), "weight": scalar(_weight)},
    required=("url",),
)
_HEALTH = Record(
    "health",
    HealthSpec,
    {
        "path": scalar(value_parsers.path),
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
        "budget": scalar(values.at_least(0.0, value_parsers.share)),
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
        "ca": scalar(value_parsers.text),
        "cert": scalar(value_parsers.text),
        "key": scalar(value_parsers.text),
        "server_name": scalar(value_parsers.text),
    },
)
_LOAD = Record(
    "load",
    LoadSpec,
    {"source": scalar(values.one_of(("none", "metrics", "orca"))), "path": scalar(value_parsers.metrics_path)},
)
_PREFIX = Record(
    "prefix",
    PrefixSpec,
    {
        "block_bytes": scalar(values.at_least(16, values.size)),
        "max_blocks": scalar(_positive_count),
        "max_entries": scalar(_positive_count),
        "ttl": _positive_span,
        "imbalance": scalar(_positive_count),
        "imbalance_ratio": scalar(values.at_least(1.0, values.number)),
    },
)
_AFFINITY = Record(
    "affinity",
    AffinitySpec,
    {
        "imbalance": scalar(_positive_count),
        "imbalance_ratio": scalar(values.at_least(1.0, values.number)),
    },
)


def _endpoint(node: Node, reading: Reading) -> EndpointSpec | None:
    """Read `{url, grpc, weight}` or a URL; a gRPC URL gives both."""
    if isinstance(node, Map):
        endpoint = _ENDPOINT(node, reading)
    else:
        url = scalar(endpoint_url)(node, reading)
        endpoint = None if url is None else EndpointSpec(url)
    if endpoint is None or not endpoint.url.startswith("grpc"):
        return endpoint
    return replace(endpoint, grpc=endpoint.url.partition("://")[2])


def _dialects(node: Node, reading: Reading) -> tuple[str, ...] | None:
    dialects = one_or_many(scalar(values.one_of(DIALECTS)))(node, reading)
    return None if dialects is None else tuple(dict.fromkeys(dialects))


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
        "api_key": scalar(value_parsers.text),
        "headers": keyed(value_parsers.header_name, scalar(value_parsers.text)),
        "base_path": scalar(value_parsers.base_path),
        "dialects": _dialects,
        "always_stream": scalar(values.boolean),
        "unsupported": scalar(values.one_of(("refuse", "drop"))),
        "chat_template": read_template,
        "envelope": scalar(values.one_of(ENVELOPES)),
        "load": _LOAD,
        "prefix": _PREFIX,
        "affinity": _AFFINITY,
        "health": _HEALTH,
        "breaker": _BREAKER,
        "retry": _RETRY,
        "connections": _CONNECTIONS,
        "tls": _TLS,
    },
    required=("endpoints",),
)


def read_engine(name: str, location: Location, node: Node, reading: Reading) -> EngineSpec | None:
    """Read one engine; `location` is that of its name."""
    engine = _ENGINE.read(node, reading, name=name, location=location)
    if engine is not None:
        assert isinstance(node, Map)
        check_engine(engine, node, location, reading)
    return engine

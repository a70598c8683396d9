"""The configurations of the proxies in the gRPC benchmark: one listener or rule for each upstream, no access log.

Only Pointsman reads the model's name in a message: the others have a port of their own for each upstream.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench import mixed
from bench.configs import envoy_cluster, envoy_document, envoy_listener
from bench.grpc_messages import mixed_model
from bench.processes import Ports

# The engine of the split's second arm: the same server under another name.
_NEW = "canned-new"

_HTTP2 = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


@dataclass(frozen=True, slots=True)
class Upstream:
    """An engine: its gRPC port, its HTTP/1.1 port for probes, and its models."""

    name: str
    grpc_port: int
    http_port: int
    models: tuple[str, ...]
    pids: tuple[int, ...]  # whose CPU counts as the upstream's


def envoy_config(ports: Ports, upstreams: Sequence[Upstream]) -> str:
    """HTTP/2 on both sides, health checks like Pointsman's, retries off; deadlines are enforced and forwarded."""
    listeners = [envoy_listener(each.name, ports[each.name], [_route(each)]) for each in upstreams]
    return envoy_document(listeners, [_cluster(each) for each in upstreams])


def _route(upstream: Upstream) -> dict[str, Any]:
    deadline = {"grpc_timeout_header_max": "0s"}  # zero: the client's own deadline applies
    to = {"cluster": upstream.name, "timeout": "0s", "max_stream_duration": deadline}
    return {"match": {"prefix": "/"}, "route": to}


def _cluster(upstream: Upstream) -> dict[str, Any]:
    cluster = envoy_cluster(upstream.name, upstream.grpc_port)
    (check,) = cluster["health_checks"]
    check["http_health_check"]["codec_client_type"] = "HTTP1"
    (locality,) = cluster["load_assignment"]["endpoints"]
    (endpoint,) = locality["lb_endpoints"]
    endpoint["endpoint"]["health_check_config"] = {"port_value": upstream.http_port}
    options = {"@type": f"type.googleapis.com/{_HTTP2}", "explicit_http_config": {"http2_protocol_options": {}}}
    return cluster | {"typed_extension_protocol_options": {_HTTP2: options}}


def mixed_envoy_config(ports: Ports, upstreams: Sequence[Upstream]) -> str:
    """A route by a header, and a split by session: Envoy does not read the model's name in a message."""
    upstream = upstreams[0]
    by_tier, split = _route(upstream), _route(upstream)
    by_tier["match"]["headers"] = [{"name": mixed.TIER_HEADER, "string_match": {"exact": mixed.TIER}}]
    del split["route"]["cluster"]
    split["route"] |= {
        "hash_policy": [{"header": {"header_name": "x-session-id"}}],
        "weighted_clusters": {
            "use_hash_policy": True,
            "clusters": [{"name": upstream.name, "weight": 90}, {"name": _NEW, "weight": 10}],
        },
    }
    clusters = [_cluster(each) for each in (upstream, replace(upstream, name=_NEW))]
    return envoy_document([envoy_listener(upstream.name, ports[upstream.name], [by_tier, split])], clusters)


def mixed_pointsman_rules(upstreams: Sequence[Upstream]) -> str:
    """A route by a header, one for each model, of which the first is split by session, and one for all others."""
    upstream = upstreams[0]
    models = range(1, mixed.NUM_MODELS)
    lines = (
        "version: 1",
        "engines:",
        *(f"  {name}: {_pointsman_engine(upstream)}" for name in (upstream.name, _NEW)),
        "experiments:",
        "  new:",
        "    unit: session",
        f"    arms: [{{name: a, engine: {upstream.name}, weight: 90}}, {{name: b, engine: {_NEW}, weight: 10}}]",
        "routes:",
        f"  - {{name: tier, match: {{header: {{{mixed.TIER_HEADER}: {mixed.TIER}}}}}, engine: {_NEW}}}",
        f"  - {{name: split, match: {{model: {mixed_model(0)}}}, experiment: new}}",
        *(f"  - {{name: model-{n}, match: {{model: {mixed_model(n)}}}, engine: {upstream.name}}}" for n in models),
        f"  - {{name: everything-else, engine: {upstream.name}}}",
    )
    return "".join(f"{line}\n" for line in lines)


def _pointsman_engine(upstream: Upstream) -> str:
    health = "health: {interval: 2s, timeout: 1s, unhealthy_after: 3, healthy_after: 1}"
    endpoint = f'{{url: "http://127.0.0.1:{upstream.http_port}", grpc: "127.0.0.1:{upstream.grpc_port}"}}'
    return f"{{protocol: kserve, endpoints: [{endpoint}], timeout: 600s, {health}, retry: {{attempts: 0}}}}"


def pointsman_rules(upstreams: Sequence[Upstream]) -> str:
    """Rules of a small installation: a glob, a condition on a header, exact names and a fallback."""
    last = upstreams[0].name

    def route(upstream: Upstream) -> str:
        return (
            f"{{name: to-{upstream.name}, match: {{model: [{', '.join(upstream.models)}]}}, engine: {upstream.name}}}"
        )

    lines = (
        "version: 1",
        "engines:",
        *(f"  {upstream.name}: {_pointsman_engine(upstream)}" for upstream in upstreams),
        "routes:",
        f'  - {{name: migrate-llama, match: {{model: "llama-*"}}, engine: {last}}}',
        f"  - {{name: premium-chat, match: {{model: chat, header: {{x-tier: premium}}}}, engine: {last}}}",
        *(f"  - {route(upstream)}" for upstream in upstreams),
        f"  - {{name: everything-else, engine: {last}}}",
    )
    return "".join(f"{line}\n" for line in lines)

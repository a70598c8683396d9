"""The configurations of the proxies in the gRPC benchmark: one listener or rule for each upstream, no access log.

Only Pointsman reads the model's name in a message: the others have a port of their own for each upstream.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.configs import envoy_cluster, envoy_document, envoy_listener
from bench.processes import Ports

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


def pointsman_rules(upstreams: Sequence[Upstream]) -> str:
    """Rules of a small installation: a glob, a condition on a header, exact names and a fallback."""
    health = "health: {interval: 2s, timeout: 1s, unhealthy_after: 3, healthy_after: 1}"
    last = upstreams[0].name

    def engine(upstream: Upstream) -> str:
        endpoint = f'{{url: "http://127.0.0.1:{upstream.http_port}", grpc: "127.0.0.1:{upstream.grpc_port}"}}'
        return f"{{protocol: kserve, endpoints: [{endpoint}], timeout: 600s, {health}, retry: {{attempts: 0}}}}"

    def route(upstream: Upstream) -> str:
        return (
            f"{{name: to-{upstream.name}, match: {{model: [{', '.join(upstream.models)}]}}, engine: {upstream.name}}}"
        )

    lines = (
        "version: 1",
        "engines:",
        *(f"  {upstream.name}: {engine(upstream)}" for upstream in upstreams),
        "routes:",
        f'  - {{name: migrate-llama, match: {{model: "llama-*"}}, engine: {last}}}',
        f"  - {{name: premium-chat, match: {{model: chat, header: {{x-tier: premium}}}}, engine: {last}}}",
        *(f"  - {route(upstream)}" for upstream in upstreams),
        f"  - {{name: everything-else, engine: {last}}}",
    )
    return "".join(f"{line}\n" for line in lines)

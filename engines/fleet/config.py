"""`fleet.yaml` read whole: the fleet where nothing is wrong with it, and every finding."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from engines.fleet import values
from engines.fleet.placeholders import port_names, unknown
from engines.fleet.spec import READY_PATHS, AgentProtocol, AgentSpec, BackoffSpec, FleetSpec, Power
from engines.fleet.yaml_reading import (
    Key,
    Problem,
    Reading,
    compose,
    entries,
    keyed,
    one_or_many,
    record,
    scalar,
    suggest,
)

_VERSION = "1"
# What the engine host listens on; metrics are scraped, never routed to.
_HOST_COMMAND = (sys.executable, "-m", "engines", "host")
_HOST_PORTS = ("http", "grpc", "metrics")

_span = scalar(values.duration)
_positive_span = scalar(values.above_zero(values.duration))
_text = scalar(values.text)
_texts = one_or_many(_text)


@dataclass(frozen=True, slots=True)
class LoadedFleet:
    """The outcome of a reading: a fleet where no problem is an error."""

    fleet: FleetSpec | None
    problems: tuple[Problem, ...]


_HOST = record("a host", {"model_repository": _texts, "options": _texts}, required=("model_repository",))
_BACKOFF = record(
    "backoff",
    {"first": _positive_span, "longest": _positive_span, "well_after": _span},
)
_AGENT = record(
    "an agent",
    {
        "host": _HOST,
        "command": _texts,
        "replicas": scalar(values.integer(1, 64)),
        "engine": scalar(values.name),
        "protocol": scalar(values.one_of(member.value for member in AgentProtocol)),
        "models": _texts,
        "ports": keyed(values.name, scalar(values.integer(1, 65535))),
        "environment": keyed(values.variable, _text),
        "working_directory": _text,
        "ready": _text,
        "ready_interval": _positive_span,
        "ready_timeout": _positive_span,
        "start_timeout": _positive_span,
        "hang_timeout": _span,
        "stop_timeout": _positive_span,
        "memory": scalar(values.size),
        "power": scalar(values.one_of(member.value for member in Power)),
        "backoff": _BACKOFF,
    },
)


def _agents(node: yaml.Node, reading: Reading) -> dict[Key, tuple[yaml.Node, dict[str, Any]]]:
    found: dict[Key, tuple[yaml.Node, dict[str, Any]]] = {}
    for key, value in entries(node, "a map from agents' names to agents", reading).items():
        name, agent = scalar(values.name)(key.node, reading), _AGENT(value, reading)
        if name is not None and agent is not None:
            found[key] = (value, agent)
    return found


_FLEET = record(
    "a fleet file",
    {
        "version": scalar(values.text),
        "directory": _text,
        "rules": _text,
        "address": _text,
        "ports": scalar(values.port_range),
        "log_size": scalar(values.size),
        "memory_interval": _positive_span,
        "agents": _agents,
    },
    required=("version", "agents"),
)


def load_fleet(path: Path, environment: Mapping[str, str] | None = None) -> LoadedFleet:
    """Read a fleet file. Never raises for what stands in it, nor where it cannot be read.

    `environment` fills `${VAR}`; None means the process's own. Paths in the file are relative to its directory.
    """
    reading = Reading(str(path), os.environ if environment is None else environment)
    fleet = _load(path, reading)
    found = sorted(
        dict.fromkeys(reading.problems), key=lambda problem: (problem.location.line, problem.location.column)
    )
    return LoadedFleet(None if reading.num_errors else fleet, tuple(found))


def _load(path: Path, reading: Reading) -> FleetSpec | None:
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        reading.error(None, f"cannot be read: {error.strerror}")
        return None
    except UnicodeDecodeError:
        reading.error(None, "not UTF-8")
        return None
    root = compose(text, reading)
    if root is None:
        if not reading.problems:
            reading.error(None, "the file is empty: a fleet file begins with 'version: 1'")
        return None
    found = _FLEET(_without_notes(root), reading)
    if found is None:
        return None
    if found["version"] != _VERSION:
        reading.error(root, f"version {found['version']!r} is not known: this program reads version 1")
    agents = [
        spec for key, (node, agent) in found["agents"].items() for spec in _replicas(key, node, agent, path, reading)
    ]
    if not found["agents"]:
        reading.error(root, "there are no agents: nothing would run")
    _check_engines(agents, root, reading)
    _check_fixed_ports(agents, root, reading)
    base = path.absolute().parent
    options: dict[str, Any] = {}
    for key, option in (
        ("address", "address"),
        ("ports", "port_range"),
        ("log_size", "log_bytes"),
        ("memory_interval", "memory_interval"),
    ):
        if key in found:
            options[option] = found[key]
    return FleetSpec(
        agents=tuple(agents),
        directory=base / found.get("directory", f"{path.stem}.run"),
        rules=base / found["rules"] if "rules" in found else None,
        **options,
    )


def _without_notes(root: yaml.Node) -> yaml.Node:
    """Top-level keys that begin with `x-` are a place for anchors."""
    if isinstance(root, yaml.MappingNode):
        root.value = [(key, value) for key, value in root.value if not str(key.value).startswith("x-")]
    return root


def _replicas(key: Key, node: yaml.Node, agent: Mapping[str, Any], path: Path, reading: Reading) -> list[AgentSpec]:
    """The processes of one agent; none where it is wrong."""
    errors_before = reading.num_errors
    base = path.absolute().parent
    name = key.text
    if ("host" in agent) == ("command" in agent):
        given = "both" if "host" in agent else "neither"
        reading.error(key.node, f"agent {name!r} has {given} of 'host' and 'command': give one of the two")
        return []
    protocol = AgentProtocol(agent.get("protocol", "kserve"))
    command = _host_command(agent["host"], base) if "host" in agent else agent["command"]
    environment = agent.get("environment", {})
    ready = _ready(agent, protocol, command)
    texts = (*command, *environment.values(), ready or "")
    for word in unknown(texts):
        known = ("http_port", "grpc_port", "address", "name", "replica", "directory")
        reading.error(node, f"unknown placeholder {{{word}}} in agent {name!r}{suggest(word, known)}")
    ports = port_names(texts)
    for port in agent.get("ports", {}):
        if port not in ports:
            reading.error(node, f"agent {name!r} fixes port {port!r}, but nothing in it says {{{port}_port}}")
    replicas = agent.get("replicas", 1)
    if replicas > 1 and agent.get("ports"):
        reading.error(node, f"agent {name!r} has {replicas} replicas: they cannot share fixed ports")
    engine = _engine(name, agent, ports, node, reading)
    spans = ("ready_interval", "ready_timeout", "start_timeout", "hang_timeout", "stop_timeout")
    options: dict[str, Any] = {span: agent[span] for span in spans if span in agent}
    options["working_directory"] = base / agent.get("working_directory", "")
    if reading.num_errors > errors_before:
        return []
    return [
        AgentSpec(
            name=name if replicas == 1 else f"{name}-{replica}",
            agent=name,
            replica=replica,
            command=command,
            engine=engine,
            protocol=protocol,
            models=agent.get("models", ()),
            ports=ports,
            fixed_ports=agent.get("ports", {}),
            environment=environment,
            ready=ready,
            memory_bytes=agent.get("memory"),
            power=Power(agent.get("power", "default")),
            backoff=BackoffSpec(**agent.get("backoff", {})),
            **options,
        )
        for replica in range(replicas)
    ]


def _host_command(host: Mapping[str, Any], base: Path) -> tuple[str, ...]:
    repositories = [place if "://" in place else str(base / place) for place in host["model_repository"]]
    command = [*_HOST_COMMAND, *(f"--model-repository={place}" for place in repositories), "--host={address}"]
    command += [f"--{port}-port={{{port}_port}}" for port in _HOST_PORTS]
    return (*command, *host.get("options", ()))


def _ready(agent: Mapping[str, Any], protocol: AgentProtocol, command: tuple[str, ...]) -> str | None:
    """The URL that tells readiness, with placeholders: as given, or the protocol's own on the http port."""
    ready = agent.get("ready")
    if ready == "running":
        return None
    if ready is None:
        ready = READY_PATHS[protocol] if "http" in port_names(command) or "http" in agent.get("ports", {}) else None
    if ready is None or "://" in ready:
        return ready
    return f"http://{{address}}:{{http_port}}/{ready.lstrip('/')}"


def _engine(
    name: str, agent: Mapping[str, Any], ports: tuple[str, ...], node: yaml.Node, reading: Reading
) -> str | None:
    """The engine in the rules: the agent's own name, another one, or none."""
    engine: str = agent.get("engine", name)
    if engine == "none":
        if agent.get("models"):
            reading.error(node, f"agent {name!r} names models, but its engine is none: nothing could be routed to it")
        return None
    if "http" not in ports and "grpc" not in ports:
        where = "its command has neither {http_port} nor {grpc_port}"
        reading.warn(node, f"the gateway cannot reach agent {name!r}: {where}; 'engine: none' says that this is meant")
        return None
    return engine


def _check_engines(agents: list[AgentSpec], root: yaml.Node, reading: Reading) -> None:
    """Endpoints of one engine speak the same, and are reached in the same ways."""
    first: dict[str, AgentSpec] = {}
    for agent in agents:
        if agent.engine is None:
            continue
        other = first.setdefault(agent.engine, agent)
        ways = [{"http", "grpc"} & set(one.ports) for one in (agent, other)]
        if (agent.protocol, ways[0]) != (other.protocol, ways[1]):
            both = f"agents {other.agent!r} and {agent.agent!r} share engine {agent.engine!r}"
            reading.error(root, f"{both}, but differ in protocol or ports: give each an engine of its own")
        if agent.models != other.models:
            both = f"agents {other.agent!r} and {agent.agent!r} share engine {agent.engine!r}"
            reading.error(root, f"{both}, but differ in models: name the same models in both")
    names = [agent.name for agent in agents]
    for name in {name for name in names if names.count(name) > 1}:
        reading.error(root, f"two agents are called {name!r}: replicas are numbered from 0, so another name is needed")


def _check_fixed_ports(agents: list[AgentSpec], root: yaml.Node, reading: Reading) -> None:
    taken: dict[int, str] = {}
    for agent in agents:
        for port in agent.fixed_ports.values():
            other = taken.setdefault(port, agent.name)
            if other != agent.name:
                reading.error(root, f"agents {other!r} and {agent.name!r} both want port {port}")

"""Reads `fleet.yaml`: the fleet, or all problems of the file."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engines.fleet.spec import AgentSpec, BackoffSpec, FleetSpec, Power, port_names, unknown
from gateway.protocol.engine_protocols import EngineProtocol
from gateway.yaml import values
from gateway.yaml.nodes import Map, Node, Scalar, read_yaml
from gateway.yaml.problems import Location, Problem, suggest
from gateway.yaml.readers import Reading, Record, expected, keyed, one_or_many, scalar

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RANGE = re.compile(r"([0-9]{1,5}) ?- ?([0-9]{1,5})")


def variable(text: str) -> str:
    """The name of an environment variable."""
    if not _VARIABLE.fullmatch(text):
        raise ValueError(f"{text!r} is not the name of an environment variable")
    return text


def argument(text: str) -> str:
    """A text that a process can get as an argument."""
    if "\x00" in text:
        raise ValueError("the text has a NUL, which no argument can carry")
    return text


def port_range(text: str) -> tuple[int, int]:
    """Two ports, the first not above the last: `20000-20999`."""
    match = _RANGE.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]) <= 65535:
        raise ValueError(f"{text!r} is not a range of ports: write 20000-20999")
    return int(match[1]), int(match[2])


_VERSION = "1"
# The engine host's ports; metrics are scraped, not routed.
_HOST_COMMAND = (sys.executable, "-m", "engines", "host")
_HOST_PORTS = ("http", "grpc", "metrics")

_span = scalar(values.duration)
_positive_span = scalar(values.above_zero(values.duration))
_port = scalar(values.between(1, 65535, values.integer))
_text = scalar(argument)
_texts = one_or_many(_text)


@dataclass(frozen=True, slots=True)
class LoadedFleet:
    """A fleet file: its problems, and the fleet where none is an error."""

    fleet: FleetSpec | None
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class _Agent:
    """One agent of the file; `options` has the given ones."""

    name: str
    name_location: Location
    location: Location
    options: Mapping[str, Any]


_HOST = Record(
    "a host", dict[str, Any], {"model_repository": _texts, "options": _texts}, required=("model_repository",)
)
_BACKOFF = Record("backoff", BackoffSpec, {"first": _positive_span, "longest": _positive_span, "well_after": _span})
_AGENT = Record(
    "an agent",
    dict[str, Any],
    {
        "host": _HOST,
        "command": _texts,
        "replicas": scalar(values.between(1, 64, values.integer)),
        "engine": scalar(values.name),
        "protocol": scalar(values.one_of(member.value for member in EngineProtocol)),
        "models": _texts,
        "ports": keyed(values.name, _port),
        "environment": keyed(variable, _text),
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


def _agents(node: Node, reading: Reading) -> list[_Agent] | None:
    if not isinstance(node, Map):
        expected(node, "a map from agents' names to agents", reading)
        return None
    agents = []
    for key, entry in node.entries.items():
        name = scalar(values.name)(Scalar(key, False, entry.location), reading)
        agent = _AGENT(entry.node, reading)
        if name is not None and agent is not None:
            agents.append(_Agent(name, entry.location, entry.node.location, agent))
    return agents


_FLEET = Record(
    "a fleet file",
    dict[str, Any],
    {
        "version": scalar(str),
        "directory": _text,
        "rules": _text,
        "address": _text,
        "ports": scalar(port_range),
        "log_size": scalar(values.size),
        "memory_interval": _positive_span,
        "agents": _agents,
    },
    required=("version", "agents"),
)


def load_fleet(path: Path, environment: Mapping[str, str] | None = None) -> LoadedFleet:
    """Read a fleet file. Errors are problems, never exceptions. `environment` fills `${VAR}`; None means the process's
    own. Paths in the file are relative to its directory."""
    reading = Reading()
    fleet = _load(path, os.environ if environment is None else environment, reading)
    problems = sorted(
        dict.fromkeys(reading.problems), key=lambda problem: (problem.location.line, problem.location.column)
    )
    return LoadedFleet(None if reading.num_errors else fleet, tuple(problems))


def _load(path: Path, environment: Mapping[str, str], reading: Reading) -> FleetSpec | None:
    start = Location(str(path), 1, 1)
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        reading.error(start, f"cannot be read: {error.strerror}")
        return None
    except UnicodeDecodeError:
        reading.error(start, "not UTF-8")
        return None
    root = read_yaml(text, str(path), environment, reading.problems)
    if isinstance(root, Scalar) and root.is_null:
        reading.error(start, "the file is empty: a fleet file begins with 'version: 1'")
        return None
    if isinstance(root, Map):  # keys that begin with `x-` hold anchors
        root = replace(root, entries={key: entry for key, entry in root.entries.items() if not key.startswith("x-")})
    fields = _FLEET(root, reading)
    if fields is None or reading.num_errors:  # agents are checked once all could be read
        return None
    if fields["version"] != _VERSION:
        reading.error(root.location, f"version {fields['version']!r} is not known: this program reads version 1")
    agents = [spec for agent in fields["agents"] for spec in _replicas(agent, path, reading)]
    if not fields["agents"]:
        reading.error(root.location, "there are no agents: nothing would run")
    _check_agents(agents, root.location, reading)
    base = path.absolute().parent
    attributes = {"ports": "port_range", "log_size": "log_bytes"}
    keys = ("address", "ports", "log_size", "memory_interval")
    options: dict[str, Any] = {attributes.get(key, key): fields[key] for key in keys if key in fields}
    return FleetSpec(
        agents=tuple(agents),
        directory=base / fields.get("directory", f"{path.stem}.run"),
        rules=base / fields["rules"] if "rules" in fields else None,
        **options,
    )


def _replicas(read: _Agent, path: Path, reading: Reading) -> list[AgentSpec]:
    """The processes of one agent; empty where it is invalid."""
    errors_before = reading.num_errors
    base = path.absolute().parent
    name, agent = read.name, read.options
    if ("host" in agent) == ("command" in agent):
        count = "both" if "host" in agent else "neither"
        reading.error(read.name_location, f"agent {name!r} has {count} of 'host' and 'command': give one of the two")
        return []
    protocol = EngineProtocol(agent.get("protocol", "kserve"))
    command = _host_command(agent["host"], base) if "host" in agent else agent["command"]
    environment = agent.get("environment", {})
    ready = _ready(agent, protocol, command)
    texts = (*command, *environment.values(), ready or "")
    for word in unknown(texts):
        placeholders = ("http_port", "grpc_port", "address", "name", "replica", "directory")
        reading.error(read.location, f"unknown placeholder {{{word}}} in agent {name!r}{suggest(word, placeholders)}")
    ports = port_names(texts)
    for port in agent.get("ports", {}):
        if port not in ports:
            reading.error(read.location, f"agent {name!r} fixes port {port!r}, but nothing in it says {{{port}_port}}")
    replicas = agent.get("replicas", 1)
    if replicas > 1 and agent.get("ports"):
        reading.error(read.location, f"agent {name!r} has {replicas} replicas: they cannot share fixed ports")
    engine = _engine(read, ports, reading)
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
            backoff=agent.get("backoff", BackoffSpec()),
            **options,
        )
        for replica in range(replicas)
    ]


def _host_command(host: Mapping[str, Any], base: Path) -> tuple[str, ...]:
    repositories = [place if "://" in place else str(base / place) for place in host["model_repository"]]
    command = [*_HOST_COMMAND, *(f"--model-repository={place}" for place in repositories), "--host={address}"]
    command += [f"--{port}-port={{{port}_port}}" for port in _HOST_PORTS]
    return (*command, *host.get("options", ()))


def _ready(agent: Mapping[str, Any], protocol: EngineProtocol, command: tuple[str, ...]) -> str | None:
    """The URL of readiness, with placeholders: the given one, or the protocol's on the http port."""
    ready = agent.get("ready")
    if ready == "running":
        return None
    if ready is None and ("http" in port_names(command) or "http" in agent.get("ports", {})):
        ready = protocol.traits.ready_path
    if ready is None or "://" in ready:
        return ready
    return f"http://{{address}}:{{http_port}}/{ready.lstrip('/')}"


def _engine(read: _Agent, ports: tuple[str, ...], reading: Reading) -> str | None:
    """The agent's engine in the rules: its name by default."""
    name, agent = read.name, read.options
    engine: str = agent.get("engine", name)
    if engine == "none":
        if agent.get("models"):
            reading.error(
                read.location, f"agent {name!r} names models, but its engine is none: nothing could be routed to it"
            )
        return None
    if "http" not in ports and "grpc" not in ports:
        where = "its command has neither {http_port} nor {grpc_port}"
        reading.warn(
            read.location, f"the gateway cannot reach agent {name!r}: {where}; 'engine: none' says that this is meant"
        )
        return None
    return engine


def _check_agents(agents: list[AgentSpec], place: Location, reading: Reading) -> None:
    """Check that the endpoints of one engine agree in protocol, ports and models, and that names and ports differ."""
    first: dict[str, AgentSpec] = {}
    for agent in agents:
        if agent.engine is None:
            continue
        other = first.setdefault(agent.engine, agent)
        both = f"agents {other.agent!r} and {agent.agent!r} share engine {agent.engine!r}"
        fronts = [{"http", "grpc"} & set(one.ports) for one in (agent, other)]
        if (agent.protocol, fronts[0]) != (other.protocol, fronts[1]):
            reading.error(place, f"{both}, but differ in protocol or ports: give each an engine of its own")
        if agent.models != other.models:
            reading.error(place, f"{both}, but differ in models: name the same models in both")
    names = [agent.name for agent in agents]
    for name in {name for name in names if names.count(name) > 1}:
        reading.error(place, f"two agents are called {name!r}: replicas are numbered from 0, so another name is needed")
    taken: dict[int, str] = {}
    for agent in agents:
        for port in agent.fixed_ports.values():
            owner = taken.setdefault(port, agent.name)
            if owner != agent.name:
                reading.error(place, f"agents {owner!r} and {agent.name!r} both want port {port}")

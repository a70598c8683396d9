"""The values of a fleet file, and the placeholders in an agent's texts.

Times are seconds, sizes are bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from gateway.protocol.engine_protocols import EngineProtocol


class Power(Enum):
    """The priority of an agent on a busy machine."""

    BACKGROUND = "background"
    DEFAULT = "default"
    INTERACTIVE = "interactive"


@dataclass(frozen=True, slots=True)
class BackoffSpec:
    """The pause before a restart: doubles with every end in a row, up to `longest`."""

    first: float = 0.5
    longest: float = 60.0  # a broken agent costs one start a minute, and is back a minute after its repair
    well_after: float = 60.0  # after this time ready the next pause is the first again


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """One process. Of an agent with replicas there are several, which differ in `name` and `replica` alone.

    `command`, `environment` and `ready` may hold placeholders: `{http_port}` (or any `{..._port}`), `{address}`,
    `{name}`, `{replica}`, `{directory}`.
    """

    name: str
    command: tuple[str, ...]
    agent: str  # the name in the file, without the replica's number
    replica: int = 0
    engine: str | None = None  # the engine in the rules that it is an endpoint of; None: not registered
    protocol: EngineProtocol = EngineProtocol.KSERVE
    models: tuple[str, ...] = ()  # globs of models that a route sends to it; none: the rules' own routes name it
    ports: tuple[str, ...] = ()  # the ports it needs, by name: http, grpc, metrics ...
    fixed_ports: Mapping[str, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    working_directory: Path | None = None
    ready: str | None = None  # a URL; None: it is ready as soon as it runs
    ready_interval: float = 1.0  # between probes
    ready_timeout: float = 2.0  # of a probe
    start_timeout: float = 600.0  # until ready; large models load from slow disks
    hang_timeout: float = 60.0  # silence after which a ready agent is restarted; 0: never
    stop_timeout: float = 40.0  # from SIGTERM to SIGKILL: an engine host's requests in flight have 30 s
    memory_bytes: int | None = None
    power: Power = Power.DEFAULT
    backoff: BackoffSpec = BackoffSpec()


@dataclass(frozen=True, slots=True)
class FleetSpec:
    agents: tuple[AgentSpec, ...]
    directory: Path  # logs/, state.json, lock
    rules: Path | None = None  # the rule file for the gateway
    address: str = "127.0.0.1"  # agents listen there
    # Below what Linux (32768) and macOS (49152) hand out to connections, so that no connection takes a port over
    # while its agent restarts.
    port_range: tuple[int, int] = (20000, 20999)
    memory_interval: float = 2.0  # between samples of what agents take; three in a row decide
    log_bytes: int = 64 * 1024 * 1024  # of a log; older lines go to NAME.log.1, and those before are lost


_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)\}")
_KNOWN = frozenset({"address", "name", "replica", "directory"})
_PORT = "_port"


def port_names(texts: Iterable[str]) -> tuple[str, ...]:
    """The ports in the texts, in the order of their first use: `{http_port}` is `http`."""
    words = (word for text in texts for word in _PLACEHOLDER.findall(text))
    return tuple(dict.fromkeys(word.removesuffix(_PORT) for word in words if word.endswith(_PORT)))


def unknown(texts: Iterable[str]) -> list[str]:
    words = (word for text in texts for word in _PLACEHOLDER.findall(text))
    return [word for word in dict.fromkeys(words) if word not in _KNOWN and not word.endswith(_PORT)]


def fill(text: str, facts: Mapping[str, str]) -> str:
    """The text with each placeholder replaced. Raises: KeyError for an unknown one."""
    return _PLACEHOLDER.sub(lambda match: facts[match[1]], text)

"""What a fleet file declares, as values: made whole by `config`, never edited.

Times are seconds, sizes are bytes. Each field says its meaning and why its default is what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from gateway.protocol.engine_protocols import EngineProtocol


class Power(Enum):
    """How much of the machine an agent may take when others want it too."""

    BACKGROUND = "background"
    DEFAULT = "default"
    INTERACTIVE = "interactive"


@dataclass(frozen=True, slots=True)
class BackoffSpec:
    """The pause before a restart: doubles with every end in a row, up to `longest`."""

    first: float = 0.5
    longest: float = 60.0  # a broken agent costs one start a minute, and is back a minute after it is mended
    well_after: float = 60.0  # one that was ready for so long was well: the next pause is the first again


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
    ready_timeout: float = 2.0  # a probe that takes longer is not answered
    start_timeout: float = 600.0  # until ready; large models are read from slow discs
    hang_timeout: float = 60.0  # silent for so long after it was ready: restarted; 0: never
    stop_timeout: float = 40.0  # from SIGTERM to SIGKILL: an engine host's requests in flight have 30 s
    memory_bytes: int | None = None
    power: Power = Power.DEFAULT
    backoff: BackoffSpec = BackoffSpec()


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """The whole fleet."""

    agents: tuple[AgentSpec, ...]
    directory: Path  # logs/, state.json, lock
    rules: Path | None = None  # the rule file that is kept for the gateway
    address: str = "127.0.0.1"  # where agents listen and the gateway finds them
    # Below what Linux (32768) and macOS (49152) hand out to connections, so that no connection takes a port over
    # while its agent restarts.
    port_range: tuple[int, int] = (20000, 20999)
    memory_interval: float = 2.0  # between samples of what agents take; three in a row decide
    log_bytes: int = 64 * 1024 * 1024  # of a log; older lines go to NAME.log.1, and those before are lost

"""The settings of a host, fixed at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engines.host.client_limits import ClientLimits
from engines.host.metrics_config import MetricsConfig
from engines.host.trace_settings import TraceSettings
from gateway.protocol.restricted_apis import Restrictions

# `--backend-config` by backend and `--cache-config` by cache: values by setting.
Options = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Address:
    """The address of one of the three servers; port 0 takes a free one."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Times in seconds, sizes in bytes; the names are those of Triton's options. A server without an address is off."""

    repositories: tuple[Path | str, ...]
    http: Address | None = Address("127.0.0.1", 8100)
    grpc: Address | None = Address("127.0.0.1", 8101)
    metrics: Address | None = Address("127.0.0.1", 8102)
    name: str = "triton"
    control_mode: str = "none"  # none, poll, explicit
    load_models: tuple[str, ...] = ()
    repository_poll_seconds: float = 15.0
    config_name: str = ""
    completes_configs: bool = True
    strict_readiness: bool = True
    exit_on_error: bool = True
    drain_delay_seconds: float = 0.0  # how long it serves on while readiness says no, before it stops
    exit_timeout_seconds: float = 30.0
    backend_options: Options = field(default_factory=dict)
    cache_options: Options = field(default_factory=dict)
    is_rate_limited: bool = False
    rate_limits: Mapping[tuple[int, str], int] = field(default_factory=dict)
    allows_client_shared_memory: bool = True
    limits: ClientLimits = field(default_factory=ClientLimits)
    http_restrictions: Restrictions = field(default_factory=dict)
    grpc_restrictions: Restrictions = field(default_factory=dict)
    trace: TraceSettings = field(default_factory=TraceSettings)
    metrics_config: MetricsConfig = field(default_factory=MetricsConfig)

"""Declarations of sources of endpoints in rule files as values: created by `config.sources`, immutable.

Times are seconds. Each field documents its meaning, unit and default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from gateway.config import value_parsers
from gateway.config.value_parsers import Duration, PositiveCount, PositiveDuration
from gateway.yaml import values

# A name that has answered, and now has no address, keeps those that it had for so long: its server may have restarted,
# and so may one that lists endpoints.
_EMPTY_GRACE = 300.0
# Servers that have left their source finish what they began: Kubernetes' default of terminationGracePeriodSeconds.
_DRAIN = 30.0

# Each entry of a list has its own address of gRPC.
LISTED = "listed"

Port = Annotated[int, values.between(1, 65535, values.integer)]


@dataclass(frozen=True, slots=True)
class KubernetesSpec:
    """A Service whose EndpointSlices are watched."""

    service: Annotated[str, value_parsers.dns_label]  # its name
    namespace: Annotated[str, value_parsers.dns_label] | None = None  # None: that of the gateway's pod
    # The name or the number of a port of the slices; None: the only one
    port: Annotated[str, value_parsers.service_port] | None = None
    # The API server; None: that of the cluster that the gateway runs in, with the service account's token
    api: Annotated[str, value_parsers.api_url] | None = None
    token: str | None = None  # the path of a file with a bearer token, which is read again for each connection
    ca: str | None = None  # the path of a PEM file; None: the service account's, or the system's authorities


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """Where addresses of an engine come from: DNS, Kubernetes, a file or a server that lists them."""

    # name:port, whose A or AAAA records are addresses; or the name of SRV records, which begins with _
    dns: Annotated[str, value_parsers.dns_name] | None = None
    kubernetes: KubernetesSpec | None = None
    file: str | None = None  # the path of a YAML or JSON file with a list
    http: Annotated[str, value_parsers.api_url] | None = None  # the URL of such a list
    scheme: Literal["http", "https", "grpc", "grpcs"] = "http"  # of the addresses that are found
    # The port of gRPC at the same addresses, where they have it beside REST; of Kubernetes its name or its number;
    # `listed`: each entry of a list has an address of its own
    grpc: Annotated[str, value_parsers.service_port] | None = None
    weight: Annotated[float, values.between(0.0, 1_000_000.0, values.number)] = 1.0  # of each endpoint
    zone: Annotated[str, values.name] | None = None  # of endpoints whose source tells none
    priority: Annotated[int, values.at_least(0, values.integer)] = 0  # of each endpoint
    # Of addresses; auto: IPv6 where there is no IPv4, since a server that has both is one endpoint
    family: Literal["auto", "ipv4", "ipv6", "all"] = "auto"
    # Of DNS: the least and the longest time between two queries; the records' TTL decides within
    min_refresh: PositiveDuration = 1.0
    max_refresh: PositiveDuration = 60.0  # see `min_refresh`
    servers: tuple[Annotated[str, value_parsers.address_port], ...] = ()  # of DNS; none: those of /etc/resolv.conf
    # Of a list by HTTP: the time between two requests, and of one
    interval: PositiveDuration = 5.0
    timeout: PositiveDuration = 5.0  # see `interval`
    token: str | None = None  # the path of a file with a bearer token for it, which is read again for each request
    ca: str | None = None  # the path of a PEM file; None: the system's authorities
    # How long the endpoints stay when the source has none any more; None: 5 min of DNS and HTTP, else 0
    empty_grace: Duration | None = None
    # How long an endpoint that has left is drained before it is removed; None: 30 s, of Kubernetes 0, where slices
    # have endpoints that terminate
    drain: Duration | None = None
    max_endpoints: PositiveCount = 1000  # further ones are left out

    @property
    def label(self) -> str:
        """What it is called in logs, metrics and the admin API."""
        if self.dns is not None:
            return f"dns:{self.dns}"
        if self.http is not None:
            return f"http:{self.http}"
        if self.kubernetes is None:
            return f"file:{self.file}"
        each = self.kubernetes
        place = f"{each.namespace}/{each.service}" if each.namespace is not None else each.service
        port = f":{each.port}" if each.port is not None else ""
        return f"kubernetes:{place}{port}" + (f" of {each.api}" if each.api is not None else "")

    @property
    def is_srv(self) -> bool:
        return self.dns is not None and self.dns.startswith("_")

    @property
    def is_encrypted(self) -> bool:
        return self.scheme in ("https", "grpcs")

    @property
    def speaks_rest(self) -> bool:
        return self.scheme.startswith("http")

    @property
    def speaks_grpc(self) -> bool:
        return self.grpc is not None or self.scheme.startswith("grpc")

    @property
    def seconds_when_empty(self) -> float:
        if self.empty_grace is not None:
            return self.empty_grace
        return _EMPTY_GRACE if self.dns is not None or self.http is not None else 0.0

    @property
    def drain_seconds(self) -> float:
        if self.drain is not None:
            return self.drain
        return 0.0 if self.kubernetes is not None else _DRAIN

"""Endpoints from addresses that a source has found."""

from __future__ import annotations

from gateway.config.engine_specs import EndpointSpec
from gateway.config.source_specs import SourceSpec
from gateway.config.value_parsers import is_address


def endpoint_at(
    source: SourceSpec,
    address: str,
    port: int,
    *,
    grpc_port: int | None = None,
    host: str | None = None,
    weight: float | None = None,
    zone: str | None = None,
    level: int = 0,
) -> EndpointSpec:
    """The endpoint of a source at an address, so many levels behind the source's first. What is None is as the source
    declares it."""
    bracketed = f"[{address}]" if ":" in address else address
    authority = f"{bracketed}:{port}"
    grpc = None
    if not source.speaks_rest:
        grpc = authority
    elif grpc_port is not None:
        grpc = f"{bracketed}:{grpc_port}"
    elif source.grpc is not None and source.grpc.isdigit():
        grpc = f"{bracketed}:{source.grpc}"
    return EndpointSpec(
        f"{source.scheme}://{authority}",
        grpc,
        source.weight if weight is None else weight,
        zone if zone is not None else source.zone,
        host if host is not None and not is_address(host) else None,
        source.priority + level,
    )

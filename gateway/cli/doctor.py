"""`pointsman doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.engine_programs import execute

if TYPE_CHECKING:
    from gateway.config.engine_specs import EndpointSpec


def doctor(context: typer.Context, rules: Annotated[list[Path] | None, typer.Option(metavar="PATH")] = None) -> int:
    """Examine this machine: Python, limits, Redis, torch, the GPU and its kernels, memory, engines of the rules."""
    endpoints = _endpoints(rules or [])
    if endpoints is not None:
        arguments = [f"--endpoint={name}={url}" for name, url in endpoints] + context.args
        execute("doctor", arguments)
    return 2


def _endpoints(paths: list[Path]) -> list[tuple[str, str]] | None:
    """Name and URL of each endpoint, numbered where an engine has several; None where the rules have errors."""
    from gateway.cli.check import print_problems
    from gateway.config.rules import load_rules

    if not paths:
        return []
    loaded = load_rules(paths)
    if loaded.rules is None:
        print_problems(loaded)
        return None
    endpoints = []
    for name, engine in loaded.rules.engines.items():
        urls = [url for endpoint in engine.endpoints for url in _urls(endpoint)]
        endpoints += [(f"{name} {number}" if len(urls) > 1 else name, url) for number, url in enumerate(urls, 1)]
    return endpoints


def _urls(endpoint: EndpointSpec) -> list[str]:
    """The REST URL, and that of gRPC where it has a port of its own."""
    is_own = endpoint.grpc is not None and not endpoint.url.startswith("grpc")
    return [endpoint.url, f"grpc://{endpoint.grpc}"] if is_own else [endpoint.url]

